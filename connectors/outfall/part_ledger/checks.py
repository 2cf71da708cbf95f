"""Checks of a ledger of parts before a part is written, sealed or continued. They need no server.

If each task publishes the rows of its parts independently, the target has one ledger row per part: the last epoch, the
next offset, and the count and an order-independent hash of the rows of that epoch. An attempt that replays the epoch
compares its rows with the ledger row: they are in the target, they are missing, or they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outfall.capabilities import SealContext, WriterInitContext
from outfall.errors import FencedError, ReplayDiffersError, TargetAheadError, TargetLostError
from outfall.part_ledger.row_hash import RowHash
from outfall.target_record import TargetRecord, behind, check_writing


@dataclass(frozen=True)
class PartContext:
    """The target, step and epoch of a check, for errors."""

    target: str
    step: str
    epoch: int | None
    alternative: str = ""
    """Another remedy, for a source that cannot replay the same rows."""


@dataclass(frozen=True)
class PartRow:
    """The ledger row of one part."""

    part: str
    generation: int
    """The generation that wrote it last."""
    epoch: int | None
    """The newest epoch whose rows of this part are in the target; `None` before the first."""
    attempt: int
    """The attempt that wrote them."""
    next_offset: int
    """The offset after the last row of the part."""
    rows: int
    """The number of rows of that epoch."""
    hash: int
    """The hash of these rows, see `RowHash`."""

    def holds(self, epoch: int) -> bool:
        """Return whether the epoch's rows are in the target."""
        return self.epoch == epoch

    def same_rows(self, other: PartRow) -> bool:
        """Return whether both describe the same rows at the same offsets."""
        mine = (self.epoch, self.next_offset, self.rows, self.hash)
        return mine == (other.epoch, other.next_offset, other.rows, other.hash)


@dataclass
class PartCount:
    """The rows of one part so far, in one attempt."""

    part: str
    start: int
    """The offset of its first row."""
    hash: RowHash = field(default_factory=RowHash)

    @property
    def next_offset(self) -> int:
        """The offset after its last row."""
        return self.start + self.hash.rows

    def row(self, writer: WriterInitContext) -> PartRow:
        """Return the ledger row of the part once these rows are in the target."""
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
    place: PartContext, step: TargetRecord, found: Mapping[str, PartRow], wanted: Mapping[str, PartRow]
) -> frozenset[str]:
    """Return the parts whose rows must be written. The rows of the other parts are in the target.

    The step's record is locked and checked by `check_step`. `found` has the ledger rows of the parts, locked, and
    `wanted` those after the rows are written. Raises `FencedError` if the target has a later epoch,
    `ReplayDiffersError` if it has the epoch with other rows, `TargetLostError` if a ledger row is missing or behind the
    recovery log, and `TargetAheadError` if one is ahead of it.
    """
    return frozenset(part for part, row in wanted.items() if _is_missing(place, step, found.get(part), row))


def check_step(target: str, step: TargetRecord | None, writer: WriterInitContext | SealContext) -> TargetRecord:
    """Reject a writer whose BEGIN did not open the target last, and a ledger without that BEGIN.

    Raises `FencedError` if another BEGIN opened the target since, and `TargetLostError` if the ledger has no record of
    this BEGIN.
    """
    if step is None or step.generation < writer.generation:
        what = f"the ledger has no record of generation {writer.generation} of this query"
        raise _lost(PartContext(target, writer.step_id, writer.epoch), what, None)
    check_writing(f"the ledger of {target}", step, writer)
    return step


def check_sealed(place: PartContext, found: Mapping[str, PartRow], offsets: Mapping[str, int]) -> int:
    """Reject an epoch unless each part matches its state; return the number of rows of the epoch.

    `found` has the ledger rows under the step's lock, and `offsets` the states of all parts after the epoch. Raises
    `ReplayDiffersError` if a failed attempt wrote rows to a part for which the replay has none, and `TargetLostError`
    if a part ends before its state.
    """
    for part, offset in offsets.items():
        row = found.get(part)
        if row is None or row.next_offset < offset:
            raise _lost(place, f"part {part} ends before offset {offset}", part)
        if row.next_offset > offset:
            raise _differs(place, part, f"an earlier attempt wrote {row.rows} rows that were not replayed")
    return sum(row.rows for part, row in found.items() if row.epoch == place.epoch and part in offsets)


