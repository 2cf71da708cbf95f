"""The driver's side of the epoch protocol.

```
begin   read the log to its end · settle what is unfinished · check the epoch · check the target · BEGIN · open target
          │ ticket
tasks   EpochTask: each responds once
          │ responses
finish  collect · seal · pre-commit · PREPARED · COMMITTING · commit · post-commit · COMPLETED · sweep
```

Assumptions: the log's append is exclusive and durable; the same epoch number means the same rows as far as the source
can promise it, and nothing else about an attempt is stable (not its tasks, their number, their order or their rows);
an older driver may wake between any two steps.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outfall.capabilities import (
    SealContext,
    SupportsHeldRows,
    SupportsSeal,
    SupportsTarget,
    SupportsWriterState,
    WithCompatibleState,
)
from outfall.capability_checks import (
    check_sink,
    check_unresumed,
    children_of,
    guarantee_of,
    kind_of,
    requirements_of,
    supports,
    target_of,
)
from outfall.errors import (
    CapabilityError,
    FencedError,
    OutfallError,
    RecordError,
    ResponsesError,
    StepInUseError,
    UnexpectedEpochError,
)
from outfall.protocol.clock import Clock, SystemClock
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.epoch_commit import EpochCommit
from outfall.protocol.journal import Journal, JournalView
from outfall.protocol.messages import CollectedResponses, EpochResult, TaskResponse, Ticket
from outfall.protocol.run_registry import PROCESS_REGISTRY, Position, RunRegistry
from outfall.protocol.states import ROWS_HELD, TravellingStates, total_held
from outfall.protocol.target import check_target, open_target, sweep_context, sweep_target
from outfall.protocol.validation import check_batch, check_identity, expected_epoch, listed_parts
from outfall.recovery.entries import Begin, ChildRecord, Completed, Prepared, Skipped, StoredValue, copy_value
from outfall.recovery.log import EntryExistsError, RecoveryConfig
from outfall.trace_points import reached
from outfall.version import outfall_version

T = TypeVar("T")

_log = logging.getLogger(__name__)

MakeSourceDurable = Callable[[int | None, bool], None]
"""Takes the batch, `None` where only the tasks learn it, and whether this is the first time since the log began or was
written by another release, which may have left earlier batches as they were."""

TAKEOVER_ATTEMPTS = 20
"""How often a starting driver reads the log anew because an older one still writes to it."""

_HELD_INTERVAL = 600.0
"""Seconds after which a running query says again that rows wait."""


@dataclass(frozen=True)
class EpochOptions:
    """How a step's epochs are run."""

    commit: CommitPolicy = field(default_factory=CommitPolicy)
    adopt_checkpoint: bool = False
    """Whether an empty log may begin at any batch id."""
    any_later: bool = False
    """Whether epochs may leave numbers out, as in batch jobs that name their epoch."""
    end_of_input: bool = False
    """Whether each epoch is the last for now, so that sinks that hold rows back deliver them, as in batch jobs."""
    worker_count: int = 0
    key: str | None = None
    """The column that says which part a row belongs to, where there is one: for sinks that stand on it."""
    started: float | None = None
    """When this run of the query was started, in seconds since 1970; `None` where that is not known."""
    final: bool = False
    """Whether the recovery data is thrown away after this epoch, as by batch jobs that are never resumed."""
    make_source_durable: MakeSourceDurable | None = None
    """Makes durable what the engine has recorded of a batch, so that it can bring the same one after any crash. Called
    before BEGIN, once the log was read."""


