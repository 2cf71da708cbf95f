"""Growing files: parts that are appended to and cut back to their offset."""

from __future__ import annotations

import logging
import os
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
from outfall.file.fence import WriterRecord, claim
from outfall.file.growing_part import FileState, GrowingPart, cut_to, lost
from outfall.file.limits import allow_open_files
from outfall.file.local import LocalFileSink
from outfall.file.locked import held, peek
from outfall.file.marker import check_shared
from outfall.file.seal import seal_part
from outfall.file.sink import ahead
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink

log = logging.getLogger(__name__)


class GrowingFileSink(
    LocalFileSink, FixedPartitionedSink[Any, FileState], SupportsStateSerializer[FileState], SupportsSeal[FileState]
):
    """`FileSink(path, parts=N)`: see there."""

    _ahead: Mapping[str, WriterRecord] = {}
    """The parts that `check_target` saw to be ahead."""

    def kind(self) -> str:
        return "file/growing"

    def list_parts(self) -> list[str]:
        return [f"part-{index:05d}{self.suffix}" for index in range(self.options.parts or 0)]

    def build_part(self, step_id: str, for_part: str, resume_state: FileState | None) -> GrowingPart:
        context = self._writer()
        check_shared(self.layout, context.incarnation)
        # One task may write them all.
        allow_open_files(self.options.parts or 0)
        offset = resume_state.offset if resume_state is not None else 0
        return GrowingPart(self.layout, for_part, self.options, offset, context, self.patience)

    def state_serializer(self) -> ModelSerializer[FileState]:
        return ModelSerializer(FileState)

    def requires(self) -> Sequence[str]:
        return ("a path that all hosts share", "locks (flock) that hold between all hosts that write")

    def seal(self, context: SealContext, parts: Sequence[PartSeal[FileState]]) -> None:
        for part in parts:
            seal_part(self.layout, self.patience, context, part)

    def check_target(self, context: TargetContext[FileState]) -> Mapping[str, FileState]:
        with explained("checking", self.options.path):
            ours = self._check_place(context)
            for part, state in context.states.items():
                self._check_length(part, state)
            if ours:
                self._check_records(context)
            # Every part gets a state before its first byte, so that none is left out when an epoch is sealed: rows of a
            # lost attempt in a part that the replay does not touch are cut like any others.
            return {part: self._base(part) for part in self.list_parts() if part not in context.states}

    def _size(self, part: str) -> int | None:
        try:
            return os.stat(self.layout.data(part)).st_size
        except FileNotFoundError:
            return None

    def _check_length(self, part: str, state: FileState) -> None:
        size = self._size(part)
        if (size or 0) < state.offset:
            raise lost(self.layout.data(part), part, state.offset, size)

    def _base(self, part: str) -> FileState:
        """The state of a part that has none, by what its file holds already."""
        size = self._size(part) or 0
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
        seen: dict[str, WriterRecord] = {}
        for part in self.list_parts():
            found = WriterRecord.parse(peek(self.layout.lock(part)))
            if found is None:
                continue
            if found.incarnation != context.incarnation:
                raise _taken_over(found, context, part)
            if found.writer.generation > context.last_generation:
                if self.options.on_rewind == "error":
                    raise ahead(self.options.path, f"the part is {found}", context, part)
                seen[part] = found
        self._ahead = seen

    def _claim(self, context: TargetContext[FileState]) -> None:
        # Also from a query that still runs, if on_existing let us come this far: its next write finds our record.
        for part in self.list_parts():
            with held(self.layout.lock(part), self.patience) as file:
                file.write(claim(context.incarnation, context.generation).line())

    def _take_back(self, context: TargetContext[FileState]) -> None:
        for part, record in self._ahead.items():
            with held(self.layout.lock(part), self.patience) as file:
                if WriterRecord.parse(file.read()) == record:
                    # Lets the writers of this generation in, although the target remembers a higher one.
                    file.write(claim(context.incarnation, context.generation).line())
                    size = cut_to(self.layout.data(part), part, context.states[part].offset)
                    log.warning(
                        "step %r: on_rewind=truncate cut %s from %d bytes to %d; it was %s",
                        context.step_id, part, size, context.states[part].offset, record,
                    )  # fmt: skip
        self._ahead = {}


def _taken_over(found: WriterRecord, context: TargetContext[FileState], part: str) -> StaleWriterError:
    return StaleWriterError(
        f"another query has taken this directory over: the part is {found}",
        step=context.step_id,
        epoch=context.epoch,
        part=part,
        why=f"this query is incarnation {context.incarnation}",
        do="stop this query, or give it a path of its own",
    )
