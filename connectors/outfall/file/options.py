"""The options of `FileSink`."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from outfall.errors import ConfigurationError
from outfall.existing import OnExistingFiles
from outfall.formats import can_grow
from outfall.location import HDFS, REMOTE, Location, Purpose
from outfall.options import Duration, SinkOptions, parse_pairs
from outfall.storage.names import within_own
from outfall.storage.options import StorageOptions
from outfall.urls import split_url

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")


_TARGET = Purpose(
    "path",
    REMOTE,
    "is not supported, because it may not publish a file atomically",
    f"give a path on a disk that all hosts share, a file: URI, or a URL with one of {', '.join(REMOTE)}",
)

_OF_SPARK = ("avro", "orc", "parquet")
"""Formats that Spark's writer may write. Outfall is faster with lines of text."""
_NOT_OF_SPARK = ("roll_bytes", "roll_interval", "directory_pattern")


class _DirectoryOptions(SinkOptions):
    """Where files go. A separate base class, so that these options come first in the documentation."""

    path: str = Field(
        description="The directory to write to: a path, a `file:` URI, or for whole files a URL of an object store"
        " (`s3`, `gs`, `abfs`, …) or of HDFS (`hdfs`). The driver and all executors must share it. A"
        " relative path becomes absolute when the sink is constructed."
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="The number of growing files to which rows are appended, routed by key (Python API only). Without"
        " it, the sink writes whole files and publishes them when their epoch is committed.",
    )
    on_existing: OnExistingFiles = Field(
        default="error",
        description="What to do if the directory holds data on the first run: `error` rejects it, `resume` keeps the"
        " data and adds to it, `overwrite` deletes the visible files.",
    )
    on_rewind: Literal["error", "truncate"] = Field(
        default="error",
        description="What to do if the directory holds later epochs than the recovery log, for example after a"
        " checkpoint was restored from an older copy: `error` fails, `truncate` rolls back the rows of later epochs.",
    )

    roll_bytes: ByteSize | None = Field(
        default=None,
        description="The size at which a file is closed and a new one begins: bytes, or a string such as `128 MiB`."
        " Files end at the end of an Arrow batch, so they may exceed the size by one batch.",
    )
    roll_interval: Duration | None = Field(
        default=None,
        description="The age at which a file is closed: seconds, or a string such as `1 hour`. The age is checked when"
        " new rows arrive.",
    )

    writer: Literal["outfall", "spark"] = Field(
        default="outfall",
        description="Who encodes the rows of whole files on a disk or in HDFS: `outfall` in Python, or `spark`, whose"
        " own writer writes Parquet, ORC or Avro as `df.write` does (Python API only).",
    )
    writer_options: dict[str, str] = Field(
        default={},
        description="The options of Spark's writer, such as `maxRecordsPerFile`: a mapping, or a JSON object as a"
        " string. Without secrets.",
    )

    @field_validator("writer_options", mode="before")
    @classmethod
    def _texts_of_writer(cls, value: Any) -> Any:
        try:
            return parse_pairs(value)
        except ValueError:
            raise ValueError("must be a mapping of names to values, or a JSON object as a string") from None

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
            raise ValueError("must be a string if it is a URL: pathlib removes one of its slashes")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("must be valid UTF-8, because it is recorded") from error
        found = _url(text) if is_remote(text) else absolute_path(text)
        if own := within_own(found):
            raise ValueError(f"is in {own}, where a sink keeps its own files, and which readers skip")
        return found

    @property
    def remote(self) -> Location | None:
        """The location in an object store or in HDFS; `None` for a path on a disk."""
        return Location.parse(self.path, _TARGET) if is_remote(self.path) else None


class FileOptions(StorageOptions, _DirectoryOptions):
    """The options of `FileSink`, in its constructor and as Spark options."""

    max_open_files: int = Field(
        default=256,
        ge=1,
        description="Whole files: the maximum number of file descriptors per task, for any number of partition"
        " directories.",
    )

    @model_validator(mode="after")
    def _may_grow(self) -> Self:
        if self.parts is not None and is_remote(self.path):
            raise ValueError("parts needs files that can grow, and object stores and HDFS have none: leave parts out")
        if self.parts is not None and (self.partition_by or self.directory_pattern):
            raise ValueError("partition_by and directory_pattern are for whole files: leave parts out")
        if self.parts is not None and not can_grow(self):
            raise ValueError(
                f"parts needs files that can grow, and a {self.format} file ends with a footer: leave parts out to"
                " write whole files"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_writer(self) -> Self:
        if not self.by_spark:
            if self.writer_options:
                if self.format in _OF_SPARK:
                    raise ValueError('writer_options are those of Spark\'s writer: pass writer="spark"')
                raise ValueError(
                    f"writer_options are those of Spark's writer, for {', '.join(_OF_SPARK)}: leave writer_options out"
                )
            return self
        if self.parts is not None:
            raise ValueError("parts needs files that can grow, and Spark's writer writes whole files: leave parts out")
        if self.remote is not None and self.remote.scheme != HDFS:
            raise ValueError("Spark's writer needs a disk that all hosts share, or HDFS: leave writer out")
        if self.format not in _OF_SPARK:
            raise ValueError(
                f'writer="spark" is for {", ".join(_OF_SPARK)}, but the format is {self.format}: leave out'
                " writer and writer_options. For options that only Spark has for JSON and CSV, write the column that"
                ' to_json or to_csv returns with format="text"'
            )
        for name in _NOT_OF_SPARK:
            if getattr(self, name) is not None:
                do = "leave it out; writer_options={'maxRecordsPerFile': …} bounds files"
                raise ValueError(f'{name} is not for writer="spark": {do}')
        if {"path", "compression"} & {name.lower() for name in self.writer_options}:
            raise ValueError("writer_options must not have path and compression, which the sink's own options set")
        return self

    @property
    def by_spark(self) -> bool:
        return self.writer == "spark"


def is_remote(path: str) -> bool:
    """Return whether a path is the URL of an object store or of HDFS."""
    scheme = _SCHEME.match(path)
    return scheme is not None and scheme[1].lower() in REMOTE


def _url(text: str) -> str:
    try:
        return Location.parse(text, _TARGET).url()
    except ConfigurationError as error:
        raise ValueError(error.what) from error


def absolute_path(text: str | bytes) -> str:
    """Make a path or a `file:` URI absolute. Raises `ValueError` if it is empty or has another scheme or host."""
    text = os.fsdecode(text)
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    scheme = _SCHEME.match(text)
    if text.lower().startswith("file:"):
        text = _local(text[len("file:") :])
    elif scheme:
        raise ValueError(f"the scheme {scheme[1]}: is not supported; use a path, file:, {', '.join(REMOTE)}")
    if not text:
        raise ValueError("must not be empty")
    # abspath keeps two leading slashes, because POSIX allows them a meaning of their own.
    return "/" + os.path.abspath(text).lstrip("/")


def _local(rest: str) -> str:
    """Return the path of a `file:` URI without decoding: Hadoop does not decode `%20` either."""
    if not rest.startswith("/"):
        raise ValueError("a file: URI must contain an absolute path")
    if not rest.startswith("//"):
        return rest
    host = split_url(f"file:{rest}").netloc
    if host not in ("", "localhost"):
        raise ValueError("a file: URI must not name another host; use a path that is mounted on every host")
    return rest[2 + len(host) :]
