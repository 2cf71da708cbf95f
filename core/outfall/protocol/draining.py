"""Delivers what a sink holds back, while no query runs.

```
BEGIN (drain)   as for any epoch: settle · check the target · fence
tasks           here, one after the other: each part or writer that has something · flush(end_of_input=True)
finish          PREPARED · COMMITTING · commit · COMPLETED, as for any epoch
```

A drain is an epoch of its own number, the one after the last completed: for sinks, whose names and ledgers go by epoch,
it is one like any other. It has no batch, so from then on an epoch's number is the batch id and the drains before it.
What a drain that crashed leaves is settled by the next BEGIN, whether that is of a drain or of a batch.

Rows that a sink cannot put into one epoch (those of several sets of columns, in one file) take several drains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from outfall.capabilities import Metrics
from outfall.errors import EpochAbandonedError
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.protocol.states import ROWS_DRAINED, ROWS_HELD, state_names, total_held
from outfall.protocol.task import EpochTask, TaskIdentity

_log = logging.getLogger(__name__)

REWRITES = 2
"""How often an epoch whose written data was lost is written anew before it fails."""


def drain(make_coordinator: Callable[[], EpochCoordinator]) -> EpochResult | None:
    """Deliver everything that is held back, in this process.

    Args:
        make_coordinator: makes a coordinator of the step; called once for each try.

    Returns:
        What was done, with `rows_drained`, and the counts and seconds of several epochs as one; `None` when nothing was
        held back.

    Raises:
        CapabilityError: the sink does not say what it holds back, or delivers none of it.
        OutfallError: see `EpochCoordinator`.
    """
    done: EpochResult | None = None
    while (result := _drain_epoch(make_coordinator)) is not None:
        done = result if done is None else _both(done, result)
    return done


def _drain_epoch(make_coordinator: Callable[[], EpochCoordinator]) -> EpochResult | None:
    for _ in range(REWRITES):
        try:
            return _drain_once(make_coordinator())
        except EpochAbandonedError as error:
            _log.warning("%s Draining anew.", error)
    return _drain_once(make_coordinator())


def _drain_once(coordinator: EpochCoordinator) -> EpochResult | None:
    with closing(coordinator):
        ticket = coordinator.begin_drain()
        if ticket is None:
            return None
        result = coordinator.finish(ticket, run_drain(coordinator.sink, ticket))
        held = total_held([*ticket.states.values(), *ticket.writer_states]).rows
        drained = held - result.counts.get(ROWS_HELD, 0)
        return replace(result, counts={**result.counts, ROWS_DRAINED: drained})


def _both(earlier: EpochResult, later: EpochResult) -> EpochResult:
    counts = Metrics()
    for result in (earlier, later):
        counts.add_all(result.counts)
    held = {name: later.counts[name] for name in (ROWS_HELD,) if name in later.counts}
    return replace(later, counts=counts.counts | held, seconds=earlier.seconds + later.seconds)


def run_drain(sink: object, ticket: Ticket) -> list[TaskResponse]:
    """Open each part that holds rows back, or one writer for each recorded state, and let it deliver them."""
    parts: list[str | None] = [part for part in ticket.parts if _holds(sink, ticket, part)]
    if not ticket.parts:
        parts = [None] * len(ticket.writer_states)
        ticket = replace(ticket, worker_count=len(parts))
    batch = (ticket.epoch or 0) - ticket.drains
    return [
        EpochTask(sink, ticket, TaskIdentity(batch, worker_index=index, attempt=index)).run([(part, [])])
        for index, part in enumerate(parts)
    ]


def _holds(sink: object, ticket: Ticket, part: str) -> bool:
    states = [ticket.states.get(name) for name in state_names(sink, part)]
    return any(state is not None and state.held for state in states)
