"""What a ledger of parts says of a part that is to be written, sealed or gone on with. Asks no server.

Where each task publishes the rows of its parts by itself, the target holds a row for each part: which epoch it was last
written in, how far it counts, and what the rows of that epoch were, as a count and a hash that knows no order. Whoever
brings the epoch again compares: the same rows are there, or they are missing, or something is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outfall.capabilities import SealContext, WriterInitContext
from outfall.errors import FencedError, ReplayDiffersError, TargetAheadError, TargetLostError
from outfall.part_ledger.row_hash import RowHash
from outfall.target_record import TargetRecord, behind, check_writing


@dataclass(frozen=True)
class PartPlace:
    """Where a check stands, for texts: whose epoch of which target."""

    target: str
    step: str
    epoch: int | None
    alternative: str = ""
    """What else than bringing the same rows can be done, for a source that does not."""


@dataclass(frozen=True)
class PartRow:
    """What the target holds of one part."""

    part: str
    generation: int
    """The generation that wrote it last."""
    epoch: int | None
    """The newest epoch whose rows of this part are in the target; `None` before the first."""
    attempt: int
    """The attempt that wrote them."""
    next_offset: int
    """How many rows the part has, and what it began with."""
    rows: int
    """How many of them that epoch brought."""
    hash: int
    """What they were: see `RowHash`."""

    def holds(self, epoch: int) -> bool:
        """Tell whether the epoch's rows are in the target."""
        return self.epoch == epoch

    def same_rows(self, other: PartRow) -> bool:
        """Tell whether both are of the same rows in the same places."""
        mine = (self.epoch, self.next_offset, self.rows, self.hash)
        return mine == (other.epoch, other.next_offset, other.rows, other.hash)


@dataclass
class PartCount:
    """What came for one part so far, in one attempt."""

    part: str
    start: int
    """The offset of its first row."""
    hash: RowHash = field(default_factory=RowHash)

    @property
    def next_offset(self) -> int:
        """The offset after its last row."""
        return self.start + self.hash.rows

    def row(self, writer: WriterInitContext) -> PartRow:
        """Return what the ledger is to say once these rows are in the target."""
        return PartRow(
            part=self.part,
            generation=writer.generation,
            epoch=writer.epoch,
            attempt=writer.attempt,
            next_offset=self.next_offset,
            rows=self.hash.rows,
            hash=self.hash.value,
        )


def missing_parts(
    place: PartPlace, step: TargetRecord, found: Mapping[str, PartRow], wanted: Mapping[str, PartRow]
) -> frozenset[str]:
    """Tell which parts' rows are to be written; the others are in the target already.

    Args:
        place: the writer's.
        step: the step's record, locked and checked by `check_step`.
        found: the parts' rows, locked.
        wanted: what they will be once the rows are written.

    Raises:
        FencedError: a later epoch was here.
        ReplayDiffersError: the epoch is there with other rows.
        TargetLostError, TargetAheadError: a row is missing or does not go on where the recovery data does.
    """
    return frozenset(part for part, row in wanted.items() if _is_missing(place, step, found.get(part), row))


def check_step(target: str, step: TargetRecord | None, writer: WriterInitContext | SealContext) -> TargetRecord:
    """Refuse a writer whose BEGIN is not the one that opened the target last, and a ledger that does not know it.

    Raises:
        FencedError, TargetLostError.
    """
    if step is None or step.generation < writer.generation:
        what = f"the ledger does not know generation {writer.generation} of this query's writes"
        raise _lost(PartPlace(target, writer.step_id, writer.epoch), what, None)
    check_writing(f"the ledger of {target}", step, writer)
    return step


def check_sealed(place: PartPlace, found: Mapping[str, PartRow], offsets: Mapping[str, int]) -> int:
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
    place: PartPlace, completed: int | None, found: Mapping[str, PartRow], offsets: Mapping[str, int], *, opened: bool
) -> None:
    """Compare the ledger with the recovery data before an epoch begins.

    The ledger may be ahead by parts of one epoch: the one that begins now, which an earlier attempt did not finish.

    Args:
        place: the driver's; its epoch is the one that begins.
        completed: the last completed epoch.
        found: the parts' rows.
        offsets: the recorded states.
        opened: whether the newest recorded generation has opened the target, so that each part with a state has a row.

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
        _check_end(place, part, row.next_offset - row.rows if unfinished else row.next_offset, offset)


def _is_missing(place: PartPlace, step: TargetRecord, found: PartRow | None, wanted: PartRow) -> bool:
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
            f"the ledger of {place.target} holds epoch {found.epoch} of this part",
            step=place.step,
            epoch=epoch,
            part=part,
            why="this attempt is late: its epoch was completed without it",
            do="nothing",
        )
    if step.epoch is not None and step.epoch >= epoch:
        raise _differs(place, part, "the epoch is closed, and no rows came for this part")
    _check_end(place, part, found.next_offset, wanted.next_offset - wanted.rows)
    return True


def _check_end(place: PartPlace, part: str, end: int, recorded: int) -> None:
    what = f"part {part} ends at offset {end}, and {recorded} is recorded"
    if end < recorded:
        raise _lost(place, what, part)
    if end > recorded:
        raise _ahead(place, what, part)


def _or_others(found: PartRow, wanted: PartRow) -> str:
    return ", of which some differ" if found.rows == wanted.rows else ""


def _differs(place: PartPlace, part: str, what: str) -> ReplayDiffersError:
    return ReplayDiffersError(
        f"{place.target} holds other rows of this epoch than those that came now: {what}",
        step=place.step,
        epoch=place.epoch,
        part=part,
        why="parts stand on a source that brings the same rows of an epoch again, and on the same key; other parts of"
        " the epoch may be in the target by now",
        do=f"bring the former rows again{place.alternative}",
    )


def _lost(place: PartPlace, what: str, part: str | None) -> TargetLostError:
    return behind(f"the ledger of {place.target}", what, step=place.step, epoch=place.epoch, part=part)


def _ahead(place: PartPlace, what: str, part: str | None) -> TargetAheadError:
    return TargetAheadError(
        f"the ledger of {place.target} is ahead of the recovery data: {what}",
        step=place.step,
        epoch=place.epoch,
        part=part,
        why="the recovery data was restored from an older copy, or an epoch that was begun was not brought again",
        do="see that no other run of the query is active, and restore the newest recovery data, or bring the unfinished"
        " epoch first. If the recovery data is lost, compare the target with the source, take out by hand what will"
        " come again, and start with a new checkpoint",
    )
