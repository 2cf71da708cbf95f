"""Making growing files final before their epoch is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.capabilities import PartSeal, SealContext, WriterId
from outfall.errors import FencedError, SealError
from outfall.file.disk import explained
from outfall.file.fence import WriterRecord, stale
from outfall.file.growing_names import part_index
from outfall.file.growing_part import FileState
from outfall.file.part_files import PartFiles
from outfall.file.register import Register
from outfall.steps import reached


def seal_parts(register: Register, context: SealContext, seals: Sequence[PartSeal[FileState]]) -> None:
    """Close all parts against every writer of this generation and older ones, once they hold what their states say.

    Raises:
        SealError: another attempt than the winner wrote a part last, or its length differs.
        FencedError: a newer driver, or an attempt of it, has the parts.
        StaleWriterError: another query has them.
        TargetLostError: a part that nobody answered for lost bytes.
    """
    mine = WriterRecord.sealed_by(context.incarnation, context.generation, context.epoch)
    with explained("sealing", register.path), register.alone() as held:
        _refuse_newer(held.records.step, mine, None)
        directory = register.layout.path
        writers = held.records.writers()
        for seal in seals:
            index = part_index(seal.part)
            found = writers[index] if index < len(writers) else None
            _refuse_newer(found, mine, seal.part)
            if seal.writer is not None:
                _check_winner(PartFiles(directory, seal.part), seal.state, seal.writer, found, context.epoch)
        for seal in seals:
            if seal.writer is None:
                # Attempts that do not count may have left bytes, and no task of this epoch has cut them.
                PartFiles(directory, seal.part).cut_back(seal.state.segment, seal.state.offset)
        reached("file: sealing")
        held.enter(mine)
        reached("file: sealed")


def _refuse_newer(found: WriterRecord | None, mine: WriterRecord, part: str | None) -> None:
    if found is None:
        return
    if found.incarnation != mine.incarnation:
        raise stale(found, mine, part)
    if found.writer.generation > mine.writer.generation:
        raise FencedError(
            f"a newer driver has taken over: the part is {found}",
            epoch=mine.writer.epoch,
            part=part,
            why=f"this driver is generation {mine.writer.generation}",
            do="nothing, if the newer one is meant to run",
        )


def _check_winner(files: PartFiles, state: FileState, winner: WriterId, found: WriterRecord | None, epoch: int) -> None:
    size, more = files.size(state.segment), files.has_later(state.segment)
    if found is None or found.writer != winner or size != state.offset or more:
        raise SealError(
            f"the part is {found or 'without a record of its writer'} and {files.path(state.segment)} holds"
            f" {size or 0} bytes{', with a segment after it' if more else ''}",
            epoch=epoch,
            part=files.part,
            why=f"the recorded winner is generation {winner.generation}, epoch {winner.epoch}, attempt"
            f" {winner.attempt} with {state.offset} bytes there",
            do="nothing: the epoch is run again",
        )
