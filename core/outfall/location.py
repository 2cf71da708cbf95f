"""Parses and normalizes locations on disks and in object stores."""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from outfall.errors import ConfigurationError
from outfall.urls import masked

LOCAL = "file"

OBJECT_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "az": "az",
    "memory": "memory",
}
"""Schemes of object stores → their canonical scheme."""

HDFS = "hdfs"

REMOTE = {**OBJECT_STORES, HDFS: HDFS}
"""Schemes of filesystems that are not on a disk of this host → their canonical scheme."""

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", HDFS: "outfall[hdfs]"}
"""Scheme → what pip must install for it."""

# Not urlsplit: Hadoop takes `%20`, `?` and `#` in a checkpoint location literally.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_ROOTLESS = {"memory", HDFS}
"""Schemes whose URLs may omit the host. HDFS then uses the configured cluster."""
_WITH_CONTAINER = {"abfs", "abfss", "az"}


@dataclass(frozen=True)
class Purpose:
    """The purpose of a location."""

    what: str
    """The name of such a location in error texts."""
    schemes: Mapping[str, str]
    """The supported schemes → their canonical scheme."""
    why_not: str
    """What the other schemes lack, as the text after their name."""
    use_instead: str
    """The remedy for another scheme."""


class UnsupportedSchemeError(ConfigurationError):
    """The scheme of a location does not fit its purpose."""


@dataclass(frozen=True)
class Location:
    """A directory of a filesystem. Equal locations have equal texts."""

    scheme: str
    """`LOCAL`, or a value of the purpose's `schemes`."""
    path: str
    """An absolute path if local, otherwise the part after `scheme://`."""

    @classmethod
    def parse(cls, text: str, purpose: Purpose) -> Location:
        """Parse an absolute path or a URL.

        Raises `ConfigurationError` if the location is relative, contains credentials, or does not fit the purpose.
        """
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            safe = masked(text) if isinstance(text, str) else text
            raise ConfigurationError(f"{safe!r} is not a {purpose.what}", do="give an absolute path or a URL")
        match = _URL.fullmatch(text)
        if match is None:
            return _local(os.path.expanduser(text), text, purpose)
        scheme, rest = match[1].lower(), match[2]
        if scheme == LOCAL:
            return _local(_without_host(rest, text, purpose), text, purpose)
        return _remote(scheme, rest, text, purpose)

    def url(self) -> str:
        """Return the text that `parse` turns into an equal location."""
        return self.path if self.scheme == LOCAL else f"{self.scheme}://{self.path}"

    def child(self, *names: str) -> str:
        """Return the path of a descendant in the form that the filesystem expects."""
        # A bucket is a part of the path. A namenode is not.
        base = f"/{self.path.partition('/')[2]}" if self.scheme == HDFS else self.path
        return "/".join([base.rstrip("/"), *names])


def _local(path: str, text: str, purpose: Purpose) -> Location:
    if not path.startswith("/"):
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} is relative",
            why="driver, executors and the next run may have different working directories",
            do="give an absolute path or a URL",
        )
    return Location(LOCAL, "/" + os.path.normpath(path).lstrip("/"))


def _without_host(rest: str, text: str, purpose: Purpose) -> str:
    """Return the path in the text after `file:`."""
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} names a host", do="write file:///path, with three slashes"
        )
    return slash + path


def _remote(scheme: str, rest: str, text: str, purpose: Purpose) -> Location:
    if scheme not in purpose.schemes:
        raise UnsupportedSchemeError(
            f"the {purpose.what} {masked(text)!r} is not supported",
            why=f"{scheme}: {purpose.why_not}",
            do=purpose.use_instead,
        )
    if not rest.startswith("//"):
        raise ConfigurationError(f"the {purpose.what} {masked(text)!r} has no '//'", do=f"write {scheme}://…")
    _refuse_secrets(scheme, rest, text, purpose)
    if "::" in rest:
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} contains '::'",
            why="fsspec interprets the two sides of it as chained filesystems",
            do="use a directory without '::' in its path",
        )
    root, _, path = rest[2:].partition("/")
    if not root and purpose.schemes[scheme] not in _ROOTLESS:
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} names no bucket or container", do=f"write {scheme}://bucket/path"
        )
    # Normalized below the root, so that `..` never leads to another bucket.
    below = posixpath.normpath(f"/{path}").strip("/")
    if ":" in below and purpose.schemes[scheme] == HDFS:
        raise ConfigurationError(
            f"the {purpose.what} {text!r} has a colon in its path",
            why="HDFS allows none",
            do="give another directory",
        )
    if not root and purpose.schemes[scheme] == HDFS:
        return Location(HDFS, f"/{below}")
    return Location(purpose.schemes[scheme], posixpath.join(root, below).rstrip("/"))


def _refuse_secrets(scheme: str, rest: str, text: str, purpose: Purpose) -> None:
    """Keep secrets out of logs, pickles and records. The user in `abfss://container@account` is not a secret."""
    root = rest[2:].partition("/")[0]
    # A secret may contain a slash, so the text after a colon does not necessarily end with the root.
    secret = ":" in root and ("@" in rest or not (scheme == HDFS or root.startswith("arn:")))
    if secret or ("@" in root and scheme not in _WITH_CONTAINER) or "?" in rest or "#" in rest:
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} contains credentials or a query",
            why="locations are written to logs and records",
            do="remove them, and provide credentials in the filesystem's environment or in fsspec's configuration",
        )
