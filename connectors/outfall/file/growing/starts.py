"""Where a query begins in parts without a recorded state: existing files, and how `on_existing` treats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from outfall.capabilities import TargetContext
from outfall.errors import TargetNotEmptyError, TransientError
from outfall.file.growing.part_files import FileState, PartFiles, following, segments_among
from outfall.file.growing.registry import Records, Register
from outfall.file.options import FileOptions
from outfall.formats import last_byte


@dataclass(frozen=True)
class PartStarts:
    """The start states of parts in one directory."""

    register: Register
    options: FileOptions

    def segments(self) -> Mapping[str, Sequence[int]]:
        """List the segments of all parts."""
        return segments_among(self.register.store.names(""))

    def of(self, parts: Sequence[str], *, ours: bool) -> Mapping[str, FileState]:
        """Return the start states of new parts, from the files that exist.

        `ours` tells whether the step has taken possession of the directory. Raises `TargetNotEmptyError` if a file
        holds data, and cannot be continued or must not be.
        """
        segments = self.segments() if parts else {}
        return {part: self._of(part, segments.get(part, []), ours) for part in parts}

    def rewound(self, parts: Sequence[str], ahead: Records, incarnation: str) -> Mapping[str, FileState]:
        """Return the start states of parts that were added and written after the recovery log was copied."""
        written = [part for part in parts if ahead.part(part) is not None]
        segments = self.segments() if written else {}
        return {part: self._begun(part, segments.get(part, []), incarnation) for part in written}

    def record(self, parts: Sequence[str], context: TargetContext[FileState]) -> None:
        """Record durably where the query begins in parts with existing data: an older copy of the log does not."""
        for part in parts:
            start = context.states[part]
            if start.offset or start.segment or (start.segment == 0 and self._size(part)):
                self.register.record_base(context.incarnation, part, start)

    def check(self, context: TargetContext[FileState]) -> None:
        """Reject files that have changed since the check before BEGIN: the first writer would truncate them.

        Raises `TransientError` with the file, and its length before and now.
        """
        for part, found in self.of(list(context.states), ours=False).items():
            state = context.states[part]
            if (found.segment, found.offset) != (state.segment, state.offset):
                raise TransientError(
                    f"{self._files(part).path(found.segment)} has changed since it was checked",
                    step=context.step_id,
                    part=part,
                    why=f"another query writes to it: it had {state.offset} bytes before and has {found.offset} now",
                    do="stop the other query and start this one again",
                )

    def _rolls(self) -> bool:
        return self.options.roll_bytes is not None or self.options.roll_interval is not None

    def _begun(self, part: str, segments: Sequence[int], incarnation: str) -> FileState:
        kept = self.register.find_base(incarnation, part)
        if kept is not None:
            return kept
        first = segments[0] if segments else 0 if self._rolls() else None
        return FileState(offset=0, segment=None if self._size(part) else first)

    def _of(self, part: str, segments: Sequence[int], ours: bool) -> FileState:
        files, size = self._files(part), self._size(part)
        first = 0 if self._rolls() else None
        if not size and not segments:
            return FileState(offset=0, segment=first)
        if self.options.existing.others == "delete":
            # In a directory of this step, nothing is deleted as a whole: a new part begins with its oldest file and
            # truncates everything after it.
            return FileState(offset=0, segment=None if ours and size else first)
        if self.options.existing.others == "reject":
            path = files.path(None if size else segments[0])
            raise TargetNotEmptyError(
                f"{path} holds {size or files.size(segments[0])} bytes that are not recorded",
                part=part,
                do='move the part\'s files to another location, or set on_existing="resume" or "overwrite"',
            )
        if segments or self._rolls():
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

    def _files(self, part: str) -> PartFiles:
        return PartFiles(self.register.store.root, part)

    def _size(self, part: str) -> int:
        return self._files(part).size(None) or 0
