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
    """Each task writes files of its own into staging, and the commit of their epoch publishes them."""

    _ahead: FileMarker | None = None
    """The marker that `check_target` saw to be ahead."""

    @property
    @abstractmethod
    def store(self) -> FileStore:
        """Where the files lie, opened anew."""

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
        with explained("looking into", store.staging):
            return [f"{store.staging}/{name}" for name in sorted(map(str, _older(store, context)))]

    def _check_marker(self, found: FileMarker, records: Sequence[TargetRecord], context: TargetContext[Any]) -> None:
        """Refuse a marker that is not what the recovery data says; remember one that is ahead, if that may be.

        What the recovery data has begun to publish is finished before the target is checked.
        """
        later = any(self._may_roll_back(record, context) for record in records)
        self._ahead = found if later else None
        if not later:
            for record in records:
                check_record(self.options.path, record, context, ahead=AHEAD)

    def _roll_back(self, store: FileStore, marker: FileMarker, context: TargetContext[Any]) -> FileMarker:
        """Remove what was published after the last completed epoch; return the marker that says so."""
        last = -1 if context.completed is None else context.completed
        # Also what a later attempt staged and may yet publish, or would stand in the way of ours by its name.
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
    """Our staged files of older generations."""
    return [name for name in _ours(store, context.incarnation) if name.generation < context.generation]


class LocalWholeFiles(LocalFiles, WholeFiles):
    """Whole files on a disk. What must not happen twice at once is done under a lock."""

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
        # Of late tasks of a job that was taken back, or of a query that was overwritten: nobody can publish them.
        store = self.store
        for name in store.staged_names():
            if name.incarnation != context.incarnation and not store.has_marker(name.incarnation):
                store.unstage(name)

    def _enter(self, context: TargetContext[Any]) -> None:
        store = self.store
        with ExitStack() as stack:
            if self._ahead is not None:
                # Whoever publishes has looked at the marker: it is waited for, or its files would come after this.
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

    There are no locks. What must not happen twice at once, taking possession, is announced first and looked at after:
    of two queries that come at the same moment one or both are refused.
    """

    _seen: Sequence[TargetRecord] = ()
    """What `check_target` saw of who opened the target."""

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
            return ("a rename that is atomic, as the namenode's", readers)
        return ("a store that shows at once what was written, and copies objects whole", readers)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        store = self.store
        with explained("checking", store.root):
            found = store.read_marker(context.incarnation)
            if found is None:
                store.check_ours(context.incarnation, context.completed)
            else:
                self._seen = store.records(found)
                self._check_marker(found, self._seen, context)
            # Until an epoch is completed, also with our marker there: whoever wrote it may have died before this check.
            if context.completed is None:
                self._check_existing(store, context)
        return {}

    def check_connection(self) -> Sequence[str]:
        store = self.store
        with explained("writing to", store.root):
            store.probe()
        return [f"files can be made and removed below {store.root}"]

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
        """Delete what others left. Our own files are spared: another driver of this step may have been faster."""
        for incarnation in store.markers():
            if incarnation != context.incarnation:
                # Markers first: a query that is about to publish finds its marker gone and stops.
                store.remove_marker(incarnation)
        reached("file: others stopped")
        if not store.has_marker(context.incarnation):
            raise TargetNotEmptyError(
                f"another query overwrites {store.root} at the same moment",
                step=context.step_id,
                why="each has removed the other's marker, and neither has deleted a file since",
                do="run one of the two, or give each a path of its own",
            )
        store.delete_spark_log()
        paths = list(FoundFiles(store, self.options, context.incarnation).foreign())
        store.unpublish([*paths, *SUMMARIES])
        if paths:
            log.warning(
                "step %r: on_existing=overwrite deleted %d files in %s", context.step_id, len(paths), store.root
            )

    def _enter(self, store: RemoteStore, marker: FileMarker, context: TargetContext[Any]) -> None:
        """Say that this BEGIN opens the target, and look for others after: of two that do so at once none stays unseen.

        First take back what `check_target` found to be later than the recovery data, unless it looks different by now.

        Raises:
            FencedError: another driver opened the target meanwhile.
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
