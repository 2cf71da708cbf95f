"""Delivers buffered rows while no query runs.

```
BEGIN (drain)   as in any epoch: resolve open epochs · check the target · fence
tasks           in this process, one by one: each part or writer with buffered rows · flush(end_of_input=True)
finish          PREPARED · COMMITTING · commit · COMPLETED, as in any epoch
```

A drain is an epoch with its own number, the one after the last completed epoch. Names and ledgers of sinks contain the
number, and to a sink a drain is an epoch like any other. It has no batch: from then on, an epoch's number is the batch
id plus the number of earlier drains. The next BEGIN, of a drain or a batch, resolves a drain that crashed.

Rows that cannot be in one epoch, such as rows with different columns in one file, require several drains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from outfall.capabilities import Metrics
from outfall.capability_checks import ResolvedSink
from outfall.errors import EpochAbandonedError
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.protocol.states import ROWS_BUFFERED
from outfall.protocol.task import EpochTask, TaskIdentity

_log = logging.getLogger(__name__)

REWRITES = 2
"""How often an epoch whose written data was lost is written again before it fails."""


def drain(make_coordinator: Callable[[], EpochCoordinator]) -> EpochResult | None:
    """Deliver all buffered rows, in this process. Return `None` if no rows were buffered.

    `make_coordinator` is called once per attempt. The outcome has `rows_drained`; its counts and seconds are the sums
    over all epochs of the drain. Raises `CapabilityError` if the sink has no `SupportsBufferedRows` or delivers no row,
    and the errors of `EpochCoordinator`.
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
            _log.warning("%s Draining again.", error)
    return _drain_once(make_coordinator())


def _drain_once(coordinator: EpochCoordinator) -> EpochResult | None:
    with closing(coordinator):
        ticket = coordinator.begin_drain()
        if ticket is None:
            return None
        return coordinator.finish(ticket, run_drain(coordinator.resolved, ticket))


def _both(earlier: EpochResult, later: EpochResult) -> EpochResult:
    counts = Metrics()
    for result in (earlier, later):
        counts.add_all(result.counts)
    held = {name: later.counts[name] for name in (ROWS_BUFFERED,) if name in later.counts}
    return replace(later, counts=counts.counts | held, seconds=earlier.seconds + later.seconds)


def run_drain(resolved: ResolvedSink, ticket: Ticket) -> list[TaskResponse]:
    """Open each part with buffered rows, or one writer per recorded state, and flush it."""
    parts: list[str | None] = [part for part in ticket.parts if _holds(resolved, ticket, part)]
    if not ticket.parts:
        parts = [None] * len(ticket.writer_states)
        ticket = replace(ticket, worker_count=len(parts))
    batch = (ticket.epoch or 0) - ticket.drains
    return [
        EpochTask(resolved.sink, ticket, TaskIdentity(batch, worker_index=index, attempt=index)).run([(part, [])])
        for index, part in enumerate(parts)
    ]


def _holds(resolved: ResolvedSink, ticket: Ticket, part: str) -> bool:
    states = [ticket.states.get(name) for name in resolved.state_names(part)]
    return any(state is not None and state.held for state in states)
