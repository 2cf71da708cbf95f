"""Removes what lost attempts left behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import SupportsSweep, SupportsWriterState, SweepContext
from outfall.protocol.states import load_states
from outfall.recovery.entries import StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.recovery.values import load_value

_log = logging.getLogger(__name__)


def sweep_context(
    sink: Any,
    step_id: str,
    incarnation: str,
    generation: int,
    *,
    states: Mapping[str, StoredValue],
    writer_states: Sequence[StoredValue],
    log: RecoveryLog,
    final: bool = False,
) -> SweepContext:
    """Make the context of a sweep. What it reads it reads while the log is open.

    Args:
        sink: the sink, whose serializers read the states.
        step_id: the step's id.
        incarnation: whose names may be removed.
        generation: the first one that is spared.
        states: the states of parts, as they are recorded.
        writer_states: the writer states, as they are recorded.
        log: where large states lie.
        final: whether the last epoch of this incarnation is completed.
    """

    def read_writer_states() -> Sequence[Any]:
        if not isinstance(sink, SupportsWriterState):
            return ()
        serializer = sink.writer_state_serializer()
        return [load_value(serializer, state, log=log) for state in writer_states]

    return SweepContext(
        step_id,
        incarnation,
        generation,
        final=final,
        states=lambda: load_states(sink, states, log),
        writer_states=read_writer_states,
    )


def sweep_target(sink: Any, context: SweepContext) -> None:
    """Let the sink remove what carries our incarnation and an older generation.

    Called when no record but the states names anything of an older generation: after COMPLETED, and after the BEGIN
    that follows a lost attempt, whose leftovers may be what fills the disk. A failure is logged and not raised: the
    next sweep comes.
    """
    if not isinstance(sink, SupportsSweep):
        return
    try:
        removed = sink.sweep(context)
        _log.debug("step %s: swept %d leftovers", context.step_id, removed)
    except Exception:
        _log.warning("step %s: sweeping the target failed, it will be tried again", context.step_id, exc_info=True)
