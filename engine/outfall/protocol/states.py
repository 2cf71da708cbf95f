"""The states of a step: their buffered rows, and their way between log and tasks.

A state goes from the log into the ticket, then to the task that continues from it, and back with the task's result. It
may contain rows that are not in the target yet. These are counted per state, and summed over the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outfall.capabilities import BufferedRows, SupportsBufferedRows
from outfall.capability_checks import ResolvedSink
from outfall.errors import ConfigurationError
from outfall.recovery.entries import CARRIED, BufferedRecord, StoredValue, carry_in, carry_out, load_value
from outfall.recovery.log import RecoveryConfig, RecoveryLog

ROWS_BUFFERED = "rows_held"
"""The counter of the rows that are buffered after an epoch. Not summed over tasks or epochs."""

ROWS_DRAINED = "rows_drained"
"""The counter of the rows that a drain delivered. They were counted as `rows` in their own epoch."""


ROWS_BY_SPARK = "rows_by_spark"
"""The counter of the rows that Spark's own writer wrote. Present in each epoch that it wrote, also without rows."""


def load_states(resolved: ResolvedSink, stored: Mapping[str, StoredValue], log: RecoveryLog | None) -> dict[str, Any]:
    """Deserialize recorded states. `log` is the log with large states."""
    return {name: load_value(resolved.state_serializer(name), value, log=log) for name, value in stored.items()}


def buffered_in(resolved: ResolvedSink, state: Any) -> BufferedRecord | None:
    """Return the buffered rows of a state as the recovery data records them; `None` if there are none.

    The state is that of a writer or of a part. For a part with several states, it is a mapping from name to state.
    """
    if SupportsBufferedRows not in resolved.capabilities:
        return None
    held = resolved.sink.buffered_rows(state)
    return BufferedRecord(rows=held.rows, oldest=held.oldest) if held.rows else None


def total_buffered(states: Iterable[StoredValue]) -> BufferedRows:
    """Return the number of buffered rows in the states, and the time of the oldest."""
    records = [state.held for state in states if state.held is not None]
    oldest = min((record.oldest for record in records if record.oldest is not None), default=None)
    return BufferedRows(sum(record.rows for record in records), oldest)


def carried_to_tasks(
    recovery: RecoveryConfig,
    log: RecoveryLog,
    states: Mapping[str, StoredValue],
    writer_states: Sequence[StoredValue],
) -> tuple[dict[str, StoredValue], list[StoredValue]]:
    """Return recorded states for a ticket, with their content if tasks cannot reach the log."""
    if recovery.reaches_tasks:
        return dict(states), list(writer_states)
    return (
        {name: carry_out(state, log) for name, state in states.items()},
        [carry_out(state, log) for state in writer_states],
    )


def carried_to_log(
    recovery: RecoveryConfig,
    log: RecoveryLog,
    states: Mapping[str, StoredValue],
    writer_states: Sequence[StoredValue],
    *,
    step_id: str,
    generation: int,
) -> tuple[dict[str, StoredValue], list[StoredValue]]:
    """Return the states of the tasks' results as the log records them.

    Raises `ConfigurationError` if they are larger than a ticket can be. Nothing is recorded yet.
    """
    if recovery.reaches_tasks:
        return dict(states), list(writer_states)
    _check_size(step_id, [*states.values(), *writer_states])
    return (
        {name: carry_in(state, log, name=name, generation=generation) for name, state in states.items()},
        [carry_in(state, log, name="writer", generation=generation) for state in writer_states],
    )


def _check_size(step_id: str, states: Iterable[StoredValue]) -> None:
    size = sum(state.blob.length if state.blob else len(state.text or state.base64 or "") for state in states)
    if size > CARRIED:
        raise ConfigurationError(
            f"the states of this step have {size:,} bytes together, more than the maximum of {CARRIED:,}",
            step=step_id,
            why="tasks cannot reach the driver's recovery database, so the driver sends all states to every task",
            do="use a recovery store that tasks reach, such as the checkpoint's, and outfall.recovery.copy_step",
        )
