"""HDFS as fsspec knows filesystems, by hdfs-native: a client in Rust that needs neither Java nor a Hadoop distribution.

A file appears in HDFS when it is opened, empty, and its length is known only after it is closed. So a small file is
written under a hidden name and renamed, which the namenode does atomically and, on request, without replacing a file.
The client finds namenodes, HA and Kerberos in the configuration of `HADOOP_CONF_DIR` or `HADOOP_HOME`. In a container
of YARN, it uses the user and, without these variables, the configuration that Spark has there.
"""

from __future__ import annotations

import errno
import os
import posixpath
import queue
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree

from hdfs_native import Client, WriteOptions
from hdfs_native.fsspec import HdfsFileSystem

from outfall.errors import ConfigurationError
from outfall.trace_points import reached

CONFIGURE = "name a namenode in the URL, or set HADOOP_CONF_DIR to the directory of core-site.xml and hdfs-site.xml"
_CHUNK = 8 * 1024 * 1024
_PATIENCE = 300.0
"""Seconds for an answer. The client itself waits forever for a namenode that accepts connections and is stopped.

Longer than its own attempts to find a namenode: three minutes with the defaults of `dfs.client.failover.*`.
"""
_WRITES = 4
"""How often a file is written, if datanodes fail, or if others remove a hidden one before it is renamed."""
_PROVIDER = "dfs.client.failover.proxy.provider."
_OF_THE_ACTIVE = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
_TEMPORARY = re.compile(r"\.tmp-(.+)-[0-9a-f]{32}")
_CONF_OF_SPARK = "__spark_conf__/__hadoop_conf__"
"""Where Spark unpacks the client's configuration of Hadoop, in the working directory of each container."""

# The client reports an error of the namenode as the text of a Rust value.
_REMOTE = re.compile(r'RPCError\("([\w.$]+)", "(.*)"\)', re.DOTALL)

_NUMBERS = {
    "AccessControlException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "FSLimitException": errno.ENAMETOOLONG,
    "PathComponentTooLongException": errno.ENAMETOOLONG,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "ParentNotDirectoryException": errno.ENOTDIR,
}
"""Exceptions of the namenode → the equivalent error of the operating system."""


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
        _do_as_spark()
        super().__init__(host, port, **_never_from_observers(), **options)
        configured = (os.environ.get("HADOOP_CONF_DIR"), os.environ.get("HADOOP_HOME"))
        # A client that waits for an answer may do so forever, and makes later calls wait for its connection.
        key = (os.getpid(), host, port, configured, len(UNANSWERED))
        self.client = CLIENTS.setdefault(key, _TellingClient(self.client))

    @classmethod
    def of(cls, authority: str) -> Hdfs:
        """Open the filesystem of `host:port`, of a name service, or, if empty, of the client's configuration.

        Raises `ConfigurationError` if the client finds no namenode.
        """
        host, _, port = authority.partition(":")
        try:
            return cls(host or None, int(port) if port else None)
        except (OSError, RuntimeError) as error:
            raise translated(error) from error

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        # Not urlparse, as the client's own class: a name may contain `;`, `#` and `?`.
        below = re.sub(r"^hdfs://[^/]*", "", path)
        return f"/{below.strip('/')}"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Create a file with its content; `create` raises `FileExistsError` if there is one.

        If the response to a rename was lost, a repeated one finds its own result. Then only the content tells who was
        first: `create` leaves that question to its caller.
        """
        path = self._strip_protocol(path)
        for left in reversed(range(1 if mode == "create" else _WRITES)):
            try:
                self._create_hidden_and_rename(path, value, replace=mode != "create")
            except FileNotFoundError:
                there = self._there(path)
                if there and mode == "create":
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
                if there and self.cat_file(path) == value:
                    return
                # A clean-up may have taken the hidden file of this writer for one of a writer that died.
                if not left:
                    raise
            else:
                return

    def _create_hidden_and_rename(self, path: str, value: bytes, *, replace: bool) -> None:
        temporary = _temporary_name(path)
        try:
            self._write(temporary, lambda: [value])
            reached("hdfs: written")
            self.client.rename(temporary, path, replace)
            reached("hdfs: renamed")
        except BaseException:
            # A rename that is executed late finds nothing.
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

        def chunks() -> Iterator[bytes]:
            with open(lpath, "rb") as file:
                yield from iter(lambda: file.read(_CHUNK), b"")

        self._write(self._strip_protocol(rpath), chunks)

    def _write(self, path: str, chunks: Callable[[], Iterable[bytes]]) -> None:
        """Write a file with a name of its own.

        For minutes the namenode offers a datanode that has died, and the client, unlike Java's, does not request
        others. So the file is written again from the start, unless it was removed.
        """
        for left in reversed(range(_WRITES)):
            # Not the client's own object, which closes the file once more when Python frees it, whenever that is.
            writer = self.client.inner.create(path, WriteOptions(overwrite=True, create_parent=True))
            try:
                for chunk in chunks():
                    writer.write(chunk)
                writer.hsync()
                writer.close()
            except OSError as error:
                if not left or not _is_of_a_datanode(error) or not self.client.delete(path, False):
                    raise
            else:
                return

    def rm_file(self, path: str) -> None:
        """Remove a file. Raises `FileNotFoundError` if there is none, unlike the client."""
        if not self.client.delete(self._strip_protocol(path), False):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _temporary_name(path: str) -> str:
    stem = posixpath.splitext(posixpath.basename(path))[0]
    return f"{posixpath.dirname(path)}/.tmp-{stem}-{uuid.uuid4().hex}"


def meant_by(name: str) -> str | None:
    """Return what a file was to be named, without its extension, before its writer died; `None` for other files."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else match[1]


