"""Where a log can lie: a location's text, understood and normalised."""

from __future__ import annotations

import os.path
import posixpath
import re
from dataclasses import dataclass

from outfall.errors import ConfigurationError

LOCAL = "file"

SCHEMES = {
    "memory": "memory",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "az": "az",
}
"""The object stores that a log can lie in, each with the scheme it is called by from there on."""

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
"""What fsspec needs to be installed for a scheme."""

USE_INSTEAD = (
    "give recovery= an absolute path on a POSIX filesystem that driver and executors share and that has hard links"
    f" (NFS does), or a URL of an object store: {', '.join(f'{scheme}://' for scheme in SCHEMES if scheme != 'memory')}"
)

# Not urlsplit: Hadoop, whose checkpoint locations these are, takes `%20`, `?` and `#` in a path literally.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_CREDENTIALS = re.compile(r"//[^/]*@")
_WITH_CONTAINER = {"abfs", "abfss", "az"}


@dataclass(frozen=True)
class Location:
    """A directory of a filesystem. Equal locations are spelled equally."""

    scheme: str
    """`LOCAL`, or a value of `SCHEMES`."""
    path: str
    """Absolute where local; otherwise what follows `scheme://`."""

    @classmethod
    def parse(cls, text: str) -> Location:
        """Understand an absolute path or a URL.

        Raises:
            ConfigurationError: it is relative, carries credentials, or no log can lie there.
        """
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise ConfigurationError(f"{text!r} is not a recovery location", do="give an absolute path or a URL")
        match = _URL.fullmatch(text)
        if match is None:
            return _local(os.path.expanduser(text), text)
        scheme, rest = match[1].lower(), match[2]
        if scheme == LOCAL:
            return _local(_without_host(rest, text), text)
        return _remote(scheme, rest, text)

    def url(self) -> str:
        """Return the text that `parse` makes an equal location of."""
        return self.path if self.scheme == LOCAL else f"{self.scheme}://{self.path}"

    def child(self, *names: str) -> str:
        """Return the path of something below, as the filesystem wants it."""
        return "/".join([self.path.rstrip("/"), *names])


def _local(path: str, text: str) -> Location:
    if not path.startswith("/"):
        raise ConfigurationError(
            f"the recovery location {text!r} is relative",
            why="driver and executors, and the next run, may have other working directories",
            do="give an absolute path or a URL",
        )
    return Location(LOCAL, "/" + os.path.normpath(path).lstrip("/"))


def _without_host(rest: str, text: str) -> str:
    """Return the path in what follows `file:`."""
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise ConfigurationError(
            f"the recovery location {_masked(text)!r} names a host", do="write file:///path, with three slashes"
        )
    return slash + path


def _remote(scheme: str, rest: str, text: str) -> Location:
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"the recovery location {_masked(text)!r} cannot hold a log",
            why=f"{scheme}: is not known for creating a file exclusively, which all safety stands on",
            do=USE_INSTEAD,
        )
    if not rest.startswith("//"):
        raise ConfigurationError(f"the recovery location {_masked(text)!r} has no '//'", do=f"write {scheme}://…")
    _refuse_secrets(scheme, rest, text)
    root, _, path = rest[2:].partition("/")
    if not root and scheme != "memory":
        raise ConfigurationError(
            f"the recovery location {text!r} names no bucket or container", do=f"write {scheme}://bucket/path"
        )
    # Normalised below the root, so that `..` never leads into another bucket.
    return Location(SCHEMES[scheme], posixpath.join(root, posixpath.normpath(f"/{path}").strip("/")).rstrip("/"))


def _refuse_secrets(scheme: str, rest: str, text: str) -> None:
    """Keep secrets out of what is logged, pickled and recorded. The user in `abfss://container@account` is none."""
    user, at, _ = rest[2:].partition("/")[0].rpartition("@")
    if (at and (":" in user or scheme not in _WITH_CONTAINER)) or "?" in rest or "#" in rest:
        raise ConfigurationError(
            f"the recovery location {_masked(text)!r} holds credentials or a query",
            why="locations are written to logs and records",
            do="leave them out and give credentials in the filesystem's own environment or in fsspec's configuration",
        )


def _masked(text: str) -> str:
    return re.split(r"[?#]", _CREDENTIALS.sub("//***@", text))[0]
