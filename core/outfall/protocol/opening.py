"""Opens a sink's partition as the recovery data says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import SupportsWriterContext, SupportsWriterState, WriterInitContext
from outfall.capability_checks import is_fixed
from outfall.protocol.states import resume_state


def open_partition(
    sink: Any, context: WriterInitContext, *, states: Mapping[str, Any] | None = None, recovered: Sequence[Any] = ()
) -> Any:
    """Open the part that the context names, or a writer of a dynamic sink.

    Args:
        sink: the sink.
        context: who writes.
        states: the states of a fixed sink's part, by name.
        recovered: the states that a dynamic sink's writer goes on from.
    """
    if isinstance(sink, SupportsWriterContext):
        sink = sink.bind(context)
    if is_fixed(sink):
        part = context.part or ""
        return sink.build_part(context.step_id, part, resume_state(sink, part, states or {}))
    if recovered and isinstance(sink, SupportsWriterState):
        return sink.restore_writer(context, recovered)
    return sink.build(context.step_id, context.worker_index, context.worker_count)
