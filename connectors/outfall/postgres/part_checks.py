"""What the rows of the ledger mean for a part that is to be written, sealed or gone on with. Asks no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outfall.capabilities import SealContext, WriterInitContext
from outfall.errors import FencedError, ReplayDiffersError, TargetAheadError, TargetLostError
from outfall.postgres.ledger import LedgerRow
from outfall.postgres.part_ledger import PartRow
from outfall.target_record import check_writing


@dataclass(frozen=True)
class Place:
    """Where a check stands, for texts: whose epoch of which table."""

    table: str
    step: str
    epoch: int | None


def missing_parts(
    place: Place, step: LedgerRow, found: Mapping[str, PartRow], wanted: Mapping[str, PartRow]
) -> frozenset[str]:
    """Tell which parts' rows are to be written; the others are in the table already.

    Args:
        place: the writer's.
        step: the step's row, locked and checked by `check_step`.
        found: the parts' rows, locked.
        wanted: what they will be once the rows are written.

    Raises:
        FencedError: a later epoch was here.
        ReplayDiffersError: the epoch is there with other rows.
        TargetLostError, TargetAheadError: a row is missing or does not go on where the recovery data does.
    """
    return frozenset(part for part, row in wanted.items() if _is_missing(place, step, found.get(part), row))


def check_step(table: str, step: LedgerRow | None, writer: WriterInitContext | SealContext) -> LedgerRow:
    """Refuse a writer whose BEGIN is not the one that opened the table last, and a ledger that does not know it.

    Raises:
        FencedError, TargetLostError.
    """
    if step is None or step.generation < writer.generation:
        what = f"the ledger does not know generation {writer.generation} of this query's writes"
        raise _lost(Place(table, writer.step_id, writer.epoch), what, None)
    check_writing(f"the ledger of {table}", step.record(), writer)
    return step


def check_sealed(place: Place, found: Mapping[str, PartRow], offsets: Mapping[str, int]) -> int:
    """Refuse to record an epoch unless each part is what its state says; return how many rows the epoch brought.

    Args:
        place: the driver's.
        found: the parts' rows, under the step's lock.
        offsets: the states of all parts after the epoch.

    Raises:
        ReplayDiffersError: a lost attempt wrote rows into a part that this one brought none for.
        TargetLostError: a part has less than its state.
    """
    for part, offset in offsets.items():
        row = found.get(part)
        if row is None or row.next_offset < offset:
            raise _lost(place, f"part {part} ends before offset {offset}", part)
        if row.next_offset > offset:
            raise _differs(place, part, f"an earlier attempt wrote {row.rows} rows that did not come again")
    return sum(row.rows for part, row in found.items() if row.epoch == place.epoch and part in offsets)


def check_states(
    place: Place, completed: int | None, found: Mapping[str, PartRow], offsets: Mapping[str, int], *, opened: bool
) -> None:
    """Compare the ledger with the recovery data before an epoch begins.

    The ledger may be ahead by parts of one epoch: the one that begins now, which an earlier attempt did not finish.

    Args:
        place: the driver's; its epoch is the one that begins.
        completed: the last completed epoch.
        found: the parts' rows.
        offsets: the recorded states.
        opened: whether the newest recorded generation has opened the table, so that each part with a state has a row.

    Raises:
        TargetLostError: a part has less than its state.
        TargetAheadError: it has more.
    """
    for part in sorted(found.keys() | offsets.keys()):
        row, offset = found.get(part), offsets.get(part, 0)
        if row is None:
            if offset and opened:
                raise _lost(place, f"it has no part {part}, which counts {offset} rows", part)
            continue
        unfinished = row.epoch is not None and (completed is None or row.epoch > completed)
        if unfinished and row.epoch != place.epoch:
            raise _ahead(place, f"part {part} holds epoch {row.epoch}, and {place.epoch} is to be written", part)
        counted = row.next_offset - row.rows if unfinished else row.next_offset
        if counted < offset:
            raise _lost(place, f"part {part} ends at offset {counted}, and {offset} is recorded", part)
        if counted > offset:
            raise _ahead(place, f"part {part} ends at offset {counted}, and {offset} is recorded", part)


def _is_missing(place: Place, step: LedgerRow, found: PartRow | None, wanted: PartRow) -> bool:
    part, epoch = wanted.part, wanted.epoch or 0
    if found is None:
        raise _lost(place, f"it has no row for part {part}", part)
    if found.holds(epoch):
        if not found.same_rows(wanted):
            raise _differs(
                place, part, f"{found.rows} rows are there, and {wanted.rows} came{_or_others(found, wanted)}"
            )
        return False
    if found.epoch is not None and found.epoch > epoch:
        raise FencedError(
            f"the ledger of {place.table} holds epoch {found.epoch} of this part",
            step=place.step,
            epoch=epoch,
            part=part,
            why="this attempt is late: its epoch was completed without it",
            do="nothing",
        )
    if step.holds(epoch):
        raise _differs(place, part, "the epoch is closed, and no rows came for this part")
    start = wanted.next_offset - wanted.rows
    if found.next_offset < start:
        raise _lost(place, f"part {part} ends at offset {found.next_offset}, and {start} is recorded", part)
    if found.next_offset > start:
        raise _ahead(place, f"part {part} ends at offset {found.next_offset}, and {start} is recorded", part)
    return True


def _or_others(found: PartRow, wanted: PartRow) -> str:
    return ", of which some differ" if found.rows == wanted.rows else ""


def _differs(place: Place, part: str, what: str) -> ReplayDiffersError:
    return ReplayDiffersError(
        f"{place.table} holds other rows of this epoch than those that came now: {what}",
        step=place.step,
        epoch=place.epoch,
        part=part,
        why="parts stand on a source that brings the same rows of an epoch again, and on the same key; other parts of"
        " the epoch may be in the table by now",
        do='bring the former rows again; or set delivery="epoch", which takes any source, with a new checkpoint',
    )


def _lost(place: Place, what: str, part: str | None) -> TargetLostError:
    return TargetLostError(
        f"the ledger of {place.table} is behind the recovery data: {what}",
        step=place.step,
        epoch=place.epoch,
        part=part,
        why="it was emptied, or the database was restored from a copy older than this query",
        do="restore a newer copy of the database, or start the query with a new checkpoint",
    )


def _ahead(place: Place, what: str, part: str | None) -> TargetAheadError:
    return TargetAheadError(
        f"the ledger of {place.table} is ahead of the recovery data: {what}",
        step=place.step,
        epoch=place.epoch,
        part=part,
        why="the recovery data was restored from an older copy, or an epoch that was begun was not brought again",
        do="see that no other run of the query is active, and restore the newest recovery data, or bring the unfinished"
        " epoch first. If the recovery data is lost, compare the table with the source, take out by hand what will come"
        " again, and start with a new checkpoint",
    )
