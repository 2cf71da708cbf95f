"""`FileStore`: the directory of a target, on a disk or in an object store, with its records and staged files."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outfall.capabilities import TargetContext
from outfall.possession.record import StepRecord, unreadable_record, unshared
from outfall.storage.layout import LAYOUT, DirectoryLayout, layout_path
from outfall.storage.names import BY_SPARK, SIDECAR, AttemptName, is_hidden
from outfall.trace_points import reached

STAGING = f"{SIDECAR}/staging"
"""The directory of whole files that are not published yet."""


class FileRecord(StepRecord):
    """The record of a step in a directory: one line of JSON."""

    # Fields of a newer release would be lost when this one rewrites the record.
    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    ready: bool = True
    """Whether the step has taken possession, in stores where the record is written before that."""

    @classmethod
    def of(cls, context: TargetContext[Any], **more: Any) -> Self:
        # The step id is shortened so that the record fits into one line.
        return super().of(context, step=context.step_id[:40], host=socket.gethostname(), **more)

    @classmethod
    def parse(cls, line: str | bytes, path: str) -> Self:
        """Parse the line of the record at `path`. Raises `TargetLostError` if it cannot be parsed."""
        try:
            return cls.model_validate_json(line)
        except ValidationError as error:
            raise unreadable_record(path, "it was damaged, or written by a newer release") from error

    def line(self) -> str:
        """Return the record as a line of JSON, with a stable order of fields."""
        names = ("incarnation", "step", "host", "created", "generation", "epoch", "token", "ready")
        return json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)

    def opened_by(self, context: TargetContext[Any]) -> Self:
        return super().opened_by(context).model_copy(update={"ready": True})


class StagedFile(BaseModel):
    """A file that is written, durable and not yet published."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its name, in staging and after publication."""
    size: int = Field(ge=0)
    """Its length in bytes, to detect a loss before it is published."""
    rows: int | None = Field(ge=0)
    """`None` if Spark wrote the file, and the format does not record it."""
    bucket: str = ""
    """Its partition directory relative to the root; empty for the root."""

    @property
    def path(self) -> str:
        """Its published path relative to the root."""
        return f"{self.bucket}/{self.name}" if self.bucket else self.name


