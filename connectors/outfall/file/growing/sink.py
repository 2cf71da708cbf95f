"""Growing files: parts that are appended to, and truncated to their offset after a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.capabilities import (
    CleanUpContext,
    PartSeal,
    SealContext,
    SupportsSeal,
    SupportsStateSerializer,
    TargetCheck,
    TargetContext,
)
from outfall.errors import TargetNotEmptyError
from outfall.file.first_contact import check_usable
from outfall.file.growing.part_files import FileState, PartFiles, following, part_name
from outfall.file.growing.partition import GrowingPart, allow_open_files
from outfall.file.growing.possession import GrowingPort, GrowingRecord
from outfall.file.growing.registry import Register
from outfall.file.growing.seal import seal_parts
from outfall.file.growing.starts import PartStarts
from outfall.file.stores.disk import translated_errors
from outfall.file.target import LocalFiles
from outfall.filesystems import sync_directory
from outfall.possession.possession import FoundRecord, check, open_target
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink
from outfall.storage.layout import LayoutChange, withdraw_layout


@dataclass(frozen=True)
class FoundParts:
    """What `check_target` found in a directory."""

    ahead: FoundRecord[GrowingRecord] | None = None
    """The record, if the directory is ahead of the recovery log and will be rolled back."""
    new: tuple[str, ...] = ()
    """The new parts of a step that has taken possession before."""
    layout: LayoutChange | None = None
    """The change of the layout."""


class GrowingFiles(
    LocalFiles, FixedPartitionedSink[Any, FileState], SupportsStateSerializer[FileState], SupportsSeal[FileState]
):
    """`FileSink(path, parts=N)`: each part is a file, or a sequence of segments, that one task at a time appends to."""

    reselects_base_states = True

    @property
    def register(self) -> Register:
        """The register of the part writers."""
        return Register(self.store, self.suffix)

    @property
    def starts(self) -> PartStarts:
        """The start states of parts."""
        return PartStarts(self.register, self.options)

    def kind(self) -> str:
        return "file/growing"

    def list_parts(self) -> list[str]:
        suffix = self.suffix
        return [part_name(index, suffix) for index in range(self.options.parts or 0)]

    def build_part(self, step_id: str, for_part: str, resume_state: FileState | None) -> GrowingPart:
        context = self.writer_context()
        self.store.check_shared(context.incarnation)
        # One task may write all parts.
        allow_open_files(self.options.parts or 0)
        state = resume_state or FileState(offset=0)
        return GrowingPart(self.register, for_part, self.options, self.rolling, state, context)

    def state_serializer(self) -> ModelSerializer[FileState]:
        return ModelSerializer(FileState)

    def requires(self) -> Sequence[str]:
        return (
            "a path shared by all hosts",
            "locks (flock) that work across all writing hosts",
            "spark.speculation=false, because each copy of a task would take its parts from the other",
        )

    def supports_speculation(self) -> bool:
        # The last one to open a part owns it: a copy stops the attempt that it should help, whose retry stops the copy.
        return False

    def seal(self, context: SealContext, parts: Sequence[PartSeal[FileState]]) -> None:
        seal_parts(self.register, context, parts)

    def port(self, incarnation: str) -> GrowingPort:
        """Return the directory as the target of one step."""
        return GrowingPort(self.starts, incarnation)

    def check_target(self, context: TargetContext[FileState]) -> TargetCheck[FileState]:
        with translated_errors("checking", self.options.path):
            check_usable(self.options.path)
            port = self.port(context.incarnation)
            ours = bool(context.incarnation) and self.store.has_record(context.incarnation)
            # Before the register is read: a concurrent writer enters it before its first byte.
            foreign = self._beyond(context) if ours else None
            ahead = check(port, context)
            layout = self.check_layout(self.store, context, replaces=port.overwrites)
            if not ours:
                # Nothing was written yet, so states are those that a BEGIN found. Others may have written since.
                return TargetCheck(self.starts.of(self.list_parts(), ours=False), FoundParts(layout=layout))
            if foreign is not None and ahead is None and not context.unfinished:
                raise foreign
            # Every part gets a state before its first byte, so that a seal includes all parts. Rows of a failed attempt
            # are then truncated even in a part that the replay does not write.
            new = [part for part in self.list_parts() if part not in context.states]
            rewound: Mapping[str, FileState] = {}
            if ahead is not None:
                rewound = self.starts.rewound(new, ahead.version, context.incarnation)
            bases = {**self.starts.of([part for part in new if part not in rewound], ours=True), **rewound}
            return TargetCheck(bases, FoundParts(ahead, tuple(bases), layout))

    def _beyond(self, context: TargetContext[FileState]) -> TargetNotEmptyError | None:
        """Find bytes and segments beyond the states. A seal leaves none: a failed attempt or another writer did.

        Raises `TargetLostError` if a file is shorter than its recorded length.
        """
        found = None
        # Only once in a run, because a directory may hold many files. Later checks only read the next segment.
        listed = self.starts.segments() if context.starting or context.unfinished else None
        for part, state in context.states.items():
            files = PartFiles(self.options.path, part)
            size = files.check(state.segment, state.offset)
            later: Sequence[int] = files.later(state.segment)
            if listed is not None:
                later = [number for number in listed.get(part, []) if number >= following(state.segment)]
            if size > state.offset or later:
                path, expected = files.path(state.segment), state.offset
                if size == state.offset:
                    path, size, expected = files.path(later[0]), files.size(later[0]) or 0, 0
                found = found or _not_ours(path, size, expected, part, context)
        return found

    def open_target(self, context: TargetContext[FileState]) -> None:
        found = context.found or FoundParts()
        with translated_errors("opening", self.options.path):
            self.make_directory(context)
            self.starts.record(found.new, context)
            open_target(self.port(context.incarnation), context, found.ahead)
            self.keep_layout(self.store, context, found.layout)

    def withdraw(self, context: CleanUpContext) -> None:
        store = self.store
        # The register remains, because its record fences stale tasks of this incarnation.
        with translated_errors("leaving", store.root), store.opening(), self.register.alone():
            for part, state in context.states().items():
                PartFiles(store.root, part).remove_empty(state.segment)
            sync_directory(store.root)
            withdraw_layout(store, context.incarnation)
            store.remove_record(context.incarnation)

    def clean_up(self, context: CleanUpContext) -> int:
        # The parts of a step that has ended permanently may be continued by another one.
        if context.final and self.store.has_record(context.incarnation):
            with translated_errors("cleaning up", self.options.path):
                self.store.remove_record(context.incarnation)
        return 0

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        return ()


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
