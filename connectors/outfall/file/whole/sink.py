"""Whole files, hidden until the commit of their epoch: on a disk, and in object stores and HDFS."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outfall.capabilities import CleanUpContext, CommitterInitContext, SupportsCommitter, TargetCheck, TargetContext
from outfall.file.first_contact import check_usable
from outfall.file.options import FileOptions
from outfall.file.possession import FilePort, LocalPort, RemotePort
from outfall.file.stores.disk import translated_errors
from outfall.file.stores.remote import RENAMES, RemoteStore
from outfall.file.stores.store import STAGING, FileRecord, FileStore, StagedFile
from outfall.file.target import Files, LocalFiles
from outfall.file.whole.commit import FileStaging
from outfall.file.whole.writer import WholeFileWriter
from outfall.location import Location
from outfall.possession.possession import FoundRecord, check, open_target
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.storage.commit import StorageCommitter
from outfall.storage.layout import LayoutChange, withdraw_layout
from outfall.storage.names import AttemptName
from outfall.store_errors import Meaning, StoreError
from outfall.trace_points import reached

_PATIENCE = 300.0
"""Seconds for which a task waits for a store that is away. The default of `retry_deadline` elsewhere."""

_retries = RetryLog(logging.getLogger(__name__))


@dataclass(frozen=True)
class FoundDirectory:
    """What was found before BEGIN, and is needed after it."""

    ahead: FoundRecord[FileRecord] | None = None
    """The record, if the directory is ahead of the recovery log."""
    layout: LayoutChange | None = None
    """The change of the layout."""


class WholeFiles(Files, DynamicSink[Any], SupportsCommitter[StagedFile]):
    """Each task writes its own files to staging. The commit of their epoch publishes them."""

    @property
    @abstractmethod
    def store(self) -> FileStore:
        """A new store for the target directory."""

    @abstractmethod
    def port(self, incarnation: str) -> FilePort[Any]:
        """Return the directory as the target of one step."""

    def kind(self) -> str:
        return "file/whole"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> WholeFileWriter:
        context, store = self.writer_context(), self.store
        with translated_errors("opening", store.root):
            # A store that is away costs no attempt, because nothing was written yet.
            retried(
                lambda: store.check_shared(context.incarnation),
                passes=lambda error: isinstance(error, StoreError) and error.meaning is Meaning.TRANSIENT,
                deadline=_PATIENCE,
                log=_retries,
                describe=lambda error: Retry(store.root, "opening", str(error)),
            )
        return WholeFileWriter(store, self.options, context, self.suffix, rolling=self.rolling, buckets=self.buckets)

    def create_committer(self, context: CommitterInitContext) -> StorageCommitter[StagedFile]:
        return StorageCommitter(FileStaging(self.port(context.incarnation), context))

    def committable_serializer(self) -> ModelSerializer[StagedFile]:
        return ModelSerializer(StagedFile)

    def clean_up(self, context: CleanUpContext) -> int:
        store = self.store
        with translated_errors("cleaning up", store.staging):
            removed = 0
            for name in _older(store, context):
                removed += store.clean_up(name)
                reached("file: cleaned up")
        return removed

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        store = self.store
        with translated_errors("reading", store.staging):
            return [f"{store.staging}/{name}" for name in sorted(map(str, _older(store, context)))]

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        with translated_errors("checking", self.options.path):
            port = self.port(context.incarnation)
            ahead = check(port, context)
            layout = self.check_layout(port.store, context, replaces=port.overwrites)
            return TargetCheck({}, FoundDirectory(ahead, layout))

    def open_target(self, context: TargetContext[Any]) -> None:
        found = context.found or FoundDirectory()
        with translated_errors("opening", self.options.path):
            port = self.port(context.incarnation)
            open_target(port, context, found.ahead)
            self.keep_layout(port.store, context, found.layout)

    def withdraw(self, context: CleanUpContext) -> None:
        with translated_errors("leaving", self.options.path):
            port = self.port(context.incarnation)
            withdraw_layout(port.store, context.incarnation)
            port.remove()


def _ours(store: FileStore, incarnation: str) -> list[AttemptName]:
    return [name for name in store.staged_names() if name.incarnation == incarnation]


def _older(store: FileStore, context: CleanUpContext) -> list[AttemptName]:
    """Return the staged files of this incarnation's older generations."""
    return [name for name in _ours(store, context.incarnation) if name.generation < context.generation]


class LocalWholeFiles(LocalFiles, WholeFiles):
    """Whole files on a disk. Locks serialize opening and publishing."""

    innermost = STAGING

    def requires(self) -> Sequence[str]:
        return ("a path that all hosts share, on one filesystem, where rename is atomic",
                "readers that skip names starting with _ or . as Spark's do")  # fmt: skip

    def port(self, incarnation: str) -> LocalPort:
        return LocalPort(self.store, self.options, incarnation)

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        with translated_errors("checking", self.options.path):
            check_usable(self.options.path)
        return super().check_target(context)

    def open_target(self, context: TargetContext[Any]) -> None:
        with translated_errors("opening", self.options.path):
            self.make_directory(context)
        super().open_target(context)

    def withdraw(self, context: CleanUpContext) -> None:
        with translated_errors("leaving", self.options.path), self.store.opening():
            super().withdraw(context)


class RemoteWholeFiles(WholeFiles):
    """Whole files in an object store or in HDFS."""

    def __init__(self, options: FileOptions, location: Location) -> None:
        super().__init__(options)
        self.location = location

    @property
    def store(self) -> RemoteStore:
        return RemoteStore(self.location)

    def port(self, incarnation: str) -> RemotePort:
        return RemotePort(self.store, self.options, incarnation)

    def clean_up(self, context: CleanUpContext) -> int:
        removed, store = super().clean_up(context), self.store
        with translated_errors("cleaning up", store.root):
            unfinished = store.unfinished_records(context.incarnation)
            return removed + sum(store.tidy(path) for path in unfinished)

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        store = self.store
        with translated_errors("reading", store.root):
            unfinished = [f"{store.root}/{path}" for path in store.unfinished_records(context.incarnation)]
        return [*super().find_leftovers(context), *sorted(unfinished)]

    def requires(self) -> Sequence[str]:
        readers = "readers that skip names starting with _ or . as Spark's do"
        if self.location.scheme == "memory":
            return ("driver and tasks in one process, as in tests", readers)
        if self.location.scheme in RENAMES:
            return ("an atomic rename, as by the namenode", readers)
        return ("a strongly consistent store that copies objects atomically", readers)

    def check_connection(self) -> Sequence[str]:
        store = self.store
        with translated_errors("writing to", store.root):
            deletes = store.probe()
        found = "created and removed" if deletes else "created, and not removed: those that are not needed remain,"
        return [f"files can be {found} below {store.root}"]
