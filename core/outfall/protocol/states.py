"""The states of a step: which each part keeps, what stores them, what they hold back, and how they travel.

A state goes from the log into the ticket, from there to the task that goes on from it, and back with its response. It
may hold rows that are not in the target yet: these are counted in each state, and summed over a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outfall.capabilities import (
    BufferedRows,
    SupportsBufferedRows,
    SupportsPreCommitTopology,
    SupportsStateSerializer,
)
from outfall.capability_checks import SupportsNamedStates, supports
from outfall.errors import ConfigurationError
from outfall.recovery.entries import CARRIED, HeldRecord, StoredValue, carry_in, carry_out, load_value
from outfall.recovery.log import RecoveryConfig, RecoveryLog
from outfall.serde import JsonSerializer, SimpleVersionedSerializer

ROWS_HELD = "rows_held"
"""The counter of an epoch that says how many rows are held back after it. Not summed over tasks or epochs."""

ROWS_DRAINED = "rows_drained"
"""The count of a drain's result that says how many rows it delivered. They were counted as `rows` when they came."""


def state_names(sink: Any, part: str) -> Sequence[str]:
    """The names of a part's states: its own name, unless the sink keeps several."""
    return tuple(sink.state_names(part)) if supports(sink, SupportsNamedStates) else (part,)


def state_serializer(sink: Any, name: str) -> SimpleVersionedSerializer[Any]:
    """What stores the state of this name: the sink's own serializer, else JSON."""
    if supports(sink, SupportsNamedStates):
        return sink.named_state_serializer(name)
    return sink.state_serializer() if supports(sink, SupportsStateSerializer) else JsonSerializer()


def load_states(sink: Any, stored: Mapping[str, StoredValue], log: RecoveryLog | None) -> dict[str, Any]:
    """Give back recorded states; `log` is where large ones lie."""
    return {name: load_value(state_serializer(sink, name), value, log=log) for name, value in stored.items()}


def resume_state(sink: Any, part: str, states: Mapping[str, Any]) -> Any:
    """What a part is given back, of all states by name; `None` when it has none."""
    own = {name: states[name] for name in state_names(sink, part) if name in states}
    if supports(sink, SupportsNamedStates):
        return own or None
    return own.get(part)


def states_after(sink: Any, part: str, snapshot: Any) -> Mapping[str, Any]:
    """The states in what a part's `snapshot()` returned, by name."""
    return snapshot if supports(sink, SupportsNamedStates) else {part: snapshot}


def hand_over_serializer(sink: Any) -> SimpleVersionedSerializer[Any]:
    """The serializer of what tasks hand over: write results before a pre-commit topology, else committables."""
    if supports(sink, SupportsPreCommitTopology):
        return sink.write_result_serializer()
    serializer: SimpleVersionedSerializer[Any] = sink.committable_serializer()
    return serializer


def held_in(sink: Any, state: Any) -> HeldRecord | None:
    """What a state holds, as the recovery data records it; `None` for nothing.

    Args:
        sink: the sink.
        state: a writer state, or a part's; of a part with several a mapping from the name to the one that is meant.
    """
    if not supports(sink, SupportsBufferedRows):
        return None
    held = sink.buffered_rows(state)
    return HeldRecord(rows=held.rows, oldest=held.oldest) if held.rows else None


def total_held(states: Iterable[StoredValue]) -> BufferedRows:
    """All rows that the states hold, and the age of the oldest of them."""
    records = [state.held for state in states if state.held is not None]
    oldest = min((record.oldest for record in records if record.oldest is not None), default=None)
    return BufferedRows(sum(record.rows for record in records), oldest)


def carried_to_tasks(
    recovery: RecoveryConfig,
    log: RecoveryLog,
    states: Mapping[str, StoredValue],
    writer_states: Sequence[StoredValue],
) -> tuple[dict[str, StoredValue], list[StoredValue]]:
    """Return recorded states as a ticket holds them: whole, where tasks cannot reach the log."""
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
    """Return the states that tasks handed over as the log records them.

    Raises:
        ConfigurationError: they are more than tickets can carry. Nothing is recorded yet.
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
            f"the states of this step have {size:,} bytes together, and at most {CARRIED:,} can be carried",
            step=step_id,
            why="tasks cannot reach the driver's recovery database, so every task gets all states from the driver",
            do="use recovery data that tasks reach too, such as the checkpoint's, and outfall.recovery.copy_step",
        )
