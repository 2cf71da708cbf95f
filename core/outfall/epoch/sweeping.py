"""Removes what lost attempts left behind."""

from __future__ import annotations

import logging
from typing import Any

from outfall.capabilities import SupportsSweep, SweepContext

_log = logging.getLogger(__name__)


def sweep_target(sink: Any, context: SweepContext) -> None:
    """Let the sink remove what carries our incarnation and an older generation.

    Called when no record names anything of an older generation: after COMPLETED, and after the BEGIN that follows a
    lost attempt, whose leftovers may be what fills the disk. A failure is logged and not raised: the next sweep comes.
    """
    if not isinstance(sink, SupportsSweep):
        return
    try:
        removed = sink.sweep(context)
        _log.debug("step %s: swept %d leftovers", context.step_id, removed)
    except Exception:
        _log.warning("step %s: sweeping the target failed, it will be tried again", context.step_id, exc_info=True)
