"""Makes a driver the newest one of a step, and begins an epoch.

```
read the log to its end · resolve open epochs · check the epoch · sync the source · check the target
BEGIN · open the target · clean up the data of failed attempts
```

An older driver may write to the log meanwhile. A driver that has just started then reads the log again. A driver that
has written this step before was overtaken, and fails.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TypeVar

from outfall.capabilities import SupportsWriterState, WithCompatibleState
from outfall.capability_checks import ResolvedSink
from outfall.errors import FencedError, OutfallError, UnexpectedEpochError
from outfall.first_contact import first_read
from outfall.protocol.epoch_commit import EpochCommit
from outfall.protocol.journal import Journal, JournalView
from outfall.protocol.messages import Ticket
from outfall.protocol.moving import move_targets
from outfall.protocol.states import carried_to_tasks
from outfall.protocol.step import RunPosition, Step
from outfall.protocol.target import check_target, clean_up_context, clean_up_target, open_target
from outfall.protocol.validation import (
    check_batch,
    check_identity,
    expected_epoch,
    fenced,
    listed_parts,
    log_lost,
    rerun_batch,
)
from outfall.recovery.entries import Begin, ChildRecord, StoredValue, copy_value
from outfall.recovery.log import EntryExistsError
from outfall.trace_points import reached
from outfall.version import outfall_version

T = TypeVar("T")

_log = logging.getLogger(__name__)

TAKEOVER_ATTEMPTS = 20
"""How often a starting driver reads the log again because an older driver still writes to it."""


def take_over(
    step: Step, position: RunPosition | None, begin: Callable[[JournalView], T], *, first_batch: bool = False
) -> T:
    """Read the log and begin the epoch with `begin`, as the newest driver of the step.

    In the query's first batch, which says `first_batch`, this run's first read does not wait for an outage to end.

    `begin` is called again if an older driver has written to the log meanwhile, and its errors are raised. The position
    is `None` before this run's first epoch. Raises `FencedError` if another driver has taken over since this run's last
    epoch, and `RecordError` if entries are missing that this run has read or written.
    """
    for tries in range(TAKEOVER_ATTEMPTS):
        with first_read(step.step_id) if first_batch and position is None else nullcontext():
            found = step.journal.read()
        if position is not None and found.last != position.last:
            ahead = found.last > position.last
            raise fenced(step.step_id) if ahead else log_lost(step.step_id, position.last, found.last)
        try:
            taken = begin(found)
        except EntryExistsError:
            if position is not None:
                raise fenced(step.step_id) from None
        except UnexpectedEpochError as error:
            # This driver was started for the batch, but another one has continued since.
            if tries or _is_older(step, found):
                raise fenced(step.step_id) from error
            raise
        except BaseException as error:
            if not is_overtaken(step, error):
                step.remember(done=None)
                raise
            if position is not None or step.journal.view.generation != found.generation:
                raise fenced(step.step_id) from error
        else:
            step.remember(done=None)
            return taken
    raise fenced(step.step_id)


def is_overtaken(step: Step, error: BaseException) -> bool:
    """Return whether an error has the cause that another driver continued: the target has changed since the read.

    To the driver that lost the race, the target is then ahead, or data is missing.
    """
    # An unclear entry may be this driver's own, and proves nothing. It may not be durable: no driver continues from it.
    if isinstance(error, FencedError) or not isinstance(error, OutfallError) or step.journal.unclear:
        return False
    try:
        return step.journal.log.numbers()[-1:] > [step.journal.view.last]
    except Exception:
        _log.warning("step %s: the log cannot be read", step.step_id, exc_info=True)
        return False


def begin_batch(step: Step, view: JournalView, batch: int | None, query_id: str | None, *, first: bool) -> Ticket:
    """Begin the epoch of a batch. For a completed one, append nothing and let the tasks drop its rows.

    `view` is the log, read to its end. `batch` is `None` if only the tasks learn it. The `first` epoch of a run logs
    the start line.
    """
    options = step.options
    check_identity(step.step_id, step.resolved, view, query_id, moved=options.moved)
    if options.moved:
        move_targets(step.step_id, step.resolved, view)
    if batch is not None:
        check_batch(step.step_id, view, batch, adopt=options.adopt_checkpoint, any_later=options.any_later)
    view = _resolved(step, view, first=first)
    epoch = None if batch is None else batch + view.drains
    if epoch is not None and epoch == view.completed:
        if query_id is not None and view.query_id is None:
            _log.warning(
                "step %s: the recovery data does not record which query wrote batch %d; if it was not %s, the rows"
                " that are skipped now are different rows",
                step.step_id,
                batch,
                query_id,
            )
        # A batch that the target has lost since must not count as written.
        following = view.completed + 1 if view.open_epoch is None else view.open_epoch
        check_target(step, view, epoch=following, starting=first)
        _log.info("step %s: batch %d is already completed; its rows are skipped", step.step_id, batch)
        return replace(make_ticket(step, view, epoch, ()), began_at=step.clock.time())
    if options.make_source_durable is not None:
        reached("before the source is durable")
        options.make_source_durable(batch, view.begin is None or view.begin.outfall != outfall_version())
    return begin_epoch(step, view, epoch, query_id, starting=first)


def begin_drain(step: Step, view: JournalView, *, first: bool) -> Ticket | None:
    """Begin an epoch without a batch that delivers buffered rows. Return `None` if there are none.

    `view` is the log, read to its end. The `first` epoch of a run logs the start line.
    """
    check_identity(step.step_id, step.resolved, view, None)
    view = _resolved(step, view, first=first)
    if view.completed is None or not view.buffered.rows:
        _log.info("step %s: no rows are buffered", step.step_id)
        return None
    return begin_epoch(step, view, view.completed + 1, None, drain=True, starting=first)


def begin_epoch(
    step: Step,
    view: JournalView,
    epoch: int | None,
    query_id: str | None,
    *,
    drain: bool = False,
    starting: bool = True,
) -> Ticket:
    """Check the target, append BEGIN, and open the target.

    `view` is a log without an open epoch. `epoch` is `None` for the next number. `drain` is for an epoch without a
    batch, and `starting` for the run's first epoch.
    """
    sink, journal = step.resolved, step.journal
    expected = epoch if epoch is not None else expected_epoch(view, adopt=step.options.adopt_checkpoint)
    parts = listed_parts(step.step_id, sink, list(view.states))
    checked = check_target(step, view, epoch=expected, starting=starting)
    # Last, so that a target that must be prepared first says so.
    if view.begin is None and epoch is not None and epoch == step.options.open_before:
        raise rerun_batch(step.step_id, epoch)
    begin = Begin(
        step=step.step_id,
        incarnation=view.incarnation or secrets.token_hex(8),
        epoch=expected,
        outfall=outfall_version(),
        sink=sink.kind(),
        target=sink.target(),
        query_id=query_id or view.query_id,
        driver=f"{socket.gethostname()}:{step.options.driver_process}",
        bases=checked.bases,
        writer_states=_adopted_writer_states(step, view),
        drain=drain,
        drains=view.drains,
        columns="" if drain else step.options.columns,
        children=_children(sink, view),
        row_identity=sink.row_identity(),
    )
    reached("before BEGIN")
    journal.append(begin)
    reached("after BEGIN")
    begun = journal.view
    open_target(sink, checked, view, begun)
    if view.open_epoch is not None:
        clean_up_target(sink, clean_up_context(sink, step.step_id, begun, journal.log, lost=begun.lost))
    ticket = make_ticket(step, begun, expected, parts)
    return replace(ticket, drain=True, end_of_input=True) if drain else ticket


def make_ticket(step: Step, view: JournalView, epoch: int | None, parts: tuple[str, ...]) -> Ticket:
    """Return the ticket for the tasks of the epoch that begins at this log."""
    states, writer_states = carried_to_tasks(step.recovery, step.journal.log, view.states, view.writer_states)
    return Ticket(
        step_id=step.step_id,
        incarnation=view.incarnation or "",
        generation=view.generation,
        epoch=epoch,
        completed=view.completed,
        outfall=outfall_version(),
        recovery=step.recovery,
        query_id=view.query_id,
        parts=parts,
        states=states,
        writer_states=tuple(writer_states),
        worker_count=step.options.worker_count,
        key=step.options.key,
        any_later=step.options.any_later,
        began_at=view.begin.time.timestamp() if view.begin else 0.0,
        drains=view.drains,
        end_of_input=step.options.end_of_input,
        token=view.token,
        begun_before=bool(view.lost),
        widest_row=view.widest_row if view.row_columns == step.options.columns else 0,
    )


def _resolved(step: Step, view: JournalView, *, first: bool) -> JournalView:
    """Return the log after the epochs of earlier runs are finished."""
    if view.unfinished is not None:
        EpochCommit(step, view.unfinished).resolve()
    if first:
        _announce(step)
    return step.journal.view


def _is_older(step: Step, view: JournalView) -> bool:
    """Return whether the last epoch was completed after this run was started. Decides only on the error text."""
    started, completed = step.options.started, view.completed_time
    return started is not None and completed is not None and completed.timestamp() > started


def _children(sink: ResolvedSink, view: JournalView) -> dict[str, ChildRecord]:
    """Return the records of a composite sink's children."""
    known = view.begin.children if view.begin else {}
    # The next epoch is the first one that a new child receives, whatever its number, if it is completed.
    coming = 0 if view.completed is None else view.completed + 1
    return {
        name: ChildRecord(
            sink=child.kind(),
            target=child.target(),
            since=known[name].since if name in known else coming,
            row_identity=child.row_identity(),
        )
        for name, child in sink.children().items()
    }


