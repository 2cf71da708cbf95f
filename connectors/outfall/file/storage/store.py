"""`FileStore`: a target's directory, on a disk or in an object store, with its markers and what is staged in it."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.storage.marker import StepMarker, missing_marker, unreadable_marker, unshared
from outfall.storage.names import SIDECAR, AttemptName, is_hidden
from outfall.target_record import TargetRecord
from outfall.trace_points import reached

STAGING = f"{SIDECAR}/staging"
"""Whole files that are written and not published."""


class FileMarker(StepMarker):
    """A marker of files: one line of JSON."""

    # A newer release may have added what would be lost here.
    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    ready: bool = True
    """Whether what stood here before was deleted, where that is to be done after the marker is written."""

    @classmethod
    def of(cls, context: TargetContext[Any], **more: Any) -> Self:
        # Short enough for a line that is written in one piece.
        return super().of(context, step=context.step_id[:40], host=socket.gethostname(), **more)

    @classmethod
    def parse(cls, line: str | bytes, path: str) -> Self:
        """Read a line.

        Raises:
            TargetLostError: it says nothing; `path` is where it was found.
        """
        try:
            return cls.model_validate_json(line)
        except ValidationError as error:
            raise unreadable_marker(path, "it was damaged, or written by a newer release") from error

    def line(self) -> str:
        """Return the marker as a line of JSON, its fields in the order that they always had."""
        names = ("incarnation", "step", "host", "created", "generation", "epoch", "token", "ready")
        return json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)


class StagedFile(BaseModel):
    """A file that is written, durable and not yet published."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its name, in staging and once it is published."""
    size: int = Field(ge=0)
    """Its length in bytes, so that a loss is seen before it is published."""
    rows: int = Field(ge=0)
    bucket: str = ""
    """The directory below the root that it is published into; empty for the root itself."""

    @property
    def path(self) -> str:
        """Where it is published, relative to the root."""
        return f"{self.bucket}/{self.name}" if self.bucket else self.name


class FileStore(ABC):
    """A directory. Made anew on the driver and in each task. Paths are relative to it, unless they are said not to be.

    A whole file's name belongs to one attempt and is never used twice, so each step here may be repeated.
    """

    root: str
    """The directory, for texts."""
    parallel: int = 1
    """How many files are published at once."""
    publishes_by_copy: bool = False
    """Whether a file that is being published is for a while in both places."""
    scratch_is_staging: bool = True
    """Whether `scratch` is already the place that must not lose the file."""
    share: str
    """How driver and tasks come to see the same directory, for texts."""

    @property
    def staging(self) -> str:
        """Where what is staged lies, for texts."""
        return f"{self.root}/{STAGING}"

    # --- files

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return a file's length in bytes; `None` when there is no file."""

    @abstractmethod
    def remove(self, path: str) -> bool:
        """Remove a file; return whether it was there. Durable after `sync`."""

    def sync(self, directories: Iterable[str]) -> None:
        """Make durable, in this order, which names there are in some directories."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; none where there is no directory."""

    @abstractmethod
    def files(self) -> Iterator[str]:
        """Yield all files that readers see."""

    # --- writing, in tasks

    @abstractmethod
    def scratch(self, name: str) -> str:
        """Return the absolute path, on a disk of this host, that a file is written to; its directory exists."""

    @abstractmethod
    def stage(self, name: str, fd: int) -> None:
        """Make a written file durable in staging. Called with its open descriptor, once, after the last byte.

        Its name is durable after `sync`.
        """

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove what an attempt that failed has written, as far as that is possible. Raises nothing."""

    def release(self) -> None:
        """Give up what this process keeps for its files. Called once, at the end of an attempt."""

    # --- publishing, on the driver

    @abstractmethod
    def publishing(self, context: CommitterInitContext, files: Sequence[StagedFile]) -> AbstractContextManager[object]:
        """Say durably, before the first file of an epoch is published, how far publishing came.

        From then to its end it keeps those away who overwrite the directory; or where there are no locks, it looks at
        the end whether somebody did.

        Raises:
            TargetLostError: the marker is gone; nothing may be published, or what was published is taken back.
            FencedError: another driver has opened the directory since; nothing may be published.
        """

    @abstractmethod
    def publish(self, file: StagedFile) -> None:
        """Make a staged file appear, whole, under its published path, and leave staging. May be called in threads.

        Raises:
            FileNotFoundError: it is not staged, or no longer.
        """

    def staged_names(self) -> list[AttemptName]:
        """Return what is staged, by whomever."""
        return [name for name in map(AttemptName.parse, self.names(STAGING)) if name is not None]

    def unstage(self, name: object) -> bool:
        """Remove a staged file; return whether it was there."""
        return self.remove(f"{STAGING}/{name}")

    def unpublish(self, paths: Sequence[str]) -> None:
        """Remove published files, durably."""
        for path in paths:
            self.remove(path)
            reached("file: publication taken back")
        self.sync({path.rpartition("/")[0] for path in paths})

    # --- possession

    def marker_path(self, incarnation: str) -> str:
        """Return where a step's marker is, for texts."""
        return f"{self.root}/{SIDECAR}/{incarnation}.json"

    def markers(self) -> list[str]:
        """Return the incarnations of all steps that write here, or did."""
        return sorted(name.removesuffix(".json") for name in self.names(SIDECAR) if is_marker(name))

    def has_marker(self, incarnation: str) -> bool:
        """Whether a step has opened this directory."""
        return self.size(f"{SIDECAR}/{incarnation}.json") is not None

    @abstractmethod
    def read_marker(self, incarnation: str) -> FileMarker | None:
        """Return a step's marker, `None` when there is none.

        Raises:
            TargetLostError: it cannot be read.
        """

    def records(self, marker: FileMarker) -> list[TargetRecord]:
        """Return what is said of a step here: under which BEGINs it was opened, and up to which epoch it published.

        More than one BEGIN is there while a driver looks for others where there are no locks.
        """
        return [marker.record]

    @abstractmethod
    def remove_marker(self, incarnation: str) -> None:
        """Remove a step's marker, durably, so that it stops."""

    def check_shared(self, incarnation: str) -> None:
        """Check in a task that it sees the directory that the driver opened.

        Raises:
            UnsharedTargetError: naming this host and the path.
        """
        if not self.has_marker(incarnation):
            raise unshared(self.root, self.marker_path(incarnation), self.share)

    def check_ours(self, incarnation: str, completed: int | None) -> bool:
        """Return whether a step has opened this directory.

        Raises:
            TargetLostError: it has completed an epoch here, and the marker is no longer there.
        """
        found = self.has_marker(incarnation)
        if found or completed is None:
            return found
        raise missing_marker(self.root, self.marker_path(incarnation), completed)

    # --- first contact

    @abstractmethod
    def visible(self) -> Iterator[str]:
        """Yield what readers see, lazily: a caller that needs one name reads one. On a disk also directories."""

    @abstractmethod
    def others_around(self) -> Iterator[str]:
        """Yield the markers of queries that write to a directory below this one, or above it."""

    @abstractmethod
    def has_spark_log(self) -> bool:
        """Whether Spark's own streaming file sink has written here."""


def is_marker(name: str) -> bool:
    """Tell whether a file's name in a sidecar is a marker's."""
    return name.endswith(".json") and not is_hidden(name)
