"""Seals growing files before their epoch is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.capabilities import PartSeal, SealContext, WriterId
from outfall.errors import FencedError, SealError
from outfall.file.growing.part_files import FileState, PartFiles, part_index
from outfall.file.growing.registry import Register, RegisterEntry, described, stale
from outfall.file.stores.disk import translated_errors
from outfall.target_record import check_writing
from outfall.trace_points import reached


def seal_parts(register: Register, context: SealContext, seals: Sequence[PartSeal[FileState]]) -> None:
    """Check all parts against their states, and close them to all writers of this and older generations.

    Raises `SealError` if another attempt than the winner wrote a part last, its length differs, or another driver
    opened the register last; `FencedError` if a newer driver, or one of its attempts, has the parts; `StaleWriterError`
    if another query has them; and `TargetLostError` if a part without a task result has lost bytes.
    """
    mine = RegisterEntry.sealed_by(context)
    with translated_errors("sealing", register.path), register.alone() as held:
        _refuse_other_driver(register.path, held.records.step, mine, context)
        directory = register.store.root
        writers = held.records.writers()
        for seal in seals:
            found = _writer_of(seal.part, writers)
            _refuse_newer(found, mine, seal.part)
            if seal.writer is not None:
                _check_winner(PartFiles(directory, seal.part), seal.state, seal.writer, found, context.epoch)
        for seal in seals:
            if seal.writer is None:
                # Failed attempts may have left bytes, and no task of this epoch has truncated them.
                found = _writer_of(seal.part, writers)
                again = found is not None and found.is_of_the_begin_of(mine)
                PartFiles(directory, seal.part).cut_back(seal.state.segment, seal.state.offset, again=again)
        reached("file: sealing")
        held.enter(mine)
        reached("file: sealed")


def _writer_of(part: str, writers: Sequence[RegisterEntry | None]) -> RegisterEntry | None:
    index = part_index(part)
    return writers[index] if index < len(writers) else None


def _refuse_other_driver(path: str, step: RegisterEntry | None, mine: RegisterEntry, context: SealContext) -> None:
    _refuse_newer(step, mine, None)
    if step is not None:
        check_writing(path, step.begun, context)
    if step is None or not step.is_of_the_begin_of(mine):
        raise SealError(
            f"this driver is not the last one that opened the parts: according to {path}, the step {described(step)}",
            step=context.step_id,
            epoch=context.epoch,
            why=f"this driver is generation {context.generation} of incarnation {context.incarnation}",
            do="nothing: the epoch is run again",
        )


def _refuse_newer(found: RegisterEntry | None, mine: RegisterEntry, part: str | None) -> None:
    if found is None:
        return
    if found.incarnation != mine.incarnation:
        raise stale(found, mine, part)
    if found.writer.generation > mine.writer.generation:
        raise FencedError(
            f"a newer driver has taken over: the part was {found}",
            epoch=mine.writer.epoch,
            part=part,
            why=f"this driver is generation {mine.writer.generation}",
            do="nothing, if the newer driver is the intended one",
        )


def _check_winner(
    files: PartFiles, state: FileState, winner: WriterId, found: RegisterEntry | None, epoch: int
) -> None:
    size, more = files.size(state.segment), files.has_later(state.segment)
    if found is None or found.writer != winner or size != state.offset or more:
        raise SealError(
            f"the part {described(found)} and {files.path(state.segment)} has {size or 0} bytes"
            f"{', and a segment follows it' if more else ''}",
            epoch=epoch,
            part=files.part,
            why=f"the recorded winner is generation {winner.generation}, epoch {winner.epoch}, attempt"
            f" {winner.attempt} with {state.offset} bytes there",
            do="nothing: the epoch is run again",
        )