def check_states(
    place: PartContext, completed: int | None, found: Mapping[str, PartRow], offsets: Mapping[str, int], *, opened: bool
) -> None:
    """Compare the ledger with the recovery log before an epoch begins.

    The ledger may be ahead by parts of the epoch that begins now, if an earlier attempt did not finish it. `completed`
    is the last completed epoch. `opened` tells whether the newest recorded generation has opened the target, so that
    each part with a state has a row. Raises `TargetLostError` if a part ends before its state, and `TargetAheadError`
    if it ends after it.
    """
    for part in sorted(found.keys() | offsets.keys()):
        row, offset = found.get(part), offsets.get(part, 0)
        if row is None:
            if offset and opened:
                raise _lost(place, f"it has no part {part}, but {offset} of its rows are recorded", part)
            continue
        unfinished = row.epoch is not None and (completed is None or row.epoch > completed)
        if unfinished and row.epoch != place.epoch:
            raise _ahead(place, f"part {part} holds epoch {row.epoch}, but epoch {place.epoch} must be next", part)
        _check_end(place, part, row.next_offset - row.rows if unfinished else row.next_offset, offset)


def _is_missing(place: PartContext, step: TargetRecord, found: PartRow | None, wanted: PartRow) -> bool:
    part, epoch = wanted.part, wanted.epoch or 0
    if found is None:
        raise _lost(place, f"it has no row for part {part}", part)
    if found.holds(epoch):
        if not found.same_rows(wanted):
            raise _differs(
                place, part, f"it has {found.rows} rows, but {wanted.rows} were replayed{_or_others(found, wanted)}"
            )
        return False
    if found.epoch is not None and found.epoch > epoch:
        raise FencedError(
            f"the ledger of {place.target} holds epoch {found.epoch} of this part",
            step=place.step,
            epoch=epoch,
            part=part,
            why="this is a stale task: its epoch was completed without it",
            do="nothing",
        )
    if step.epoch is not None and step.epoch >= epoch:
        raise _differs(place, part, "the epoch was closed without rows for this part")
    _check_end(place, part, found.next_offset, wanted.next_offset - wanted.rows)
    return True


def _check_end(place: PartContext, part: str, end: int, recorded: int) -> None:
    what = f"part {part} ends at offset {end}, but {recorded} is recorded"
    if end < recorded:
        raise _lost(place, what, part)
    if end > recorded:
        raise _ahead(place, what, part)


def _or_others(found: PartRow, wanted: PartRow) -> str:
    return ", some of which differ" if found.rows == wanted.rows else ""


def _differs(place: PartContext, part: str, what: str) -> ReplayDiffersError:
    return ReplayDiffersError(
        f"{place.target} holds other rows of this epoch than those that were replayed: {what}",
        step=place.step,
        epoch=place.epoch,
        part=part,
        why="parts require a source that replays the same rows of an epoch, and the same key; other parts of the epoch"
        " may already be in the target",
        do=f"replay the original rows{place.alternative}",
    )


def _lost(place: PartContext, what: str, part: str | None) -> TargetLostError:
    return behind(f"the ledger of {place.target}", what, step=place.step, epoch=place.epoch, part=part)


def _ahead(place: PartContext, what: str, part: str | None) -> TargetAheadError:
    return TargetAheadError(
        f"the ledger of {place.target} is ahead of the recovery data: {what}",
        step=place.step,
        epoch=place.epoch,
        part=part,
        why="the recovery log was restored from an older copy, or an unfinished epoch was not replayed",
        do="make sure that no other run of the query is active, and restore the newest recovery log, or replay the"
        " unfinished epoch first. If the recovery log is lost, compare the target with the source, remove manually the"
        " rows that will be replayed, and start with a new checkpoint",
    )
