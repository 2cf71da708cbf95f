"""What whole files need of the place where they lie, be it a disk or an object store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import CommitterInitContext
from outfall.file.names import FileName


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
    """Writes files where readers do not look, and publishes them. Made anew on the driver and in each task.

    A name belongs to one attempt and is never used twice, so each step here may be repeated.
    """

    root: str
    """Where readers look, for texts."""
    staging: str
    """Where they do not, for texts."""
    parallel: int = 1
    """How many files are published at once."""
    publishes_by_copy: bool = False
    """Whether a file that is being published is for a while in both places."""
    scratch_is_staging: bool = True
    """Whether `scratch` is already the place that must not lose the file."""

    # --- in tasks

    @abstractmethod
    def check_shared(self, incarnation: str) -> None:
        """Raise `UnsharedTargetError` where a task does not see what the driver opened."""

    @abstractmethod
    def scratch(self, name: str) -> str:
        """Return the path on a disk of this host that a file is written to; its directory exists."""

    @abstractmethod
    def stage(self, name: str, fd: int) -> None:
        """Make a written file durable in staging. Called with its open descriptor, once, after the last byte."""

    @abstractmethod
    def sync_staged(self) -> None:
        """Make the names of all files durable that this task has staged."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove what an attempt that failed has written, as far as that is possible. Raises nothing."""

    def release(self) -> None:
        """Give up what this process keeps for its files. Called once, at the end of an attempt."""

    # --- on the driver

    @abstractmethod
    def advance(self, context: CommitterInitContext) -> None:
        """Say in the marker, durably, before the first file of an epoch is published, how far publishing came.

        Raises:
            TargetLostError: the marker is gone; nothing may be published.
            FencedError: another driver has opened the directory since; nothing may be published.
        """

    def publishing(self) -> AbstractContextManager[object]:
        """Keep those away who overwrite the directory, where there are locks: from before `advance` to the end."""
        return nullcontext()

    def confirm(self, context: CommitterInitContext, files: Sequence[StagedFile]) -> None:
        """Look, where there are no locks, whether the directory was overwritten while these files were published.

        Raises:
            TargetLostError: it was; the files are taken back.
        """

    @abstractmethod
    def staged_size(self, name: str) -> int | None:
        """Return the length of a staged file, `None` for one that is not there."""

    @abstractmethod
    def published_size(self, path: str) -> int | None:
        """Return the length of a published file, `None` for one that is not there."""

    @abstractmethod
    def publish(self, file: StagedFile) -> None:
        """Make a staged file appear, whole, under its published path, and leave staging. May be called in threads.

        Raises:
            FileNotFoundError: it is not staged, or no longer.
        """

    @abstractmethod
    def sync_published(self, files: Sequence[StagedFile]) -> None:
        """Make the publication of these files durable."""

    @abstractmethod
    def unstage(self, name: str) -> bool:
        """Remove a staged file; return whether it was there."""

    @abstractmethod
    def sync_unstaged(self) -> None:
        """Make the removal of staged files durable."""

    @abstractmethod
    def staged_names(self, incarnation: str) -> list[FileName]:
        """Return our files in staging."""

    @abstractmethod
    def published(self, incarnation: str) -> Iterator[tuple[str, FileName]]:
        """Yield our published files: path relative to the root, and name."""

    @abstractmethod
    def unpublish(self, paths: Sequence[str]) -> None:
        """Remove published files, durably."""
