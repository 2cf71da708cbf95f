"""Whole files, hidden until the commit of their epoch: on a disk, and in object stores and HDFS."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from outfall.capabilities import (
    CleanUpContext,
    CommitterInitContext,
    SupportsCommitter,
    TargetContext,
)
from outfall.errors import FencedError, TargetNotEmptyError
from outfall.file.first_contact import FoundFiles
from outfall.file.options import FileOptions
from outfall.file.storage.disk import explained
from outfall.file.storage.remote import RENAMES, RemoteStore
from outfall.file.storage.store import STAGING, FileMarker, FileStore, StagedFile
from outfall.file.target import AHEAD, Files, LocalFiles
from outfall.file.whole.commit import FileCommitter
from outfall.file.whole.writer import WholeFileWriter
from outfall.location import Location
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.storage.names import SUMMARIES, AttemptName
from outfall.target_record import TargetRecord, check_opening, check_record
from outfall.trace_points import reached

log = logging.getLogger(__name__)


class WholeFiles(Files, DynamicSink[Any], SupportsCommitter[StagedFile]):
    """Each task writes its own files to staging. The commit of their epoch publishes them."""

    _ahead: FileMarker | None = None
    """The marker that `check_target` found to be ahead of the recovery log."""

    @property
    @abstractmethod
    def store(self) -> FileStore:
        """A new store for the target directory."""

    def kind(self) -> str:
        return "file/whole"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> WholeFileWriter:
        context, store = self.bound_context(), self.store
        with explained("opening", store.root):
            store.check_shared(context.incarnation)
        return WholeFileWriter(store, self.options, context, self.suffix, rolling=self.rolling, buckets=self.buckets)

    def create_committer(self, context: CommitterInitContext) -> FileCommitter:
        return FileCommitter(self.store, context)

    def committable_serializer(self) -> ModelSerializer[StagedFile]:
        return ModelSerializer(StagedFile)

    def clean_up(self, context: CleanUpContext) -> int:
        store = self.store
        with explained("cleaning up", store.staging):
            old = _older(store, context)
            for name in old:
                store.unstage(name)
                reached("file: cleaned up")
        return len(old)

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        store = self.store
        with explained("reading", store.staging):
            return [f"{store.staging}/{name}" for name in sorted(map(str, _older(store, context)))]

    def _check_marker(self, found: FileMarker, records: Sequence[TargetRecord], context: TargetContext[Any]) -> None:
        """Reject a marker that contradicts the recovery log; keep one that is ahead if `on_rewind` allows it.

        Epochs that the log has begun to publish are finished before this check.
        """
        later = any(self._may_roll_back(record, context) for record in records)
        self._ahead = found if later else None
        if not later:
            for record in records:
                check_record(self.options.path, record, context, ahead=AHEAD)

    def _roll_back(self, store: FileStore, marker: FileMarker, context: TargetContext[Any]) -> FileMarker:
        """Remove files published after the last completed epoch; return the updated marker."""
        last = -1 if context.completed is None else context.completed
        # Staged files of later attempts could still be published, or could block new files by their names.
        for staged in _ours(store, context.incarnation):
            store.unstage(staged)
        names = ((path, AttemptName.parse(path)) for path in store.files())
        paths = [path for path, name in names if name and name.incarnation == context.incarnation and name.epoch > last]
        store.unpublish(paths)
        log.warning(
            "step %r: on_rewind=truncate deleted %d published files of epochs after %d in %s",
            context.step_id, len(paths), last, self.options.path,
        )  # fmt: skip
        return marker.opened_by(context).rewound(last)


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

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        with explained("checking", self.options.path):
            self._check_place(context)
            found = self.store.read_marker(context.incarnation)
            if found is not None:
                self._check_marker(found, [found.record], context)
        return {}

    def _claim(self, context: TargetContext[Any]) -> None:
        # Files of stale tasks, of a job that was rolled back or a query that was overwritten, are never published.
        store = self.store
        for name in store.staged_names():
            if name.incarnation != context.incarnation and not store.has_marker(name.incarnation):
                store.unstage(name)

    def _enter(self, context: TargetContext[Any]) -> None:
        store = self.store
        with ExitStack() as stack:
            if self._ahead is not None:
                # A publishing driver has already checked its marker. Wait for it, or its files would appear later.
                stack.enter_context(store.nobody_publishing())
            found, replace_marker = stack.enter_context(store.marker_held(context.incarnation))
            if found == self._ahead:
                replace_marker(self._roll_back(store, found, context))
            else:
                check_opening(self.options.path, found.record, context)
                replace_marker(found.opened_by(context))
            reached("file: marker entered")
        self._ahead = None


class RemoteWholeFiles(WholeFiles):
    """Whole files in an object store or in HDFS.

    These systems have no locks. A query that takes possession writes its marker first and then checks for others. If
    two queries open a directory at the same moment, one or both are rejected.
    """

    _seen: Sequence[TargetRecord] = ()
    """The records of drivers that opened the target, as `check_target` found them."""

    def __init__(self, options: FileOptions, location: Location) -> None:
        super().__init__(options)
        self.location = location

    @property
    def store(self) -> RemoteStore:
        return RemoteStore(self.location)

    def requires(self) -> Sequence[str]:
        readers = "readers that skip names starting with _ or . as Spark's do"
        if self.location.scheme == "memory":
            return ("driver and tasks in one process, as in tests", readers)
        if self.location.scheme in RENAMES:
            return ("an atomic rename, as by the namenode", readers)
        return ("a strongly consistent store that copies objects atomically", readers)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        store = self.store
        with explained("checking", store.root):
            found = store.read_marker(context.incarnation)
            if found is None:
                store.check_ours(context.incarnation, context.completed)
            else:
                self._seen = store.records(found)
                self._check_marker(found, self._seen, context)
            # Also if this step's marker exists: the driver that wrote it may have died before this check.
            if context.completed is None:
                self._check_existing(store, context)
        return {}

    def check_connection(self) -> Sequence[str]:
        store = self.store
        with explained("writing to", store.root):
            store.probe()
        return [f"files can be created and removed below {store.root}"]

    def open_target(self, context: TargetContext[Any]) -> None:
        store = self.store
        with explained("opening", store.root):
            found = store.read_marker(context.incarnation)
            if found is None or not found.ready:
                found = self._open_first(store, context)
            self._enter(store, found, context)

    def withdraw(self, context: CleanUpContext) -> None:
        store = self.store
        with explained("leaving", store.root):
            store.remove_marker(context.incarnation)

    def _open_first(self, store: RemoteStore, context: TargetContext[Any]) -> FileMarker:
        reached("file: opening")
        found = store.read_marker(context.incarnation)
        if found is None:
            found = FileMarker.of(context, ready=self.options.on_existing != "overwrite")
            store.write_marker(found)
        reached("file: marker created")
        try:
            self._check_existing(store, context)
        except TargetNotEmptyError:
            store.remove_marker(context.incarnation)
            raise
        if not found.ready:
            found = found.model_copy(update={"ready": True})
            self._delete_existing(store, context)
            store.write_marker(found)
        return found

    def _delete_existing(self, store: RemoteStore, context: TargetContext[Any]) -> None:
        """Delete files of other writers. Files of this step are kept, because another driver may have written them."""
        for incarnation in store.markers():
            if incarnation != context.incarnation:
                # Markers first: a query that is about to publish then finds that its marker is missing, and fails.
                store.remove_marker(incarnation)
        reached("file: others stopped")
        if not store.has_marker(context.incarnation):
            raise TargetNotEmptyError(
                f"another query overwrites {store.root} at the same time",
                step=context.step_id,
                why="each query removed the marker of the other one, and neither has deleted a file since",
                do="run only one of the two queries, or give each query its own path",
            )
        store.delete_spark_log()
        paths = list(FoundFiles(store, self.options, context.incarnation).foreign())
        store.unpublish([*paths, *SUMMARIES])
        if paths:
            log.warning(
                "step %r: on_existing=overwrite deleted %d files in %s", context.step_id, len(paths), store.root
            )

    def _enter(self, store: RemoteStore, marker: FileMarker, context: TargetContext[Any]) -> None:
        """Register this BEGIN at the target, then check for others: two concurrent drivers cannot miss each other.

        If the later data that `check_target` found has not changed since, roll it back.

        Raises:
            FencedError: another driver opened the target in the meantime.
        """
        mine = TargetRecord(context.generation, context.token, marker.record.epoch)
        store.claim(context.incarnation, mine)
        reached("file: claimed")
        others = [record for record in store.records(marker) if record != mine]
        taking_back = self._ahead == marker and self._seen in (others, [marker.record])
        if not taking_back:
            try:
                for record in others:
                    check_opening(store.root, record, context)
            except FencedError:
                store.unclaim(context.incarnation, mine)
                raise
        for record in others:
            store.unclaim(context.incarnation, record)
        if taking_back:
            store.write_marker(self._roll_back(store, marker, context))
        self._ahead = None