class FileStore(ABC):
    """A directory. The driver and each task create their own store. Paths are relative unless stated otherwise.

    The name of a whole file belongs to one attempt and is never reused, so each operation can be repeated.
    """

    root: str
    """The directory, for messages."""
    parallel: int = 1
    """The number of files that are published in parallel."""
    publishes_by_copy: bool = False
    """Whether a file exists in staging and under its published path for a moment."""
    scratch_is_staging: bool = True
    """Whether `scratch` is already in staging."""
    share: str
    """How to give driver and tasks access to the same directory, for errors."""

    @property
    def staging(self) -> str:
        """The staging directory, for messages."""
        return f"{self.root}/{STAGING}"

    # --- files

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return a file's length in bytes; `None` if there is no file."""

    @abstractmethod
    def remove(self, path: str) -> bool:
        """Remove a file; return whether it existed. Durable after `sync`."""

    def sync(self, directories: Iterable[str]) -> None:
        """Make the names in some directories durable, in this order."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; empty if it does not exist."""

    @abstractmethod
    def files(self) -> Iterator[str]:
        """Yield all files that are visible to readers."""

    # --- writing, in tasks

    @abstractmethod
    def scratch(self, name: str) -> str:
        """Return the absolute path on a disk of this host to which a file is written. Its directory exists."""

    @abstractmethod
    def stage(self, name: str, fd: int) -> None:
        """Make a written file durable in staging. Called once with its open descriptor, after the last byte.

        Its name is durable after `sync`.
        """

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a file of a failed attempt if possible. Raises nothing."""

    def release(self) -> None:
        """Release local resources. Called once, at the end of an attempt."""

    # --- what Spark's writer leaves, on the driver

    def for_spark(self, path: str) -> str:
        """Return the URL of a path for Spark."""
        raise NotImplementedError

    def tree(self, directory: str) -> list[tuple[str, int]]:
        """Return each file in a directory and below, relative to it, with its length, without hidden files."""
        raise NotImplementedError

    def adopt(self, path: str, to: str, size: int) -> None:
        """Move a file of this length durably. Its name is durable after `sync`. May be called in threads."""
        raise NotImplementedError

    @abstractmethod
    def remove_tree(self, directory: str) -> bool:
        """Remove a directory and all that is in it; return whether it existed. Links are not followed."""

    def opened(self, path: str) -> AbstractContextManager[Any]:
        """Open a file for reading."""
        raise NotImplementedError

    # --- publishing, on the driver

    @abstractmethod
    def publish(self, file: StagedFile) -> None:
        """Move a staged file atomically to its published path. May be called in threads.

        Raises `FileNotFoundError` if it is not staged, or no longer.
        """

    def publish_rest(self, file: StagedFile) -> None:
        """Finish the publication of a file that exists, complete, in staging and under its published path."""
        raise NotImplementedError

    def clean_up(self, name: AttemptName) -> bool:
        """Remove a staged file that will never be published; return whether it was removed."""
        return self.unstage(name)

    def staged_names(self) -> list[AttemptName]:
        """Return the names of all staged files, and of the directories that Spark's writer fills, of all writers."""
        return [name for name in map(AttemptName.parse, self.names(STAGING)) if name is not None]

    def unstage(self, name: object) -> bool:
        """Remove a staged file, or a directory that Spark's writer fills; return whether it existed."""
        path = f"{STAGING}/{name}"
        return self.remove_tree(path) if path.endswith(BY_SPARK) else self.remove(path)

    def unpublish(self, paths: Sequence[str]) -> None:
        """Remove published files, durably."""
        for path in paths:
            self.remove(path)
            reached("file: publication taken back")
        self.sync({path.rpartition("/")[0] for path in paths})

    # --- records

    def record_path(self, incarnation: str) -> str:
        """Return the path of a step's record, for messages."""
        return f"{self.root}/{SIDECAR}/{incarnation}.json"

    def incarnations(self) -> list[str]:
        """Return the incarnations of all steps that write here or have written here."""
        return sorted(name.removesuffix(".json") for name in self.names(SIDECAR) if is_record(name))

    def has_record(self, incarnation: str) -> bool:
        """Whether a step has opened this directory."""
        return self.size(f"{SIDECAR}/{incarnation}.json") is not None

    @abstractmethod
    def read_record(self, incarnation: str) -> FileRecord | None:
        """Return a step's record; `None` if there is none. Raises `TargetLostError` if it cannot be read."""

    @abstractmethod
    def create_record(self, record: FileRecord) -> None:
        """Write the record of a step that has none. Durable when this returns."""

    def remove_record(self, incarnation: str) -> None:
        """Remove a step's record durably, so that its query fails."""
        self.remove(f"{SIDECAR}/{incarnation}.json")
        self.remove(layout_path(incarnation))
        self.sync([SIDECAR])

    # --- the layout

    def read_layout(self) -> bytes | None:
        """Return the layout of the directory; `None` if there is none yet."""
        return self.content(LAYOUT)

    @abstractmethod
    def write_layout(self, data: bytes) -> None:
        """Replace the layout of the directory, durably."""

    def remove_layout(self) -> None:
        """Remove the layout of the directory, durably."""
        self.remove(LAYOUT)
        self.sync([SIDECAR])

    def earlier_layout(self, incarnation: str) -> DirectoryLayout | None:
        """Return the layout that an earlier release stored for a step."""
        return DirectoryLayout.parse(self.content(layout_path(incarnation)))

    def has_files(self) -> bool:
        """Return whether readers find a file with contents."""
        return any(self.size(path) for path in self.files())

    @abstractmethod
    def content(self, path: str) -> bytes | None:
        """Return the bytes of a small file; `None` if there is no file."""

    def check_shared(self, incarnation: str) -> None:
        """Raise `UnsharedTargetError` in a task that has no access to the directory that the driver opened."""
        if not self.has_record(incarnation):
            raise unshared(self.root, self.record_path(incarnation), self.share)

    # --- first contact

    def opening(self) -> AbstractContextManager[object]:
        """Return the lock under which a step takes possession, if there is one."""
        return nullcontext()

    @abstractmethod
    def visible(self) -> Iterator[str]:
        """Yield visible names lazily: a caller that needs one name reads one. On a disk, this includes directories."""

    @abstractmethod
    def others_around(self) -> Iterator[str]:
        """Yield the records of queries that write to a directory below or above this one."""

    @abstractmethod
    def has_spark_log(self) -> bool:
        """Whether Spark's own streaming file sink has written here."""


def is_record(name: str) -> bool:
    """Return whether a file in a sidecar directory is a record."""
    return name.endswith(".json") and not is_hidden(name)
