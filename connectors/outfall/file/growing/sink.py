"""Growing files: parts that are appended to, and truncated to their offset after a failure."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    CleanUpContext,
    PartSeal,
    SealContext,
    SupportsSeal,
    SupportsStateSerializer,
    TargetContext,
)
from outfall.errors import StaleWriterError, TargetNotEmptyError, TransientError
from outfall.file.growing.part_files import FileState, PartFiles, following, part_name, segments_among
from outfall.file.growing.partition import GrowingPart, allow_open_files
from outfall.file.growing.registry import Records, Register, RegisterEntry
from outfall.file.growing.seal import seal_parts
from outfall.file.storage.disk import explained
from outfall.file.target import AHEAD, LocalFiles
from outfall.filesystems import sync_directory
from outfall.formats import last_byte
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink
from outfall.target_record import check_opening, check_record
from outfall.trace_points import reached

log = logging.getLogger(__name__)


class GrowingFiles(
    LocalFiles, FixedPartitionedSink[Any, FileState], SupportsStateSerializer[FileState], SupportsSeal[FileState]
):
    """`FileSink(path, parts=N)`: each part is a file, or a sequence of segments, that one task at a time appends to."""

    chooses_bases_anew = True

    _ahead: Records | None = None
    """The register as `check_target` found it, if it is ahead of the recovery log."""
    _listed: bool = False
    """Whether all segments were checked since the sink was created."""
    _new: Sequence[str] = ()
    """The parts that `check_target` found to be new in a directory of this step."""

    @property
    def register(self) -> Register:
        """The register of the part writers."""
        return Register(self.store, self.suffix)

    def kind(self) -> str:
        return "file/growing"

    def list_parts(self) -> list[str]:
        suffix = self.suffix
        return [part_name(index, suffix) for index in range(self.options.parts or 0)]

    def build_part(self, step_id: str, for_part: str, resume_state: FileState | None) -> GrowingPart:
        context = self.bound_context()
        self.store.check_shared(context.incarnation)
        # One task may write all parts.
        allow_open_files(self.options.parts or 0)
        state = resume_state or FileState(offset=0)
        return GrowingPart(self.register, for_part, self.options, self.rolling, state, context)

    def state_serializer(self) -> ModelSerializer[FileState]:
        return ModelSerializer(FileState)

    def requires(self) -> Sequence[str]:
        return ("a path shared by all hosts", "locks (flock) that work across all writing hosts")

    def seal(self, context: SealContext, parts: Sequence[PartSeal[FileState]]) -> None:
        seal_parts(self.register, context, parts)

    def check_target(self, context: TargetContext[FileState]) -> Mapping[str, FileState]:
        with explained("checking", self.options.path):
            ours = self._check_place(context)
            if not ours:
                # Nothing was written yet, so states are those that a BEGIN found. Others may have written since.
                return self._bases(self.list_parts(), ours=False)
            foreign = self._beyond(context)
            # After the lengths: a concurrent writer has entered the register before its first byte.
            self._check_records(context)
            if foreign is not None and self._ahead is None and not context.unfinished:
                raise foreign
            # Every part gets a state before its first byte, so that a seal includes all parts. Rows of a failed attempt
            # are then truncated even in a part that the replay does not write.
            new = [part for part in self.list_parts() if part not in context.states]
            rewound = self._rewound(new, context)
            bases = {**self._bases([part for part in new if part not in rewound], ours=True), **rewound}
            self._new = tuple(bases)
            return bases

    def _beyond(self, context: TargetContext[FileState]) -> TargetNotEmptyError | None:
        """Find bytes and segments beyond the states. A seal leaves none: a failed attempt or another writer did.

        Raises:
            TargetLostError: a file is shorter than its recorded length.
        """
        found = None
        # Only once, because a directory may hold many files. Later checks only read the next segment.
        listed = None if self._listed else self._segments()
        for part, state in context.states.items():
            files = self._files(part)
            size = files.check(state.segment, state.offset)
            later: Sequence[int] = files.later(state.segment)
            if listed is not None:
                later = [number for number in listed.get(part, []) if number >= following(state.segment)]
            if size > state.offset or later:
                path, expected = files.path(state.segment), state.offset
                if size == state.offset:
                    path, size, expected = files.path(later[0]), files.size(later[0]) or 0, 0
                found = found or _not_ours(path, size, expected, part, context)
        self._listed = found is None
        return found

    def open_target(self, context: TargetContext[FileState]) -> None:
        with explained("opening", self.options.path):
            self._record_bases(context, self._new)
        super().open_target(context)
        self._new = ()

    def _bases(self, parts: Sequence[str], *, ours: bool) -> Mapping[str, FileState]:
        """Return the states of new parts, from the files that exist."""
        segments = self._segments() if parts else {}
        return {part: self._base(part, segments.get(part, []), ours) for part in parts}

    def _rewound(self, parts: Sequence[str], context: TargetContext[FileState]) -> Mapping[str, FileState]:
        """Return the states of parts that were added and written after the recovery log was copied."""
        if self._ahead is None:
            return {}
        written = [part for part in parts if self._ahead.part(part) is not None]
        segments = self._segments() if written else {}
        return {part: self._begun(part, segments.get(part, []), context) for part in written}

    def _begun(self, part: str, segments: Sequence[int], context: TargetContext[FileState]) -> FileState:
        """Return where this query began in a part."""
        kept = self.register.find_base(context.incarnation, part)
        if kept is not None:
            return kept
        first = segments[0] if segments else 0 if self.rolling.bounded else None
        return FileState(offset=0, segment=None if self._size(part) else first)

    def _record_bases(self, context: TargetContext[FileState], parts: Sequence[str]) -> None:
        for part in parts:
            base = context.states[part]
            if base.offset or base.segment or (base.segment == 0 and self._size(part)):
                self.register.record_base(context.incarnation, part, base)

    def _files(self, part: str) -> PartFiles:
        return PartFiles(self.options.path, part)

    def _size(self, part: str) -> int:
        return self._files(part).size(None) or 0

    def _segments(self) -> Mapping[str, Sequence[int]]:
        return segments_among(self.store.names(""))

    def _base(self, part: str, segments: Sequence[int], ours: bool) -> FileState:
        files = self._files(part)
        size = files.size(None) or 0
        first = 0 if self.rolling.bounded else None
        if not size and not segments:
            return FileState(offset=0, segment=first)
        if self.options.on_existing == "overwrite":
            # In a directory of this step, nothing is deleted as a whole: a new part begins with its oldest file and
            # truncates everything after it.
            return FileState(offset=0, segment=None if ours and size else first)
        if self.options.on_existing == "error":
            path = files.path(None if size else segments[0])
            raise TargetNotEmptyError(
                f"{path} holds {size or files.size(segments[0])} bytes that are not recorded",
                part=part,
                do='move the part\'s files to another location, or set on_existing="resume" or "overwrite"',
            )
        if segments or self.rolling.bounded:
            # Segments after the current one are removed, so the new one must come after all of them.
            return FileState(offset=0, segment=following(segments[-1] if segments else None))
        self._check_last_record(part)
        return FileState(offset=size)

    def _check_last_record(self, part: str) -> None:
        path = self._files(part).path(None)
        try:
            last = last_byte(path, self.options.codec)
        except (OSError, pa.ArrowException) as error:
            raise TargetNotEmptyError(
                f"{path} cannot be continued",
                part=part,
                why=str(error),
                do="repair the file or move it to another location",
            ) from error
        if last != b"\n":
            raise TargetNotEmptyError(
                f"{path} ends in the middle of a line",
                part=part,
                why="the next row would be appended to that line",
                do="complete or remove its last line",
            )

    def _check_records(self, context: TargetContext[FileState]) -> None:
        records = self.register.peek()
        self._ahead = None
        step, oldest = records.step, min(context.begun, default=0)
        for found in (step, *records.writers()):
            if found is None:
                continue
            if found.incarnation != context.incarnation:
                raise _taken_over(found, context)
            if self._may_roll_back(found.begun, context):
                self._ahead = records
            elif found is step or found.writer.generation >= oldest:
                # A part that was not written recently has an older writer.
                check_record(self.options.path, found.begun, context, ahead=AHEAD)

    def _claim(self, context: TargetContext[FileState]) -> None:
        # Also from a query that still runs, if on_existing allows it: its next write finds the new record.
        with self.register.alone() as held:
            self._check_bases(context)
            self._record_bases(context, list(context.states))
            held.clear(RegisterEntry.taken_by(context))

    def _check_bases(self, context: TargetContext[FileState]) -> None:
        """Reject files that have changed since the check before BEGIN: the first writer would truncate them."""
        for part, found in self._bases(list(context.states), ours=False).items():
            state = context.states[part]
            if (found.segment, found.offset) != (state.segment, state.offset):
                raise TransientError(
                    f"{self._files(part).path(found.segment)} has changed since it was checked",
                    step=context.step_id,
                    part=part,
                    why=f"another query writes to it: it had {state.offset} bytes before and has {found.offset} now",
                    do="stop the other query and start this one again",
                )

    def _leave(self, context: CleanUpContext) -> None:
        # The register remains, because its record fences stale tasks of this incarnation.
        with self.register.alone():
            for part, state in context.states().items():
                self._files(part).remove_empty(state.segment)
            sync_directory(self.options.path)

    def _enter(self, context: TargetContext[FileState]) -> None:
        mine = RegisterEntry.taken_by(context)
        with self.register.alone() as held:
            if self._ahead is not None and held.records.same_as(self._ahead):
                self._cut_back(context)
                # Last, so that a driver that is killed before finds the target ahead again. This admits the writers of
                # this generation, although the target has a record of a higher one.
                held.clear(mine)
            else:
                self._refuse_other_driver(held.records.step, context)
                held.enter(mine)
            held.sync()
            reached("file: register entered")
            if context.unfinished:
                self._sync_parts(context)
        self._ahead = None

    def _refuse_other_driver(self, step: RegisterEntry | None, context: TargetContext[FileState]) -> None:
        if step is None:
            return
        if step.incarnation != context.incarnation:
            raise _taken_over(step, context)
        check_opening(self.options.path, step.begun, context)

    def _sync_parts(self, context: TargetContext[FileState]) -> None:
        """Sync truncations of a failed driver: after a power loss, the bytes would seem to be another writer's."""
        for part, state in context.states.items():
            with suppress(FileNotFoundError), open(self._files(part).path(state.segment), "rb") as file:
                os.fsync(file.fileno())
        sync_directory(self.options.path)

    def _cut_back(self, context: TargetContext[FileState]) -> None:
        # Recorded segments may have been moved away since, so list the directory instead of counting up.
        segments = self._segments()
        for part, state in context.states.items():
            later = [number for number in segments.get(part, []) if number >= following(state.segment)]
            files = self._files(part)
            size = files.check(state.segment, state.offset)
            if later or size != state.offset:
                log.warning(
                    "step %r: on_rewind=truncate truncates %s from %d to %d bytes and removes %d later files",
                    context.step_id, files.path(state.segment), size, state.offset, len(later),
                )  # fmt: skip
            files.cut_back(state.segment, state.offset, later)


def _not_ours(path: str, size: int, expected: int, part: str, context: TargetContext[FileState]) -> TargetNotEmptyError:
    return TargetNotEmptyError(
        f"{path} holds {size} bytes, but {expected} were recorded"
        if expected
        else f"{path} holds {size} bytes that are not recorded",
        step=context.step_id,
        epoch=context.epoch,
        part=part,
        why=f"another writer added them after epoch {context.completed} was completed; the file was not changed now",
        do=f"move the bytes after byte {expected} to another file, so that this file ends there, and start again"
        if expected
        else "find the writer, move the file to another location, and start again",
    )


def _taken_over(found: RegisterEntry, context: TargetContext[FileState]) -> StaleWriterError:
    return StaleWriterError(
        f"another query has taken over this directory: it was {found}",
        step=context.step_id,
        epoch=context.epoch,
        why=f"this query is incarnation {context.incarnation}",
        do="stop this query, or give it its own path",
    )
