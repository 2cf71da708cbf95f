"""How a directory keeps the record of a step: on a disk under locks, in an object store or in HDFS without them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.errors import FencedError
from outfall.file.first_contact import FoundFiles, check_deletable, delete_existing
from outfall.file.options import FileOptions
from outfall.file.stores.local import LocalStore
from outfall.file.stores.remote import RemoteStore
from outfall.file.stores.store import FileRecord, FileStore, StagedFile
from outfall.possession.contents import check_existing
from outfall.possession.possession import Change, EpochPort, FoundRecord, OpenedRecord, RecordPort, advance, removed
from outfall.possession.record import overwritten
from outfall.storage.names import SIDECAR, SUMMARIES, AttemptName
from outfall.target_record import TargetRecord
from outfall.trace_points import reached

log = logging.getLogger(__name__)

R = TypeVar("R", bound=OpenedRecord)
S = TypeVar("S", bound=FileStore)

AHEAD = (
    "restore the newest recovery log; or, if no query runs on another copy of it, set"
    ' on_rewind="truncate" to roll back the later rows, which are written again when the source replays them'
)
"""The remedy for a directory that is ahead of the recovery log."""


class DirectoryPort(RecordPort[R], Generic[R, S]):
    """The directory of one step."""

    ahead = AHEAD

    def __init__(self, store: S, options: FileOptions, incarnation: str) -> None:
        self.store = store
        self.options = options
        self.incarnation = incarnation
        self.where = store.root
        self.name = store.record_path(incarnation)
        self.overwrites = options.existing.others == "delete"
        self.rewinds = options.on_rewind == "truncate"

    def remove(self) -> None:
        self.store.remove_record(self.incarnation)

    def opening(self) -> AbstractContextManager[object]:
        reached("file: opening")
        return self.store.opening()

    def check_existing(self, context: TargetContext[Any]) -> None:
        if self.overwrites:
            check_deletable(self.store, self.options, context.step_id)
        found = FoundFiles(self.store, self.options, self.incarnation)
        check_existing(found, self.options.existing, context.step_id)


class FilePort(DirectoryPort[FileRecord, S], EpochPort[FileRecord]):
    """The directory of one step with whole files."""

    @contextmanager
    def publishing(self, context: CommitterInitContext, files: Sequence[StagedFile]) -> Iterator[None]:
        """Hold the directory while the files of an epoch are published.

        Raises `FencedError` if another driver has opened the directory since: nothing may be published. Raises
        `TargetLostError` if the record is missing: nothing may be published, or published files were removed.
        """
        advance(self, context)
        reached("file: record advanced")
        yield

    def roll_back(self, found: FoundRecord[FileRecord], context: TargetContext[Any]) -> FileRecord:
        store, last = self.store, -1 if context.completed is None else context.completed
        # Staged files of later attempts could still be published, or could block new files by their names.
        for staged in store.staged_names():
            if staged.incarnation == self.incarnation:
                store.unstage(staged)
        names = ((path, AttemptName.parse(path)) for path in store.files())
        paths = [path for path, name in names if name and name.incarnation == self.incarnation and name.epoch > last]
        store.unpublish(paths)
        log.warning(
            "step %r: on_rewind=truncate deleted %d published files of epochs after %d in %s",
            context.step_id, len(paths), last, self.options.path,
        )  # fmt: skip
        return found.stored.opened_by(context).rewound(last)


class LocalPort(FilePort[LocalStore]):
    """A directory on a disk shared by driver and executors."""

    locks = True

    def read(self) -> FoundRecord[FileRecord] | None:
        record = self.store.read_record(self.incarnation)
        return None if record is None else FoundRecord(record)

    def update(self, change: Change[FileRecord]) -> FileRecord:
        with self.store.record_held(self.incarnation) as (record, write):
            after = change(FoundRecord(record))
            write(after)
        return after

    def open(self, context: TargetContext[Any], change: Change[FileRecord]) -> FileRecord:
        if context.completed is None:
            # The driver that created the record may have died before its name was durable.
            self.store.sync([SIDECAR])
        after = self.update(change)
        reached("file: record entered")
        return after

    def create(self, context: TargetContext[Any]) -> None:
        # Files of stale tasks, of a job that was rolled back or a query that was overwritten, are never published.
        store = self.store
        for name in store.staged_names():
            if name.incarnation != context.incarnation and not store.has_record(name.incarnation):
                store.unstage(name)
        store.create_record(FileRecord.of(context))

    def delete_existing(self, context: TargetContext[Any]) -> None:
        delete_existing(self.store, self.options, context)

    def nobody_publishing(self) -> AbstractContextManager[object]:
        return self.store.nobody_publishing()

    @contextmanager
    def publishing(self, context: CommitterInitContext, files: Sequence[StagedFile]) -> Iterator[None]:
        with self.store.publishing(), super().publishing(context, files):
            yield


class RemotePort(FilePort[RemoteStore]):
    """A directory in an object store or in HDFS.

    These systems have no locks, and fsspec has no conditional requests. Each BEGIN therefore registers under a name of
    its own before it looks for others: two concurrent drivers cannot miss each other. If two queries open a directory
    at the same moment, one or both are rejected.
    """

    def read(self) -> FoundRecord[FileRecord] | None:
        record = self.store.read_record(self.incarnation)
        return None if record is None else _found(record, self.store.claims(self.incarnation))

    def records(
        self, found: FoundRecord[FileRecord], context: TargetContext[Any] | CommitterInitContext
    ) -> Sequence[TargetRecord]:
        record = found.stored.record
        return [replace(begun, epoch=record.epoch) for begun in found.version] or [record]

    def update(self, change: Change[FileRecord]) -> FileRecord | None:
        store, record = self.store, self.store.read_record(self.incarnation)
        if record is None:
            return None
        claims = store.claims(self.incarnation)
        found = _found(record, claims)
        after = change(found)
        if after.epoch != found.stored.epoch:
            opened = next(iter(found.version), found.stored.record)
            store.claim(self.incarnation, replace(opened, epoch=after.epoch))
            reached("file: epoch claimed")
            for claim in claims:
                if claim.epoch is not None and claim.epoch < after.epoch:
                    store.tidy_claim(self.incarnation, claim)
        return after

    def open(self, context: TargetContext[Any], change: Change[FileRecord]) -> FileRecord | None:
        store, mine = self.store, TargetRecord(context.generation, context.token)
        store.claim(self.incarnation, mine)
        reached("file: claimed")
        record = store.read_record(self.incarnation)
        if record is None:
            return None
        others = [claim for claim in store.claims(self.incarnation) if claim != mine]
        found = _found(record, others)
        try:
            after = change(found)
        except FencedError:
            store.tidy_claim(self.incarnation, mine)
            raise
        if after.epoch != found.stored.epoch:
            # Rolled back. The claims of later epochs last, so that a crash lets the next run roll back again.
            store.write_record(after)
            for claim in others:
                store.unclaim(self.incarnation, claim)
        for claim in others:
            if claim.epoch is None:
                store.tidy_claim(self.incarnation, claim)
        return after

    def create(self, context: TargetContext[Any]) -> None:
        record = FileRecord.of(context, ready=not self.overwrites)
        self.store.create_record(record)
        reached("file: record created")

    def delete_existing(self, context: TargetContext[Any]) -> None:
        store = self.store
        for incarnation in store.incarnations():
            if incarnation != self.incarnation:
                # Records first: a query that is about to publish then finds that its record is missing, and fails.
                store.remove_record(incarnation)
        reached("file: others stopped")
        record = store.read_record(self.incarnation)
        if record is None:
            raise removed(self, context)
        store.delete_spark_log()
        # Files of this step are kept, because another driver may have written them.
        paths = list(FoundFiles(store, self.options, self.incarnation).foreign())
        store.unpublish([*paths, *SUMMARIES])
        if paths:
            log.warning(
                "step %r: on_existing=overwrite deleted %d files in %s", context.step_id, len(paths), store.root
            )
        store.write_record(record.model_copy(update={"ready": True}))

    @contextmanager
    def publishing(self, context: CommitterInitContext, files: Sequence[StagedFile]) -> Iterator[None]:
        with super().publishing(context, files):
            yield
        if not self.store.has_record(self.incarnation):
            # An overwriting query removes the record and then lists the files. Its list may lack some of these.
            self.store.unpublish([file.path for file in files])
            raise overwritten(self.name)


def _found(record: FileRecord, claims: Sequence[TargetRecord]) -> FoundRecord[FileRecord]:
    """Return the record with the newest claimed epoch, and the newest BEGINs as its version.

    Claims that may not be deleted remain, so older BEGINs do not count. Earlier releases wrote epochs into the record.
    """
    epoch = max((claim.epoch for claim in claims if claim.epoch is not None), default=-1)
    begun = [claim for claim in claims if claim.epoch is None]
    newest = max((claim.generation for claim in begun), default=0)
    stored = record.model_copy(update={"epoch": max(record.epoch, epoch)})
    return FoundRecord(stored, tuple(claim for claim in begun if claim.generation == newest))