def _adopted_writer_states(step: Step, view: JournalView) -> list[StoredValue]:
    """Return the states of other steps that this step adopts in its first epoch."""
    if view.begin is not None or not {SupportsWriterState, WithCompatibleState} <= step.capabilities:
        return []
    names = [name for name in step.sink.compatible_writer_state_names() if name != step.step_id]
    return [state for name in names for state in _writer_states_of(step, name, generation=view.last + 1)]


def _writer_states_of(step: Step, other_id: str, *, generation: int) -> list[StoredValue]:
    """Return the writer states of another step, copied to this step's log."""
    with closing(step.recovery.open(other_id)) as other:
        return [
            copy_value(state, source=other, target=step.journal.log, name=other_id, generation=generation)
            for state in Journal(other, other_id, step.clock).read().writer_states
        ]


def _announce(step: Step) -> None:
    view, requires = step.journal.view, "; ".join(step.resolved.requirements())
    _log.info(
        "outfall %s: step %s, sink %s, target %s, incarnation %s, guarantee %s%s, last completed epoch %s,"
        " buffered rows %d%s",
        outfall_version(),
        step.step_id,
        step.resolved.name,
        step.resolved.target() or "-",
        view.incarnation or "new",
        step.resolved.guarantee().name,
        f" (requires: {requires})" if requires else "",
        "none" if view.completed is None else view.completed,
        view.buffered.rows,
        f" (the oldest since {view.buffered.oldest.isoformat()})" if view.buffered.oldest else "",
    )
