"""HDFS as fsspec knows filesystems, by hdfs-native: a client in Rust that needs neither Java nor a Hadoop distribution.

A file appears in HDFS when it is opened, empty, and its length is known only after it is closed. So a small file is
written under a hidden name and renamed, which the namenode does atomically and, if asked, without replacing a file.
The client finds namenodes, HA and Kerberos in the configuration of `HADOOP_CONF_DIR` or `HADOOP_HOME`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from hdfs_native import Client, WriteOptions
from hdfs_native.fsspec import HdfsFileSystem

from outfall.errors import ConfigurationError

CONFIGURE = "name a namenode in the URL, or set HADOOP_CONF_DIR to the directory of core-site.xml and hdfs-site.xml"
_CHUNK = 8 * 1024 * 1024

# The client reports an error of the namenode as the text of a Rust value.
_REMOTE = re.compile(r'RPCError\("([\w.$]+)", "(.*)"\)', re.DOTALL)

_NUMBERS = {
    "AccessControlException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "FSLimitException": errno.ENAMETOOLONG,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "ParentNotDirectoryException": errno.ENOTDIR,
}
"""Exceptions of the namenode → the error of the operating system that says the same."""


class Hdfs(HdfsFileSystem):
    """A filesystem of fsspec whose files appear with their whole content, durable on the disks of datanodes.

    Durable is what `hsync` promises: each datanode of the last block has called fsync. Blocks before the last one of a
    file are durable if the datanodes have `dfs.datanode.synconclose`.
    """

    cachable = False
    has_directories = True
    """Empty directories remain, and are listed."""

    def __init__(self, host: str | None = None, port: int | None = None, **options: Any) -> None:
        """Open no connection yet. Without a host, the client uses `fs.defaultFS` of its configuration."""
        super().__init__(host, port, **options)
        configured = (os.environ.get("HADOOP_CONF_DIR"), os.environ.get("HADOOP_HOME"))
        self.client = CLIENTS.setdefault((os.getpid(), host, port, configured), _TellingClient(self.client))

    @classmethod
    def of(cls, authority: str) -> Hdfs:
        """Open the filesystem of `host:port`, of a name service, or, if empty, of the client's configuration.

        Raises `ConfigurationError` if the client finds no namenode.
        """
        host, _, port = authority.partition(":")
        try:
            return cls(host or None, int(port) if port else None)
        except (OSError, RuntimeError) as error:
            raise told(error) from error

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        # Not urlparse, as the client's own class: a name may contain `;`, `#` and `?`.
        below = re.sub(r"^hdfs://[^/]*", "", path)
        return f"/{below.strip('/')}"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Create a file with its content; `create` raises `FileExistsError` if there is one.

        If a response was lost, a repeated rename finds its own result. Then only the content tells who was first:
        `create` leaves that question to its caller.
        """
        path = self._strip_protocol(path)
        stem = posixpath.splitext(posixpath.basename(path))[0]
        temporary = f"{posixpath.dirname(path)}/.tmp-{stem}-{uuid.uuid4().hex}"
        try:
            self._write(temporary, [value])
            try:
                self.client.rename(temporary, path, mode != "create")
            except FileNotFoundError:
                if not self._there(path):
                    raise
                if mode == "create" or self.cat_file(path) != value:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        except BaseException:
            with suppress(Exception):
                self.client.delete(temporary, False)
            raise

    def _there(self, path: str) -> bool:
        try:
            self.client.get_file_info(path)
        except FileNotFoundError:
            return False
        return True

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Copy a file of this host, durably."""
        with open(lpath, "rb") as file:
            self._write(self._strip_protocol(rpath), iter(lambda: file.read(_CHUNK), b""))

    def _write(self, path: str, chunks: Iterator[bytes] | list[bytes]) -> None:
        writer = self.client.create(path, WriteOptions(overwrite=True, create_parent=True))
        for chunk in chunks:
            writer.write(chunk)
        writer.hsync()
        writer.close()

    def rm_file(self, path: str) -> None:
        """Remove a file. Raises `FileNotFoundError` if there is none, unlike the client."""
        if not self.client.delete(self._strip_protocol(path), False):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _TellingClient(Client):
    """A client whose errors are `OSError`s of one line: the namenode's contain stack traces of Java."""

    def __init__(self, client: Client) -> None:
        self.inner: Any = _Telling(client.inner)


CLIENTS: dict[object, _TellingClient] = {}
"""One client for each process and cluster, never dropped: a forked process that drops one waits for its threads."""


class _Telling:
    """Calls an object of the client's native part."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            try:
                result = method(*arguments)
                # A listing asks the namenode while it is read.
                result = iter(list(result)) if name == "list_status" else result
            except (OSError, RuntimeError) as error:
                raise told(error) from error
            return _Telling(result) if hasattr(result, "hsync") or hasattr(result, "read_range") else result

        return call


def told(error: OSError | RuntimeError) -> OSError | ConfigurationError:
    """Return an error of the client as an `OSError` with one line of text, or as one of its configuration."""
    if str(error).startswith("InvalidArgument("):
        return ConfigurationError("HDFS cannot be reached", why=str(error), do=CONFIGURE)
    remote = _REMOTE.search(str(error))
    if remote is not None:
        kind = remote[1].rpartition(".")[2].rpartition("$")[2]
        text = remote[2].partition("\\n")[0].replace('\\"', '"')
        return OSError(_NUMBERS.get(kind, errno.EIO), f"{kind}: {text}")
    line = (str(error).splitlines() or [""])[0]
    number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO
    number = errno.EEXIST if isinstance(error, FileExistsError) else number
    # OSError makes the class that the number stands for.
    return OSError(number, line)
