"""The options of `FileSink`."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from outfall.encode import FormatOptions, can_grow
from outfall.options import SinkOptions

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")


class _Place(SinkOptions):
    """Where files go. A base of its own, so that its options stand before the formats' in the documentation."""

    path: str = Field(
        description="The directory to write into: a path or a `file:` URI. A relative path is made absolute once, where"
        " the sink is constructed. Driver and executors must all see it."
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

    @field_validator("path", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        if not isinstance(value, str | os.PathLike):
            raise ValueError("must be a path")
        return absolute_path(os.fspath(value))


class FileOptions(FormatOptions, _Place):
    """What `FileSink` takes, in its constructor and as Spark options."""

    @model_validator(mode="after")
    def _may_grow(self) -> Self:
        if self.parts is not None and not can_grow(self):
            raise ValueError(
                f"parts is for files that grow, and a {self.format} file ends with a footer: leave parts out to write"
                " whole files"
            )
        return self


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
        raise ValueError(f"the scheme {scheme[1]}: is not supported; local paths and file: URIs are")
    if not text:
        raise ValueError("must not be empty")
    return os.path.abspath(text)


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
