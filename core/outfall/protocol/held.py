"""Rows that are held back across epochs: counted in each state, summed over a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outfall.capabilities import HeldRows, SupportsHeldRows
from outfall.recovery.entries import HeldRecord, StoredValue

ROWS_HELD = "rows_held"
"""The counter of an epoch that says how many rows are held back after it. Not summed over tasks or epochs."""

ROWS_DRAINED = "rows_drained"
"""The count of a drain's result that says how many rows it delivered. They were counted as `rows` when they came."""


def held_in(sink: Any, state: Any) -> HeldRecord | None:
    """What a state holds, as the recovery data records it; `None` for nothing.

    Args:
        sink: the sink.
        state: a writer state, or a part's; of a part with several a mapping from the name to the one that is meant.
    """
    if not isinstance(sink, SupportsHeldRows):
        return None
    held = sink.held_rows(state)
    return HeldRecord(rows=held.rows, oldest=held.oldest) if held.rows else None


def total_held(states: Iterable[StoredValue]) -> HeldRows:
    """All rows that the states hold, and the age of the oldest of them."""
    records = [state.held for state in states if state.held is not None]
    oldest = min((record.oldest for record in records if record.oldest is not None), default=None)
    return HeldRows(sum(record.rows for record in records), oldest)
