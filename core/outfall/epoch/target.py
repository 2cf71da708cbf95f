"""The target as the recovery data knows it, checked and opened for an epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outfall.capabilities import SupportsTarget, TargetContext
from outfall.epoch.journal import JournalView
from outfall.epoch.states import state_serializer
from outfall.recovery.entries import StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.recovery.values import load_value, store_state
from outfall.sink_shape import is_fixed
from outfall.steps import reached


def check_target(
    sink: Any, step_id: str, view: JournalView, log: RecoveryLog, *, epoch: int | None
) -> dict[str, StoredValue]:
    """Let the sink compare its target with the log, before BEGIN.

    Returns:
        Where parts start that have no state yet but hold data that is kept.

    Raises:
        TargetError: the target is not what the log says.
    """
    if not isinstance(sink, SupportsTarget):
        return {}
    bases = sink.check_target(_context(sink, step_id, view, log, epoch))
    serializer = state_serializer(sink)
    return {
        part: store_state(serializer, state, log=log, name=part, generation=view.last + 1)
        for part, state in bases.items()
        if part not in view.states
    }


def open_target(
    sink: Any, step_id: str, before: JournalView, begun: JournalView, log: RecoveryLog, *, epoch: int | None
) -> None:
    """Let the sink make what its tasks need.

    Args:
        sink: the sink.
        step_id: the step's id.
        before: the log without this epoch's BEGIN.
        begun: the log with it.
        log: for large states.
        epoch: the epoch that began.
    """
    if isinstance(sink, SupportsTarget):
        context = replace(
            _context(sink, step_id, begun, log, epoch),
            first_contact=before.begin is None,
            last_generation=before.generation,
            generation=begun.generation,
        )
        sink.open_target(context)
        reached("after open target")


def _context(sink: Any, step_id: str, view: JournalView, log: RecoveryLog, epoch: int | None) -> TargetContext[Any]:
    states: dict[str, Any] = {}
    if is_fixed(sink):
        serializer = state_serializer(sink)
        states = {part: load_value(serializer, state, log=log) for part, state in view.states.items()}
    return TargetContext(
        step_id=step_id,
        incarnation=view.incarnation or "",
        epoch=epoch,
        completed=view.completed,
        first_contact=view.begin is None,
        states=states,
        last_generation=view.generation,
    )
