"""The driver's side of the epoch protocol.

```
begin   take the step over: see `outfall.protocol.takeover` · BEGIN
          │ ticket
tasks   EpochTask: each responds once
          │ responses
finish  collect · seal · pre-commit · PREPARED · COMMITTING · commit · post-commit · COMPLETED · clean-up
```

Assumptions: the log's append is exclusive and durable; the same epoch number means the same rows as far as the source
can promise it, and nothing else about an attempt is stable (not its tasks, their number, their order or their rows);
an older driver may wake between any two steps.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from outfall.capabilities import SealContext, SupportsBufferedRows, SupportsCountCheck, SupportsSeal, SupportsTarget
from outfall.capability_checks import check_sink, check_unresumed, supports
from outfall.errors import CapabilityError, OutfallError, ResponsesError, StepInUseError
from outfall.protocol.clock import Clock, SystemClock
from outfall.protocol.epoch_commit import EpochCommit
from outfall.protocol.journal import Journal
from outfall.protocol.messages import CollectedResponses, EpochResult, TaskResponse, Ticket
from outfall.protocol.states import ROWS_HELD, carried_to_log, total_held
from outfall.protocol.step import PROCESS_REGISTRY, EpochOptions, RunRegistry, Step
from outfall.protocol.takeover import begin_batch, begin_drain, begin_epoch, is_overtaken, make_ticket, take_over
from outfall.protocol.target import clean_up_context, clean_up_target
from outfall.protocol.validation import expected_epoch, fenced, listed_parts, log_lost
from outfall.recovery.entries import Completed, Prepared, Skipped, StoredValue
from outfall.recovery.log import EntryExistsError, RecoveryConfig
from outfall.telemetry import EpochTelemetry
from outfall.trace_points import reached

_log = logging.getLogger(__name__)

_HELD_INTERVAL = 600.0
"""Seconds after which a running query says again that rows wait."""


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
        registry: RunRegistry = PROCESS_REGISTRY,
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
            registry: what this process remembers of its runs.
            clock: time.

        Raises:
            CapabilityError: the sink's capabilities do not go together, or not with these options.
        """
        check_sink(sink)
        options = options or EpochOptions()
        if options.final:
            check_unresumed(sink)
        clock = clock or SystemClock()
        journal = Journal(recovery.open(step_id), step_id, clock)
        telemetry = EpochTelemetry(recovery.url(), step_id)
        self._step = Step(sink, step_id, recovery, journal, options, clock, run, registry, telemetry)

    @property
    def sink(self) -> Any:
        """The step's sink."""
        return self._step.sink

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
        position = self._step.position()
        if position is not None and epoch is not None and position.done == epoch:
            raise StepInUseError(
                "this step was already written in this epoch",
                step=self._step.step_id,
                epoch=epoch,
                do="give each write in one foreachBatch function a step_id of its own",
            )
        begin = partial(begin_batch, self._step, batch=epoch, query_id=query_id, first=position is None)
        with self._step.telemetry.beginning(), self._step.heartbeat("begin"):
            return take_over(self._step, position, begin)

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
        if not supports(self.sink, SupportsBufferedRows):
            raise CapabilityError(
                f"{type(self.sink).__name__} has no SupportsBufferedRows: it holds nothing back",
                step=self._step.step_id,
                do="leave the drain out; or add SupportsBufferedRows, if it does hold rows back",
            )
        position = self._step.position()
        with self._step.telemetry.beginning(), self._step.heartbeat("begin"):
            return take_over(self._step, position, partial(begin_drain, self._step, first=position is None))

    def resume(self, responses: Sequence[TaskResponse]) -> Ticket:
        """Stand where another process of this driver began, to finish from here.

        Args:
            responses: at least one, which name the BEGIN they were made under.

        Raises:
            ResponsesError: there are none.
            FencedError: somebody else went on from that BEGIN.
        """
        step = self._step
        if not responses:
            raise ResponsesError("no task answered", step=step.step_id, do="report this; the epoch can run again")
        view = step.journal.read()
        # Rows that are skipped needed no BEGIN of their own.
        stands_at = view.generation if responses[0].skipped else view.last
        if (view.incarnation, stands_at) != (responses[0].incarnation, responses[0].generation):
            if view.last < responses[0].generation:
                raise log_lost(step.step_id, responses[0].generation, view.last)
            raise fenced(step.step_id, responses[0].epoch)
        expected = expected_epoch(view, adopt=step.options.adopt_checkpoint)
        return make_ticket(step, view, expected, listed_parts(step.step_id, step.sink, list(view.states)))

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
        with self._step.telemetry.committing(ticket.began_at):
            return self._finish(ticket, CollectedResponses(ticket, responses))

    def _finish(self, ticket: Ticket, collected: CollectedResponses) -> EpochResult:
        reached("after collect")
        try:
            with self._step.heartbeat("commit"):
                result = self._skip(ticket, collected) if collected.skipped else self._write(ticket, collected)
        except EntryExistsError:
            raise fenced(self._step.step_id, collected.epoch) from None
        except BaseException as error:
            if is_overtaken(self._step, error):
                raise fenced(self._step.step_id, collected.epoch) from error
            self._step.remember(done=None)
            raise
        self._step.remember(done=None if ticket.drain else result.epoch - ticket.drains)
        return result

    def withdraw(self) -> bool:
        """Take back what a failed epoch left, of a step whose log is about to be thrown away.

        Called on the driver in place of the next `begin`. Late tasks of the failed epoch are fenced, what they wrote is
        cut and cleaned up, and the target is given up.

        Returns:
            Whether the log may go. Not where something is recorded, or held back, that only the log can finish.

        Raises:
            OutfallError: the target could not be cleared; with the log that can be done later.
        """
        step = self._step
        view = step.journal.read()
        if view.unfinished is not None or view.held.rows:
            return False
        if view.begin is None or view.completed is not None:
            return True
        ticket = take_over(step, None, lambda read: begin_epoch(step, read, read.open_epoch, read.query_id))
        self._seal(ticket, CollectedResponses(ticket, []))
        begun = step.journal.view
        context = clean_up_context(step.sink, step.step_id, begun, step.journal.log, lost=begun.lost, final=True)
        clean_up_target(step.sink, context)
        if supports(step.sink, SupportsTarget):
            step.sink.withdraw(context)
        return True

    def close(self) -> None:
        """Release the log. Called once the epoch is finished or failed."""
        self._step.telemetry.close()
        self._step.journal.log.close()

    def _skip(self, ticket: Ticket, collected: CollectedResponses) -> EpochResult:
        counts = collected.counts()
        self._step.journal.append(
            Skipped(
                step=self._step.step_id,
                incarnation=ticket.incarnation,
                epoch=collected.epoch,
                drains=ticket.drains,
                counts=counts,
            )
        )
        self._step.telemetry.count(counts)
        _log.info("step %s, epoch %d: skipped %d rows", self._step.step_id, collected.epoch, counts.get("skipped", 0))
        self._warn_of_held(collected.epoch)
        return EpochResult(collected.epoch, ticket.generation, True, counts, self._seconds_since(ticket))

    def _write(self, ticket: Ticket, collected: CollectedResponses) -> EpochResult:
        step = self._step
        self._check_counts(collected)
        self._seal(ticket, collected)
        reached("after seal")
        states, writer_states = carried_to_log(
            step.recovery,
            step.journal.log,
            collected.states(),
            collected.writer_states(),
            step_id=step.step_id,
            generation=ticket.generation,
        )
        prepared = Prepared(
            step=step.step_id,
            incarnation=ticket.incarnation,
            epoch=collected.epoch,
            generation=ticket.generation,
            query_id=collected.query_id,
            states=states,
            writer_states=writer_states,
            committables=collected.committables(step.sink, step.journal.log),
            counts=collected.counts() | self._held_count([*states.values(), *writer_states]),
            seconds=self._seconds_since(ticket),
        )
        reached("before PREPARED")
        step.journal.append(prepared)
        reached("after PREPARED")
        completed = EpochCommit(step, prepared).publish()
        self._log_completed(completed)
        if not completed.drain:
            self._warn_of_held(completed.epoch)
        return EpochResult(completed.epoch, completed.generation, False, completed.counts, completed.seconds)

    def _check_counts(self, collected: CollectedResponses) -> None:
        if supports(self._step.sink, SupportsCountCheck):
            try:
                self._step.sink.check_counts(collected.counts(), collected.examples())
            except OutfallError as error:
                error.locate(step=self._step.step_id, epoch=collected.epoch)
                raise

    def _held_count(self, states: Sequence[StoredValue]) -> dict[str, int]:
        return {ROWS_HELD: total_held(states).rows} if supports(self._step.sink, SupportsBufferedRows) else {}

    def _seal(self, ticket: Ticket, collected: CollectedResponses) -> None:
        step = self._step
        if supports(step.sink, SupportsSeal):
            context = SealContext(
                step.step_id, ticket.incarnation, ticket.generation, collected.epoch, token=ticket.token
            )
            step.sink.seal(context, collected.seals(step.sink, step.journal.log))

    def _log_completed(self, completed: Completed) -> None:
        _log.info(
            "step %s, epoch %d: completed %d rows in %.2f s (%d retries)",
            self._step.step_id,
            completed.epoch,
            completed.counts.get("rows", 0),
            completed.seconds,
            completed.counts.get("retries", 0),
        )

    def _warn_of_held(self, epoch: int) -> None:
        """Say that rows wait, and what delivers them: nobody is told here when a query ends."""
        step = self._step
        held, location = step.journal.view.held, step.recovery.url()
        period = int(step.clock.time() // _HELD_INTERVAL)
        if not held.rows or not step.registry.warns(location, step.step_id, step.run or "", period):
            return
        _log.warning(
            "step %s, epoch %d: %d rows%s are buffered in %s and not in the target yet. Later epochs deliver them. If"
            " the query ends here, deliver them with outfall.spark.drain, or in a shell, with the sink's options:"
            " outfall drain %s %s",
            step.step_id,
            epoch,
            held.rows,
            f", the oldest since {held.oldest.isoformat()}," if held.oldest else "",
            location,
            shlex.quote(location),
            step.step_id,
        )

    def _seconds_since(self, ticket: Ticket) -> float:
        """How long the epoch has taken since its BEGIN, by the wall clocks of both."""
        return max(0.0, self._step.clock.time() - ticket.began_at)
