"""Growing files: parts that are appended to and cut back to their offset."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    PartSeal,
    SealContext,
    SupportsSeal,
    SupportsStateSerializer,
    TargetContext,
)
from outfall.encode import last_byte
from outfall.errors import StaleWriterError, TargetNotEmptyError
from outfall.file.disk import explained
from outfall.file.fence import WriterRecord
from outfall.file.growing_names import GrowingName
from outfall.file.growing_part import FileState, GrowingPart, check_length, cut_to, size_of
from outfall.file.limits import allow_open_files
from outfall.file.local import LocalFileSink
from outfall.file.marker import check_shared
from outfall.file.register import Records, Register
from outfall.file.seal import seal_parts
from outfall.file.sink import ahead
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink

log = logging.getLogger(__name__)


class GrowingFileSink(
    LocalFileSink, FixedPartitionedSink[Any, FileState], SupportsStateSerializer[FileState], SupportsSeal[FileState]
):
    """`FileSink(path, parts=N)`: see there."""

    _ahead: Records | None = None
    """The register as `check_target` saw it, if it is ahead."""

    @property
    def register(self) -> Register:
        """Who may write the parts."""
        return Register(self.layout, self.suffix, self.patience)

    def kind(self) -> str:
        return "file/growing"

    def list_parts(self) -> list[str]:
        suffix = self.suffix
        return [str(GrowingName(index, suffix)) for index in range(self.options.parts or 0)]

    def build_part(self, step_id: str, for_part: str, resume_state: FileState | None) -> GrowingPart:
        context = self._writer()
        check_shared(self.layout, context.incarnation)
        # One task may write them all.
        allow_open_files(self.options.parts or 0)
        offset = resume_state.offset if resume_state is not None else 0
        return GrowingPart(self.register, for_part, self.options, offset, context)

    def state_serializer(self) -> ModelSerializer[FileState]:
        return ModelSerializer(FileState)

    def requires(self) -> Sequence[str]:
        return ("a path that all hosts share", "locks (flock) that hold between all hosts that write")

    def seal(self, context: SealContext, parts: Sequence[PartSeal[FileState]]) -> None:
        seal_parts(self.register, context, parts)

    def check_target(self, context: TargetContext[FileState]) -> Mapping[str, FileState]:
        with explained("checking", self.options.path):
            ours = self._check_place(context)
            layout = self.layout
            for part, state in context.states.items():
                check_length(layout.data(part), part, state.offset)
            if ours:
                self._check_records(context)
            # Every part gets a state before its first byte, so that none is left out when an epoch is sealed: rows of a
            # lost attempt in a part that the replay does not touch are cut like any others.
            return {part: self._base(part) for part in self.list_parts() if part not in context.states}

    def _base(self, part: str) -> FileState:
        """The state of a part that has none, by what its file holds already."""
        size = size_of(self.layout.data(part)) or 0
        if size == 0 or self.options.on_existing == "overwrite":
            return FileState(offset=0)
        if self.options.on_existing == "error":
            raise TargetNotEmptyError(
                f"{self.layout.data(part)} holds {size} bytes that are not recorded",
                part=part,
                do='move the file away, or set on_existing="resume" or "overwrite"',
            )
        self._check_last_record(part)
        return FileState(offset=size)

    def _check_last_record(self, part: str) -> None:
        path = self.layout.data(part)
        try:
            last = last_byte(path, self.options.codec)
        except (OSError, pa.ArrowException) as error:
            raise TargetNotEmptyError(
                f"{path} cannot be continued", part=part, why=str(error), do="repair the file or move it away"
            ) from error
        if last != b"\n":
            raise TargetNotEmptyError(
                f"{path} ends in the middle of a line",
                part=part,
                why="the next row would be joined to it",
                do="complete or cut its last line",
            )

    def _check_records(self, context: TargetContext[FileState]) -> None:
        records = self.register.peek()
        self._ahead = None
        for found in (records.step, *records.writers()):
            if found is None:
                continue
            if found.incarnation != context.incarnation:
                raise _taken_over(found, context)
            if found.writer.generation > context.last_generation:
                if self.options.on_rewind == "error":
                    raise ahead(self.options.path, f"it is {found}", context)
                self._ahead = records

    def _claim(self, context: TargetContext[FileState]) -> None:
        # Also from a query that still runs, if on_existing let us come this far: its next write finds our record.
        with self.register.alone() as held:
            held.clear(WriterRecord.taken_by(context.incarnation, context.generation))

    def _take_back(self, context: TargetContext[FileState]) -> None:
        if self._ahead is None:
            return
        with self.register.alone() as held:
            if held.records.same_as(self._ahead):
                for part, state in context.states.items():
                    self._cut_back(context.step_id, part, state)
                # Last: who is killed before finds the target ahead again. It lets the writers of this generation in,
                # although the target remembers a higher one.
                held.clear(WriterRecord.taken_by(context.incarnation, context.generation))
        self._ahead = None

    def _cut_back(self, step_id: str, part: str, state: FileState) -> None:
        size = cut_to(self.layout.data(part), part, state.offset)
        if size != state.offset:
            log.warning(
                "step %r: on_rewind=truncate cut %s from %d bytes to %d", step_id, part, size, state.offset
            )  # fmt: skip


def _taken_over(found: WriterRecord, context: TargetContext[FileState]) -> StaleWriterError:
    return StaleWriterError(
        f"another query has taken this directory over: it is {found}",
        step=context.step_id,
        epoch=context.epoch,
        why=f"this query is incarnation {context.incarnation}",
        do="stop this query, or give it a path of its own",
    )
