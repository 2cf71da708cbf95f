"""Places on disks and in object stores: a location's text, understood and normalised."""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from outfall.errors import ConfigurationError

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
"""Schemes of object stores, each with the one it is called by from there on."""

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
"""What fsspec needs to be installed for a scheme."""

# Not urlsplit: Hadoop, whose checkpoint locations these are, takes `%20`, `?` and `#` in a path literally.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BEFORE_AT = re.compile(r"([^:/]*:/{0,2}|//)(.*)@", re.DOTALL)
_PORT = re.compile(r"\[[^\]]*\](:\d{1,5})?|[^:]*:\d{1,5}")
_ROOTLESS = {"memory", "hdfs"}
"""Schemes whose URLs may leave the host out: HDFS then means the cluster that it is configured for."""
_WITH_CONTAINER = {"abfs", "abfss", "az"}


@dataclass(frozen=True)
class Purpose:
    """What locations are wanted for."""

    what: str
    """What such a location is called in texts."""
    schemes: Mapping[str, str]
    """Which schemes will do, each with the one it is called by from there on."""
    why_not: str
    """What other schemes lack, after their name."""
    use_instead: str
    """What to use in their place."""


@dataclass(frozen=True)
class Location:
    """A directory of a filesystem. Equal locations are spelled equally."""

    scheme: str
    """`LOCAL`, or a value of the purpose's `schemes`."""
    path: str
    """Absolute where local; otherwise what follows `scheme://`."""

    @classmethod
    def parse(cls, text: str, purpose: Purpose) -> Location:
        """Understand an absolute path or a URL.

        Raises:
            ConfigurationError: it is relative, carries credentials, or will not do for the purpose.
        """
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            shown = masked(text) if isinstance(text, str) else text
            raise ConfigurationError(f"{shown!r} is not a {purpose.what}", do="give an absolute path or a URL")
        match = _URL.fullmatch(text)
        if match is None:
            return _local(os.path.expanduser(text), text, purpose)
        scheme, rest = match[1].lower(), match[2]
        if scheme == LOCAL:
            return _local(_without_host(rest, text, purpose), text, purpose)
        return _remote(scheme, rest, text, purpose)

    def url(self) -> str:
        """Return the text that `parse` makes an equal location of."""
        return self.path if self.scheme == LOCAL else f"{self.scheme}://{self.path}"

    def child(self, *names: str) -> str:
        """Return the path of something below, as the filesystem wants it."""
        return "/".join([self.path.rstrip("/"), *names])


def _local(path: str, text: str, purpose: Purpose) -> Location:
    if not path.startswith("/"):
        raise ConfigurationError(
            f"the {purpose.what} {text!r} is relative",
            why="driver and executors, and the next run, may have other working directories",
            do="give an absolute path or a URL",
        )
    return Location(LOCAL, "/" + os.path.normpath(path).lstrip("/"))


def _without_host(rest: str, text: str, purpose: Purpose) -> str:
    """Return the path in what follows `file:`."""
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
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} will not do",
            why=f"{scheme}: {purpose.why_not}",
            do=purpose.use_instead,
        )
    if not rest.startswith("//"):
        raise ConfigurationError(f"the {purpose.what} {masked(text)!r} has no '//'", do=f"write {scheme}://…")
    _refuse_secrets(scheme, rest, text, purpose)
    if "::" in rest:
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} holds '::'",
            why="fsspec takes what stands on both sides for two filesystems, one in the other",
            do="name a directory without it",
        )
    root, _, path = rest[2:].partition("/")
    if not root and purpose.schemes[scheme] not in _ROOTLESS:
        raise ConfigurationError(
            f"the {purpose.what} {text!r} names no bucket or container", do=f"write {scheme}://bucket/path"
        )
    # Normalised below the root, so that `..` never leads into another bucket.
    below = posixpath.normpath(f"/{path}").strip("/")
    if not root and purpose.schemes[scheme] == "hdfs":
        return Location("hdfs", f"/{below}")
    return Location(purpose.schemes[scheme], posixpath.join(root, below).rstrip("/"))


def _refuse_secrets(scheme: str, rest: str, text: str, purpose: Purpose) -> None:
    """Keep secrets out of what is logged, pickled and recorded. The user in `abfss://container@account` is none."""
    root = rest[2:].partition("/")[0]
    # A secret may hold a slash, so that what follows a colon is not known to end where the root does.
    secret = ":" in root and ("@" in rest or not (scheme == "hdfs" or root.startswith("arn:")))
    if secret or ("@" in root and scheme not in _WITH_CONTAINER) or "?" in rest or "#" in rest:
        raise ConfigurationError(
            f"the {purpose.what} {masked(text)!r} holds credentials or a query",
            why="locations are written to logs and records",
            do="leave them out and give credentials in the filesystem's own environment or in fsspec's configuration",
        )


def masked(text: str) -> str:
    """Return a location's text without what may be a secret in it: user, password, query, fragment.

    A password may hold a slash: after a name with a colon, unless what follows is a port, all is taken for it up to the
    last `@`.
    """
    found = _BEFORE_AT.match(text)
    if found is not None:
        root, slash, _ = found[2].partition("/")
        if not slash or (":" in root and not _PORT.fullmatch(root)):
            text = f"{found[1]}***@{text[found.end() :]}"
    return re.split(r"[?#]", text)[0]