def _never_from_observers() -> dict[str, str]:
    """Return settings that let the client ask the active namenode alone.

    A new client that is configured for observers gets listings that lack what others have written before.
    """
    return {name: _OF_THE_ACTIVE for name in _configured_names() if name.startswith(_PROVIDER)}


def _configured_names() -> Iterator[str]:
    """Yield the names of the settings that the client finds."""
    directory = os.environ.get("HADOOP_CONF_DIR") or f"{os.environ.get('HADOOP_HOME', '')}/etc/hadoop"
    for path in [f"{directory}/{file}" for file in ("core-site.xml", "hdfs-site.xml")]:
        try:
            root = ElementTree.parse(path).getroot()  # noqa: S314 - the configuration of this host
        except FileNotFoundError:
            continue
        except ElementTree.ParseError as error:
            raise ConfigurationError(
                f"{path} cannot be read", why=str(error), do="write it as XML without entities of other files"
            ) from error
        yield from (name.strip() for setting in root.iter("property") if (name := setting.findtext("name")))


def _do_as_spark() -> None:
    """Set the variables of the client as Spark's own client of HDFS does in this process, unless they are set.

    A container of YARN runs as the user of the node manager, and Spark writes as the user who submitted the job.
    """
    user = os.environ.get("SPARK_USER")
    if user:
        os.environ.setdefault("HADOOP_USER_NAME", user)
    if "HADOOP_HOME" not in os.environ and os.path.isdir(_CONF_OF_SPARK):
        os.environ.setdefault("HADOOP_CONF_DIR", os.path.abspath(_CONF_OF_SPARK))


class _TellingClient(Client):
    """A client whose errors are `OSError`s of one line: the namenode's contain stack traces of Java."""

    def __init__(self, client: Client) -> None:
        self.inner: Any = _Telling(client.inner)


CLIENTS: dict[object, _TellingClient] = {}
"""One client for each process and cluster, never dropped: a forked process that drops one waits for its threads."""

UNANSWERED: list[str] = []
"""Calls that got no answer in time."""


class _Telling:
    """Calls an object of the client's native part."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            try:
                # A listing asks the namenode while it is read.
                result = _answer(
                    name, (lambda *given: iter(list(method(*given)))) if name == "list_status" else method, arguments
                )
            except (OSError, RuntimeError) as error:
                raise translated(error) from error
            return _Telling(result) if hasattr(result, "hsync") or hasattr(result, "read_range") else result

        return call


def _is_of_a_datanode(error: OSError) -> bool:
    """Whether the namenode has not reported why nothing was written."""
    return error.errno == errno.EIO and _REMOTE.search(str(error.__cause__)) is None


def _answer(name: str, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call in a thread that is abandoned if there is no response in time."""
    if sys.is_finalizing():
        # Objects that Python frees last may call this. Before Python 3.12, it would wait forever
        # for a thread that starts now.
        raise OSError(errno.ECANCELED, f"{name} is not sent to HDFS, because the interpreter is shutting down")
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((method(*arguments), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=ask, name=f"outfall-hdfs-{name}", daemon=True).start()
    try:
        result, error = answers.get(timeout=_PATIENCE)
    except queue.Empty:
        UNANSWERED.append(name)
        text = f"HDFS did not respond to {name} within {_PATIENCE:g} s; stop or fence a namenode that hangs"
        raise TimeoutError(errno.ETIMEDOUT, text) from None
    if error is not None:
        raise error
    return result


def translated(error: OSError | RuntimeError) -> OSError | ConfigurationError:
    """Return an error of the client as an `OSError` with one line of text, or as one of its configuration."""
    if isinstance(error, TimeoutError) and error.errno:
        return error
    if isinstance(error, NotImplementedError):
        return ConfigurationError(
            "the directory in HDFS is erasure coded",
            why=f"{error}, so that nothing can be written durably",
            do="hdfs ec -setPolicy -replicate -path DIRECTORY, or give another directory",
        )
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
    # OSError creates the subclass for the number.
    return OSError(number, line)