class EpochCoordinator:
    """Runs the epochs of one step on the driver: `begin`, the tasks, `finish`.

    Holds no lock and no connection between calls; two of them on one log are safe, and the newer one wins.
    """

    def __init__(
        self,
        sink: Any,
        step_id: str,
        recovery: RecoveryConfig,
        *,
        options: EpochOptions | None = None,
        run: str | None = None,
        memory: RunRegistry = PROCESS_REGISTRY,
        clock: Clock | None = None,
    ) -> None:
        """Check the sink's shape.

        Args:
            sink: the sink.
            step_id: the user's name for it in this query.
            recovery: where its log is.
            options: how epochs are run.
            run: identifies this run of the query within the process; `None` where nothing is to be remembered between
                epochs (a batch job, or an API whose epochs begin in processes of their own).
            memory: what this process remembers of its runs.
            clock: time.

        Raises:
            CapabilityError: the sink's capabilities do not go together, or not with these options.
        """
        check_sink(sink)
        self._sink = sink
        self._step_id = step_id
        self._recovery = recovery
        self._options = options or EpochOptions()
        if self._options.final:
            check_unresumed(sink)
        self._run = run
        self._memory = memory
        self._clock = clock or SystemClock()
        self._journal = Journal(recovery.open(step_id), step_id, self._clock)

    @property
    def sink(self) -> Any:
        """The step's sink."""
        return self._sink

    def begin(self, epoch: int | None, *, query_id: str | None = None) -> Ticket:
        """Take the step over for one epoch.

        Called on the driver before any task runs. Finishes what an earlier run recorded. For an epoch that is already
        completed nothing is written, and the ticket tells the tasks to drop their rows.

        Args:
            epoch: Spark's batch id; `None` where only the tasks learn it.
            query_id: Spark's query id, where known.

        Raises:
            UnexpectedEpochError, ForeignRecordsError, TargetError, PartsChangedError, RecordError: nothing was written.
            FencedError: another driver took over since this run's last epoch.
            StepInUseError: this run has already written this step in this epoch.
        """
        position = self._position()
        if position is not None and epoch is not None and position.done == epoch:
            raise StepInUseError(
                "this step was already written in this epoch",
                step=self._step_id,
                epoch=epoch,
                do="give each write in one foreachBatch function a step_id of its own",
            )
        return self._taking_over(position, lambda: self._take_over(epoch, query_id, first=position is None))

    def begin_drain(self) -> Ticket | None:
        """Take the step over for an epoch without a batch, that delivers what the sink holds back.

        Called on the driver in place of `begin`. Finishes what an earlier run recorded. A query that runs meanwhile is
        fenced.

        Returns:
            What `outfall.protocol.draining` needs; `None` when nothing is held back, and then no entry is written.

        Raises:
            CapabilityError: the sink does not say what it holds back.
            ForeignRecordsError, TargetError, PartsChangedError, RecordError, FencedError: as `begin`.
        """
        if not supports(self._sink, SupportsHeldRows):
            raise CapabilityError(
                f"{type(self._sink).__name__} has no SupportsHeldRows: it holds nothing back",
                step=self._step_id,
                do="leave the drain out; or add SupportsHeldRows, if it does hold rows back",
            )
        position = self._position()
        return self._taking_over(position, lambda: self._take_over_to_drain(first=position is None))

    def resume(self, responses: Sequence[TaskResponse]) -> Ticket:
        """Stand where another process of this driver began, to finish from here.

        Args:
            responses: at least one, which name the BEGIN they were made under.

        Raises:
            ResponsesError: there are none.
            FencedError: somebody else went on from that BEGIN.
        """
        if not responses:
            raise ResponsesError("no task answered", step=self._step_id, do="report this; the epoch can run again")
        view = self._journal.read()
        # Rows that are skipped needed no BEGIN of their own.
        stands_at = view.generation if responses[0].skipped else view.last
        if (view.incarnation, stands_at) != (responses[0].incarnation, responses[0].generation):
            if view.last < responses[0].generation:
                raise self._log_lost(responses[0].generation, view.last)
            raise self._fenced(responses[0].epoch)
        return self._ticket(
            view, self._expected(view, None), listed_parts(self._step_id, self._sink, list(view.states))
        )

    def finish(self, ticket: Ticket, responses: Sequence[TaskResponse]) -> EpochResult:
        """Record and publish what the tasks wrote.

        Called on the driver with the responses of all tasks, after `begin` or `resume` on this object. No responses at
        all mean that the epoch has no rows.

        Raises:
            FencedError: another driver took over; nothing was published by this one.
            ResponsesError, SealError: the responses do not count; the epoch can run again.
            CommitError, CommitRefusedError, LostCommittableError: recorded, and not or not wholly published.
            EpochAbandonedError: recorded data was lost; the epoch can run again.
        """
        collected = CollectedResponses(ticket, responses)
        reached("after collect")
        try:
            result = self._skip(ticket, collected) if collected.skipped else self._write(ticket, collected)
        except EntryExistsError:
            raise self._fenced(collected.epoch) from None
        except BaseException as error:
            if self._is_overtaken(error):
                raise self._fenced(collected.epoch) from error
            self._remember(done=None)
            raise
        self._remember(done=None if ticket.drain else result.epoch - ticket.drains)
        return result

    def withdraw(self) -> bool:
        """Take back what a failed epoch left, of a step whose log is about to be thrown away.

        Called on the driver in place of the next `begin`. Late tasks of the failed epoch are fenced, what they wrote is
        cut and swept, and the target is given up.

        Returns:
            Whether the log may go. Not where something is recorded, or held back, that only the log can finish.

        Raises:
            OutfallError: the target could not be cleared; with the log that can be done later.
        """
        view = self._journal.read()
        if view.unfinished is not None or view.held.rows:
            return False
        if view.begin is None or view.completed is not None:
            return True
        ticket = self._taking_over(
            None, lambda: self._begin_epoch(self._journal.view, view.open_epoch, view.query_id, drain=False)
        )
        self._seal(ticket, CollectedResponses(ticket, []))
        begun = self._journal.view
        context = sweep_context(
            self._sink,
            self._step_id,
            ticket.incarnation,
            ticket.generation,
            states=begun.states,
            writer_states=begun.writer_states,
            log=self._journal.log,
            final=True,
        )
        sweep_target(self._sink, context)
        if supports(self._sink, SupportsTarget):
            self._sink.withdraw(context)
        return True

    def close(self) -> None:
        """Release the log. Called once the epoch is finished or failed."""
        self._journal.log.close()

    # --- begin

    def _position(self) -> Position | None:
        return None if self._run is None else self._memory.recall(self._recovery.url(), self._step_id, self._run)

    def _taking_over(self, position: Position | None, take_over: Callable[[], T]) -> T:
        for tries in range(TAKEOVER_ATTEMPTS):
            found = self._journal.read()
            self._check_not_overtaken(position, found)
            try:
                taken = take_over()
            except EntryExistsError:
                if position is not None:
                    raise self._fenced() from None
            except UnexpectedEpochError as error:
                # The batch had its place when this driver was started: another one has gone on since.
                if tries or self._is_older_than(found):
                    raise self._fenced() from error
                raise
            except BaseException as error:
                if not self._is_overtaken(error):
                    self._remember(done=None)
                    raise
                if position is not None or self._journal.view.generation != found.generation:
                    raise self._fenced() from error
            else:
                self._remember(done=None)
                return taken
        raise self._fenced()

    def _is_older_than(self, view: JournalView) -> bool:
        """Whether the last epoch was completed after this run of the query was started. Decides on a text only."""
        started, completed = self._options.started, view.completed_time
        return started is not None and completed is not None and completed.timestamp() > started

    def _is_overtaken(self, error: BaseException) -> bool:
        """Whether what failed did so because another driver went on meanwhile: the target is not what this one read.

        A driver that lost a race looks at what the winner has done by then: to it the target is ahead, or data is gone.
        """
        # An entry that may be our own is no sign of another driver. It may not be durable: nothing goes on from it.
        if isinstance(error, FencedError) or not isinstance(error, OutfallError) or self._journal.unclear:
            return False
        try:
            return self._journal.log.numbers()[-1:] > [self._journal.view.last]
        except Exception:
            _log.warning("step %s: the log cannot be looked at", self._step_id, exc_info=True)
            return False

    def _take_over(self, batch: int | None, query_id: str | None, *, first: bool) -> Ticket:
        view = self._journal.view
        check_identity(self._step_id, self._sink, view, query_id)
        if batch is not None:
            options = self._options
            check_batch(self._step_id, view, batch, adopt=options.adopt_checkpoint, any_later=options.any_later)
        view = self._settled(first=first)
        epoch = None if batch is None else batch + view.drains
        if epoch is not None and epoch == view.completed:
            if query_id is not None and view.query_id is None:
                _log.warning(
                    "step %s: the recovery data does not say which query wrote batch %d; if it was another one than %s,"
                    " its rows are not those that are skipped now",
                    self._step_id,
                    batch,
                    query_id,
                )
            _log.info("step %s: batch %d is completed; its rows are skipped", self._step_id, batch)
            return replace(self._ticket(view, epoch, ()), began_at=self._clock.time())
        if self._options.make_source_durable is not None:
            first = view.begin is None or view.begin.outfall != outfall_version()
            reached("before the source is durable")
            self._options.make_source_durable(batch, first)
        return self._begin_epoch(view, self._expected(view, epoch), query_id, drain=False)

    def _take_over_to_drain(self, *, first: bool) -> Ticket | None:
        check_identity(self._step_id, self._sink, self._journal.view, None)
        view = self._settled(first=first)
        if view.completed is None or not view.held.rows:
            _log.info("step %s: nothing is held back", self._step_id)
            return None
        return self._begin_epoch(view, view.completed + 1, None, drain=True)

    def _settled(self, *, first: bool) -> JournalView:
        """The log once what an earlier run recorded is finished."""
        unfinished = self._journal.view.unfinished
        if unfinished is not None:
            self._publisher(unfinished).settle()
        if first:
            self._announce(self._journal.view)
        return self._journal.view

    def _begin_epoch(self, view: JournalView, expected: int | None, query_id: str | None, *, drain: bool) -> Ticket:
        parts = listed_parts(self._step_id, self._sink, list(view.states))
        checked = check_target(
            self._sink, self._step_id, view, self._journal.log, epoch=expected, key=self._options.key
        )
        self._append_begin(view, expected, query_id, checked.bases, drain=drain)
        begun = self._journal.view
        open_target(self._sink, checked, view, begun)
        if view.open_epoch is not None:
            context = sweep_context(
                self._sink,
                self._step_id,
                begun.incarnation or "",
                begun.generation,
                states=begun.states,
                writer_states=begun.writer_states,
                log=self._journal.log,
            )
            sweep_target(self._sink, context)
        ticket = self._ticket(begun, expected, parts)
        return replace(ticket, drain=True, end_of_input=True) if drain else ticket

    def _append_begin(
        self,
        view: JournalView,
        epoch: int | None,
        query_id: str | None,
        bases: dict[str, StoredValue],
        *,
        drain: bool,
    ) -> None:
        adopted = self._adopt_writer_states(view)
        reached("before BEGIN")
        self._journal.append(
            Begin(
                step=self._step_id,
                incarnation=view.incarnation or secrets.token_hex(8),
                epoch=epoch,
                outfall=outfall_version(),
                sink=kind_of(self._sink),
                target=target_of(self._sink),
                query_id=query_id or view.query_id,
                driver=f"{socket.gethostname()}:{os.getpid()}",
                bases=bases,
                writer_states=adopted,
                drain=drain,
                drains=view.drains,
                children=self._children(view),
            )
        )
        reached("after BEGIN")

    def _children(self, view: JournalView) -> dict[str, ChildRecord]:
        """What is recorded of the sinks that the sink consists of."""
        known = view.begin.children if view.begin else {}
        # Whichever number the next epoch gets, it is the first one that a new child gets if it is completed.
        coming = 0 if view.completed is None else view.completed + 1
        return {
            name: ChildRecord(
                sink=kind_of(child),
                target=target_of(child),
                since=known[name].since if name in known else coming,
            )
            for name, child in children_of(self._sink).items()
        }

    def _expected(self, view: JournalView, epoch: int | None) -> int | None:
        """The epoch to write: the one asked for, else the one that comes next; `None` when any would do."""
        return epoch if epoch is not None else expected_epoch(view, adopt=self._options.adopt_checkpoint)

    def _check_not_overtaken(self, position: Position | None, view: JournalView) -> None:
        if position is not None and view.last != position.last:
            raise self._fenced() if view.last > position.last else self._log_lost(position.last, view.last)

    def _adopt_writer_states(self, view: JournalView) -> list[StoredValue]:
        """States of other steps, taken over when this step begins for the first time."""
        if view.begin is not None or not (
            supports(self._sink, SupportsWriterState) and supports(self._sink, WithCompatibleState)
        ):
            return []
        names = [name for name in self._sink.compatible_writer_state_names() if name != self._step_id]
        return [state for name in names for state in self._states_of(name, generation=view.last + 1)]

    def _states_of(self, step_id: str, *, generation: int) -> list[StoredValue]:
        """The writer states of another step, as this step's log can hold them."""
        with closing(self._recovery.open(step_id)) as other:
            return [
                copy_value(state, source=other, target=self._journal.log, name=step_id, generation=generation)
                for state in Journal(other, step_id, self._clock).read().writer_states
            ]

    def _ticket(self, view: JournalView, epoch: int | None, parts: tuple[str, ...]) -> Ticket:
        states = TravellingStates(self._recovery, self._journal.log, self._step_id)
        return Ticket(
            step_id=self._step_id,
            incarnation=view.incarnation or "",
            generation=view.generation,
            epoch=epoch,
            completed=view.completed,
            outfall=outfall_version(),
            recovery=self._recovery,
            query_id=view.query_id,
            parts=parts,
            states=states.out(view.states),
            writer_states=tuple(states.out(dict(enumerate(view.writer_states))).values()),
            worker_count=self._options.worker_count,
            key=self._options.key,
            any_later=self._options.any_later,
            began_at=view.begin.time.timestamp() if view.begin else 0.0,
            drains=view.drains,
            end_of_input=self._options.end_of_input,
            token=view.token,
        )

    def _announce(self, view: JournalView) -> None:
        requires = "; ".join(requirements_of(self._sink))
        _log.info(
            "outfall %s: step %s, sink %s, target %s, incarnation %s, guarantee %s%s, last completed epoch %s,"
            " rows held %d%s",
            outfall_version(),
            self._step_id,
            type(self._sink).__name__,
            target_of(self._sink) or "-",
            view.incarnation or "new",
            guarantee_of(self._sink).name,
            f" (requires: {requires})" if requires else "",
            "none" if view.completed is None else view.completed,
            view.held.rows,
            f" (the oldest since {view.held.oldest.isoformat()})" if view.held.oldest else "",
        )

    # --- finish

    def _skip(self, ticket: Ticket, collected: CollectedResponses) -> EpochResult:
        counts = collected.counts()
        self._journal.append(
            Skipped(
                step=self._step_id,
                incarnation=ticket.incarnation,
                epoch=collected.epoch,
                drains=ticket.drains,
                counts=counts,
            )
        )
        _log.info("step %s, epoch %d: skipped %d rows", self._step_id, collected.epoch, counts.get("skipped", 0))
        self._warn_of_held(collected.epoch)
        return EpochResult(collected.epoch, ticket.generation, True, counts, self._seconds(ticket))

    def _write(self, ticket: Ticket, collected: CollectedResponses) -> EpochResult:
        self._seal(ticket, collected)
        reached("after seal")
        travelling = TravellingStates(self._recovery, self._journal.log, self._step_id)
        states, writer_states = travelling.back(collected.states(), collected.writer_states(), ticket.generation)
        prepared = Prepared(
            step=self._step_id,
            incarnation=ticket.incarnation,
            epoch=collected.epoch,
            generation=ticket.generation,
            query_id=collected.query_id,
            states=states,
            writer_states=writer_states,
            committables=collected.committables(self._sink),
            counts=collected.counts() | self._held_count([*states.values(), *writer_states]),
            seconds=self._seconds(ticket),
        )
        reached("before PREPARED")
        self._journal.append(prepared)
        reached("after PREPARED")
        completed = self._publisher(prepared).publish()
        self._log_completed(completed)
        if not completed.drain:
            self._warn_of_held(completed.epoch)
        return EpochResult(completed.epoch, completed.generation, False, completed.counts, completed.seconds)

    def _held_count(self, states: Sequence[StoredValue]) -> dict[str, int]:
        return {ROWS_HELD: total_held(states).rows} if supports(self._sink, SupportsHeldRows) else {}

    def _seal(self, ticket: Ticket, collected: CollectedResponses) -> None:
        if supports(self._sink, SupportsSeal):
            context = SealContext(
                self._step_id, ticket.incarnation, ticket.generation, collected.epoch, token=ticket.token
            )
            self._sink.seal(context, collected.seals(self._sink, self._journal.log))

    def _publisher(self, prepared: Prepared) -> EpochCommit:
        return EpochCommit(
            self._sink,
            self._step_id,
            self._journal,
            prepared,
            self._options.commit,
            self._clock,
            final=self._options.final,
        )

    def _log_completed(self, completed: Completed) -> None:
        _log.info(
            "step %s, epoch %d: completed %d rows in %.2f s (%d retries)",
            self._step_id,
            completed.epoch,
            completed.counts.get("rows", 0),
            completed.seconds,
            completed.counts.get("retries", 0),
        )

    def _warn_of_held(self, epoch: int) -> None:
        """Say that rows wait, and what delivers them: nobody is told here when a query ends."""
        held, location = self._journal.view.held, self._recovery.url()
        period = int(self._clock.time() // _HELD_INTERVAL)
        if not held.rows or not self._memory.warns(location, self._step_id, self._run or "", period):
            return
        _log.warning(
            "step %s, epoch %d: %d rows%s are buffered in %s and not in the target yet. Later epochs deliver them. If"
            " the query ends here, deliver them with outfall.spark.drain, or in a shell, with the sink's options:"
            " outfall drain %s %s",
            self._step_id,
            epoch,
            held.rows,
            f", the oldest since {held.oldest.isoformat()}," if held.oldest else "",
            location,
            shlex.quote(location),
            self._step_id,
        )

    # --- both

    def _seconds(self, ticket: Ticket) -> float:
        return max(0.0, self._clock.time() - ticket.began_at)

    def _remember(self, done: int | None) -> None:
        if self._run is not None:
            position = Position(self._run, self._journal.view.last, done)
            self._memory.remember(self._recovery.url(), self._step_id, position)

    def _log_lost(self, known: int, newest: int) -> OutfallError:
        """The log ends before what this driver has read or written there: no driver takes anything away."""
        return RecordError(
            f"recovery entry {known} is gone, "
            + (f"and the newest one is {newest} now" if newest else "and the log is empty now"),
            step=self._step_id,
            why="the recovery data was lost, restored from an older copy, or reset while the query ran",
            do="restore the recovery data as it was and start the query again; where nothing can be restored, compare"
            " target and source and start with a new checkpoint",
        )

    def _fenced(self, epoch: int | None = None) -> OutfallError:
        return FencedError(
            "another driver has taken this step over; this one stops",
            step=self._step_id,
            epoch=epoch,
            why="a newer run of the query, or another query with the same step and recovery location, writes here",
            do="let one of them run; if both are wanted, give each a step_id or a recovery location of its own",
        )
