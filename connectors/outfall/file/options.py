"""The options of `FileSink`."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, field_validator, model_validator

from outfall.errors import ConfigurationError
from outfall.formats import can_grow
from outfall.location import OBJECT_STORES, Location, Purpose
from outfall.options import Duration, SinkOptions
from outfall.storage.sink import StorageOptions

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")

_SCHEMES = OBJECT_STORES | {"hdfs": "hdfs"}

_TARGET = Purpose(
    "path",
    _SCHEMES,
    "is not known for publishing a file at once and whole",
    f"give a path on a disk that all hosts share, a file: URI, or a URL with one of {', '.join(_SCHEMES)}",
)


class _DirectoryOptions(SinkOptions):
    """Where files go. A base of its own, so that its options stand before the formats' in the documentation."""

    path: str = Field(
        description="The directory to write into: a path, a `file:` URI, or for whole files a URL of an object store or"
        " of HDFS (`s3`, `gs`, `abfs`, `hdfs`, …). A relative path is made absolute once, where the sink is"
        " constructed. Driver and executors must all see it."
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Without it: whole files, published when their epoch is committed. With it: this many growing files"
        " that rows are appended to, routed by key (`write_stream` and `write` only).",
    )
    on_existing: Literal["error", "resume", "overwrite"] = Field(
        default="error",
        description="What to do on first contact with a directory that holds data: refuse it, keep the data and write"
        " after or beside it, or delete the visible files.",
    )
    on_rewind: Literal["error", "truncate"] = Field(
        default="error",
        description="What to do when the directory holds later epochs than the recovery data, as after a checkpoint"
        " restored from an older copy: refuse, or take the later epochs' rows back.",
    )

    roll_bytes: ByteSize | None = Field(
        default=None,
        description="Close a file once it holds this many bytes, and go on in a new one: a number, or text such as"
        " `128 MiB`. A file ends where an Arrow batch ends, so it may be longer by one.",
    )
    roll_interval: Duration | None = Field(
        default=None,
        description="Close a file that was begun this long ago when the next rows come: seconds, or text such as"
        " `1 hour`. Without rows nothing is closed.",
    )

    @field_validator("roll_bytes")
    @classmethod
    def _some_bytes(cls, value: ByteSize | None) -> ByteSize | None:
        if value is not None and value < 1:
            raise ValueError("must be at least one byte")
        return value

    @field_validator("path", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        if not isinstance(value, str | os.PathLike):
            raise ValueError("must be a path")
        text = os.fsdecode(os.fspath(value))
        if is_remote(text) and not isinstance(value, str):
            raise ValueError("must be text when it is a URL: pathlib takes one of its slashes away")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("must be text in UTF-8, since it is recorded") from error
        return _url(text) if is_remote(text) else absolute_path(text)

    @property
    def remote(self) -> Location | None:
        """Where the files go, unless that is a disk."""
        return Location.parse(self.path, _TARGET) if is_remote(self.path) else None


class FileOptions(StorageOptions, _DirectoryOptions):
    """What `FileSink` takes, in its constructor and as Spark options."""

    max_open_files: int = Field(
        default=256,
        ge=1,
        description="Whole files: how many file descriptors a task uses at most, however many buckets it has open.",
    )

    @property
    def bucket_levels(self) -> int:
        """How many directories lie between the root and a file."""
        return len(self.partition_by) + (self.bucket_pattern.count("/") + 1 if self.bucket_pattern else 0)

    @model_validator(mode="after")
    def _may_grow(self) -> Self:
        if self.parts is not None and is_remote(self.path):
            raise ValueError("parts is for files that grow, which an object store has not: leave parts out")
        if self.parts is not None and (self.partition_by or self.bucket_pattern):
            raise ValueError("partition_by and bucket_pattern are for whole files: leave parts out")
        if self.parts is not None and not can_grow(self):
            raise ValueError(
                f"parts is for files that grow, and a {self.format} file ends with a footer: leave parts out to write"
                " whole files"
            )
        return self


def is_remote(path: str) -> bool:
    """Tell whether a path is the URL of an object store or of HDFS."""
    scheme = _SCHEME.match(path)
    return scheme is not None and scheme[1].lower() in _SCHEMES


def _url(text: str) -> str:
    try:
        return Location.parse(text, _TARGET).url()
    except ConfigurationError as error:
        raise ValueError(error.what) from error


def absolute_path(text: str | bytes) -> str:
    """Return the absolute path behind a path or a `file:` URI.

    Raises:
        ValueError: another scheme, another host, or no path at all.
    """
    text = os.fsdecode(text)
    if "\0" in text:
        raise ValueError("must not hold a NUL character")
    scheme = _SCHEME.match(text)
    if text.lower().startswith("file:"):
        text = _local(text[len("file:") :])
    elif scheme:
        raise ValueError(f"the scheme {scheme[1]}: is not supported; a path, file: and {', '.join(_SCHEMES)} are")
    if not text:
        raise ValueError("must not be empty")
    # POSIX lets two slashes at the beginning mean something else, and then they stay.
    return "/" + os.path.abspath(text).lstrip("/")


def _local(rest: str) -> str:
    """The path of a `file:` URI, taken as it is typed: Hadoop does not decode `%20` either."""
    if not rest.startswith("/"):
        raise ValueError("a file: URI must hold an absolute path")
    if not rest.startswith("//"):
        return rest
    host = urlsplit(f"file:{rest}").netloc
    if host not in ("", "localhost"):
        raise ValueError(f"a file: URI cannot name the host {host!r}; use a path that is mounted on every host")
    return rest[2 + len(host) :]
