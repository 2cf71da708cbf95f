"""How a directory of growing files keeps the record of a step: in the first line of its register."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from outfall.capabilities import CommitterInitContext, TargetContext, WriterId
from outfall.errors import StaleWriterError, TargetNotEmptyError
from outfall.file.first_contact import delete_existing
from outfall.file.growing.part_files import FileState, PartFiles, following
from outfall.file.growing.registry import Records, RegisterEntry
from outfall.file.growing.starts import PartStarts
from outfall.file.possession import DirectoryPort
from outfall.file.stores.local import LocalStore
from outfall.file.stores.store import FileRecord
from outfall.filesystems import sync_directory
from outfall.possession.possession import Change, FoundRecord
from outfall.storage.names import SIDECAR
from outfall.target_record import TargetRecord
from outfall.trace_points import reached

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GrowingRecord:
    """The first line of the register. The existence of the step's record shows that it has taken possession."""

    entry: RegisterEntry
    ready: bool = True
    rewound: bool = False
    """Whether all later records of writers are to be removed too."""

    @property
    def record(self) -> TargetRecord:
        """What is compared with the log."""
        return self.entry.begun

    def opened_by(self, context: TargetContext[Any]) -> GrowingRecord:
        """Return the record after a BEGIN has opened the target."""
        return GrowingRecord(RegisterEntry.taken_by(context))


class GrowingPort(DirectoryPort[GrowingRecord, LocalStore]):
    """The growing files of one step in a directory, with the start states of its parts."""

    locks = True

    def __init__(self, starts: PartStarts, incarnation: str) -> None:
        super().__init__(starts.register.store, starts.options, incarnation)
        self.starts = starts
        self.register = starts.register

    # --- the record

    def read(self) -> FoundRecord[GrowingRecord] | None:
        return self._found(self.register.peek()) if self.store.has_record(self.incarnation) else None

    def _found(self, records: Records) -> FoundRecord[GrowingRecord]:
        # A line that cannot be read counts as absent, because the log has the same information.
        entry = records.step or RegisterEntry(self.incarnation, WriterId(0, -1, -1))
        return FoundRecord(GrowingRecord(entry), records)

    def records(
        self, found: FoundRecord[GrowingRecord], context: TargetContext[Any] | CommitterInitContext
    ) -> Sequence[TargetRecord]:
        """Return the BEGIN of the step, and before BEGIN those of the writers too, which may be later.

        Raises `StaleWriterError` if another query has taken over.
        """
        entries = [found.stored.entry]
        if context.generation == 0:
            oldest = min(context.begun, default=0)
            writers = filter(None, found.version.writers())
            # A part that was not written recently has an older writer.
            entries += [each for each in writers if each.writer.generation >= oldest or self._is_foreign(each)]
        for entry in filter(self._is_foreign, entries):
            raise StaleWriterError(
                f"another query has taken over this directory: it was {entry}",
                step=context.step_id,
                epoch=context.epoch,
                why=f"this query is incarnation {context.incarnation}",
                do="stop this query, or give it its own path",
            )
        return [entry.begun for entry in entries]

    def _is_foreign(self, entry: RegisterEntry) -> bool:
        return entry.incarnation != self.incarnation

    def open(self, context: TargetContext[Any], change: Change[GrowingRecord]) -> GrowingRecord | None:
        if not self.store.has_record(self.incarnation):
            return None
        if context.completed is None:
            # The driver that created the record may have died before its name was durable.
            self.store.sync([SIDECAR])
        with self.register.alone() as held:
            after = change(self._found(held.records))
            if after.rewound:
                # Last, so that a driver that is killed before finds the target ahead again. This admits the writers of
                # this generation, although the target has a record of a higher one.
                held.clear(after.entry)
            else:
                held.enter(after.entry)
            held.sync()
            reached("file: register entered")
            if context.unfinished:
                self._sync_parts(context)
        return after

    def _sync_parts(self, context: TargetContext[FileState]) -> None:
        """Sync truncations of a failed driver: after a power loss, the bytes would seem to be another writer's."""
        for part, state in context.states.items():
            with suppress(FileNotFoundError), open(PartFiles(self.where, part).path(state.segment), "rb") as file:
                os.fsync(file.fileno())
        sync_directory(self.where)

    def create(self, context: TargetContext[Any]) -> None:
        # Writers of a query that still runs find the new record before their next write.
        with self.register.alone() as held:
            self.starts.check(context)
            self.starts.record(list(context.states), context)
            held.clear(RegisterEntry.taken_by(context))
        self.store.create_record(FileRecord.of(context))

    # --- the first epoch

    def check_existing(self, context: TargetContext[Any]) -> None:
        super().check_existing(context)
        if not self.overwrites:
            self._check_writer(context)

    def _check_writer(self, context: TargetContext[Any]) -> None:
        """Reject parts of a query that may continue: it could never write again."""
        writer = self.register.peek().step
        if writer is None or not self._is_foreign(writer) or not self.store.has_record(writer.incarnation):
            return
        record = self.store.record_path(writer.incarnation)
        raise TargetNotEmptyError(
            f"another query writes the parts in {self.where}: they were {writer}",
            step=context.step_id,
            why=f"its record is {record}; a part has one writer, so that query could never continue",
            do=f"write to another path; or, if that query has ended permanently, delete {record} and start again",
        )

    def delete_existing(self, context: TargetContext[Any]) -> None:
        delete_existing(self.store, self.options, context)

    # --- the recovery data is older

    def roll_back(self, found: FoundRecord[GrowingRecord], context: TargetContext[FileState]) -> GrowingRecord:
        # Recorded segments may have been moved away since, so list the directory instead of counting up.
        segments = self.starts.segments()
        for part, state in context.states.items():
            later = [number for number in segments.get(part, []) if number >= following(state.segment)]
            files = PartFiles(self.where, part)
            size = files.check(state.segment, state.offset)
            if later or size != state.offset:
                log.warning(
                    "step %r: on_rewind=truncate truncates %s from %d to %d bytes and removes %d later files",
                    context.step_id, files.path(state.segment), size, state.offset, len(later),
                )  # fmt: skip
            files.cut_back(state.segment, state.offset, later)
        return replace(found.stored.opened_by(context), rewound=True)
