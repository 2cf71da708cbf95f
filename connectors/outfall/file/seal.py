"""Making growing files final before their epoch is recorded."""

from __future__ import annotations

import os

from outfall.capabilities import PartSeal, SealContext, WriterId
from outfall.errors import FencedError, SealError
from outfall.file.disk import explained
from outfall.file.fence import WriterRecord, stale
from outfall.file.growing_part import FileState, cut_to
from outfall.file.layout import Layout
from outfall.file.locked import Patience, held
from outfall.steps import reached


def seal_part(layout: Layout, patience: Patience, context: SealContext, seal: PartSeal[FileState]) -> None:
    """Close one part against every writer of this generation and older ones, once it holds what its state says.

    Raises:
        SealError: another attempt than the winner wrote last, or the length differs.
        FencedError: a newer driver's attempt has the part.
        StaleWriterError: another query has the part.
        TargetLostError: a part that nobody answered for lost bytes.
    """
    attempt = seal.writer.attempt if seal.writer else -1
    mine = WriterRecord(context.incarnation, WriterId(context.generation, context.epoch, attempt), sealed=True)
    path = layout.data(seal.part)
    with explained("sealing", path, seal.part), held(layout.lock(seal.part), patience) as file:
        found = WriterRecord.parse(file.read())
        _refuse_newer(found, mine, seal.part)
        if seal.writer is None:
            # Attempts that do not count may have left bytes, and no task of this epoch has cut them.
            cut_to(path, seal.part, seal.state.offset)
        else:
            _check_winner(path, seal, seal.writer, found, context.epoch)
        reached("file: sealing")
        file.write(mine.line())
        reached("file: sealed")


def _refuse_newer(found: WriterRecord | None, mine: WriterRecord, part: str) -> None:
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


def _check_winner(
    path: str, seal: PartSeal[FileState], winner: WriterId, found: WriterRecord | None, epoch: int
) -> None:
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        size = -1
    if found is None or found.writer != winner or size != seal.state.offset:
        raise SealError(
            f"the part is {found or 'without a record of its writer'} and holds {size} bytes",
            epoch=epoch,
            part=seal.part,
            why=f"the recorded winner is generation {winner.generation}, epoch {winner.epoch}, attempt"
            f" {winner.attempt} with {seal.state.offset} bytes",
            do="nothing: the epoch is run again",
        )
