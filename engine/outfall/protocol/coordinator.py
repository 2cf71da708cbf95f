"""The driver's side of the epoch protocol.

```
begin   take over the step: see `outfall.protocol.takeover` · BEGIN
          │ ticket
tasks   EpochTask: each returns one result
          │ results
finish  collect · seal · pre-commit · PREPARED · COMMITTING · commit · post-commit · COMPLETED · clean-up
```

Assumptions:

- The append to the log is exclusive and durable.
- The same epoch number means the same rows, as far as the source can guarantee it. Nothing else about an attempt is
  stable: not its tasks, their number, their order or their rows.
- An older driver may resume between any two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from outfall.capabilities import SealContext, SupportsBufferedRows, SupportsCountCheck, SupportsSeal, SupportsTarget
from outfall.capability_checks import ResolvedSink, check_sink, check_unresumed
from outfall.errors import CapabilityError, OutfallError, ResponsesError, StepInUseError
from outfall.protocol.clock import Clock, SystemClock
from outfall.protocol.epoch_commit import EpochCommit
from outfall.protocol.epoch_report import report_completed, report_skipped
from outfall.protocol.journal import Journal
from outfall.protocol.messages import CollectedResponses, EpochResult, TaskResponse, Ticket
from outfall.protocol.states import ROWS_BUFFERED, ROWS_DRAINED, carried_to_log, total_buffered
from outfall.protocol.step import PROCESS_REGISTRY, EpochOptions, RunRegistry, Step
from outfall.protocol.takeover import begin_batch, begin_drain, begin_epoch, is_overtaken, make_ticket, take_over
from outfall.protocol.target import clean_up_context, clean_up_target
from outfall.protocol.validation import expected_epoch, fenced, listed_parts, log_lost
from outfall.recovery.entries import Prepared, Skipped, StoredValue
from outfall.recovery.location import proposing
from outfall.recovery.log import EntryExistsError, RecoveryConfig
from outfall.telemetry import EpochTelemetry
from outfall.trace_points import reached


class EpochCoordinator:
    """Runs the epochs of one step on the driver: `begin`, the tasks, `finish`.

    Keeps no lock and no connection between calls. Two coordinators on one log are safe: the newer one wins.
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
        """Check that the capabilities of the sink fit together and with the options, or raise `CapabilityError`.

        `step_id` is the user's name for the sink in this query. `run` identifies this run of the query within the
        process. It is `None` if no position is remembered between epochs: in a batch job, or in an API whose epochs
        begin in separate processes. `registry` is what this process keeps between epochs.
        """
        resolved = check_sink(sink)
        options = options or EpochOptions()
        if options.final:
            check_unresumed(resolved)
        clock = clock or SystemClock()
        known = registry.recall_entries(recovery.url(), step_id)
        journal = Journal(recovery.open(step_id), step_id, clock, known)
        telemetry = EpochTelemetry(recovery.url(), step_id)
        self._step = Step(resolved, step_id, recovery, journal, options, clock, run, registry, telemetry)

    @property
    def resolved(self) -> ResolvedSink:
        """The sink of the step, and what it can do."""
        return self._step.resolved

    @property
    def completed(self) -> int | None:
        """The last completed epoch in the log, as last read or appended by this object; `None` before the first."""
        return self._step.journal.view.completed

    def begin(self, epoch: int | None, *, query_id: str | None = None) -> Ticket:
        """Take over the step for one epoch.

        Called on the driver before any task runs. Finishes epochs that an earlier run recorded. For a completed epoch,
        no entry is written, and the ticket instructs the tasks to drop their rows. `epoch` is Spark's batch id; `None`
        if only the tasks learn it.

        If it raises `UnexpectedEpochError`, `ForeignRecordsError`, `TargetError`, `PartsChangedError` or `RecordError`,
        nothing was written. Raises `FencedError` if another driver has taken over since this run's last epoch, and
        `StepInUseError` if this run has already written this step in this epoch.
        """
        position = self._step.position()
        if position is not None and epoch is not None and position.done == epoch:
            raise StepInUseError(
                "this step was already written in this epoch",
                step=self._step.step_id,
                epoch=epoch,
                do="give each write in a foreachBatch function its own step_id",
            )
        begin = partial(begin_batch, self._step, batch=epoch, query_id=query_id, first=position is None)
        with (
            self._step.recorded(query_id),
            self._step.telemetry.beginning(),
            self._step.heartbeat("begin"),
            proposing(self._step.resolved.recovery_location),
        ):
            return take_over(self._step, position, begin, first_batch=epoch == 0)

    def begin_drain(self) -> Ticket | None:
        """Take over the step for an epoch without a batch that delivers buffered rows; return `None` if there are none.

        Called on the driver instead of `begin`. The ticket is for `outfall.protocol.draining`. Finishes epochs that an
        earlier run recorded, and fences a query that runs at the same time. If no rows are buffered, no entry is
        written. Raises `CapabilityError` if the sink has no `SupportsBufferedRows`, and `ForeignRecordsError`,
        `TargetError`, `PartsChangedError`, `RecordError` and `FencedError` as `begin` does.
        """
        if SupportsBufferedRows not in self._step.capabilities:
            raise CapabilityError(
                f"{self._step.resolved.name} has no SupportsBufferedRows: it buffers no rows across epochs",
                step=self._step.step_id,
                do="omit the drain; or add SupportsBufferedRows if the sink does buffer rows",
            )
        position = self._step.position()
        with self._step.telemetry.beginning(), self._step.heartbeat("begin"):
            return take_over(self._step, position, partial(begin_drain, self._step, first=position is None))

    def resume(self, responses: Sequence[TaskResponse]) -> Ticket:
        """Continue from a BEGIN that another process of this driver wrote, to finish its epoch.

        Each task result names its BEGIN, so `ResponsesError` is raised if there is none. Raises `FencedError` if
        another driver has written to the log since that BEGIN.
        """
        step = self._step
        if not responses:
            raise ResponsesError("no task returned a result", step=step.step_id, do="report this; the epoch can rerun")
        view = step.journal.read()
        # Skipped rows have no BEGIN of their own.
        stands_at = view.generation if responses[0].skipped else view.last
        if (view.incarnation, stands_at) != (responses[0].incarnation, responses[0].generation):
            if view.last < responses[0].generation:
                raise log_lost(step.step_id, responses[0].generation, view.last)
            raise fenced(step.step_id, responses[0].epoch)
        expected = expected_epoch(view, adopt=step.options.adopt_checkpoint)
        return make_ticket(step, view, expected, listed_parts(step.step_id, step.resolved, list(view.states)))

    def finish(self, ticket: Ticket, responses: Sequence[TaskResponse]) -> EpochResult:
        """Record and publish the data of the tasks.

        Called on the driver with the results of all tasks, after `begin` or `resume` on this object. No results at all
        mean that the epoch has no rows.

        `ResponsesError` and `SealError` mean that the results are not valid, and `EpochAbandonedError` that recorded
        data was lost: the epoch can run again. `FencedError` means that another driver has taken over, and that this
        driver published nothing. After `CommitError`, `CommitRefusedError` and `LostCommittableError`, the epoch is
        recorded, but not completely published.
        """
        with self._step.recorded(), self._step.telemetry.committing(ticket.began_at):
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
        """Roll back a failed epoch of a step whose log will be deleted, and return whether the log may be deleted.

        It may not if an epoch is recorded, or rows are buffered, that only the log can finish. An epoch that is
        `completed` is not rolled back. Called on the driver instead of the next `begin`. Fences the zombie tasks of the
        failed epoch, truncates and cleans up their data, and releases the target. Raises `OutfallError` if the target
        could not be cleaned up: the log is still required for it.
        """
        step = self._step
        view = step.journal.read()
        if view.unfinished is not None or view.buffered.rows:
            return False
        if view.begin is None or view.completed is not None:
            return True
        ticket = take_over(step, None, lambda read: begin_epoch(step, read, read.open_epoch, read.query_id))
        self._seal(ticket, CollectedResponses(ticket, []))
        begun = step.journal.view
        context = clean_up_context(step.resolved, step.step_id, begun, step.journal.log, lost=begun.lost, final=True)
        clean_up_target(step.resolved, context)
        if SupportsTarget in step.capabilities:
            step.sink.withdraw(context)
        return True

    def close(self) -> None:
        """Release the log. Called after the epoch is finished or has failed."""
        step = self._step
        step.telemetry.close()
        if not step.options.final:
            step.registry.remember_entries(step.recovery.url(), step.step_id, step.journal.known)
        step.journal.log.close()

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
        report_skipped(self._step, collected.epoch, counts.get("skipped", 0))
        return EpochResult(collected.epoch, ticket.generation, True, {"rows": 0} | counts, self._seconds_since(ticket))

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
            committables=collected.committables(step.resolved, step.journal.log),
            counts=collected.counts() | self._buffer_counts(ticket, [*states.values(), *writer_states]),
            seconds=self._seconds_since(ticket),
        )
        reached("before PREPARED")
        step.journal.append(prepared)
        reached("after PREPARED")
        completed = EpochCommit(step, prepared).publish()
        report_completed(step, completed)
        # An epoch without rows has no task that counts any.
        counts = {"rows": 0} | completed.counts
        return EpochResult(completed.epoch, completed.generation, False, counts, completed.seconds)

    def _check_counts(self, collected: CollectedResponses) -> None:
        if SupportsCountCheck in self._step.capabilities:
            try:
                self._step.sink.check_counts(collected.counts(), collected.examples())
            except OutfallError as error:
                error.locate(step=self._step.step_id, epoch=collected.epoch)
                raise

    def _buffer_counts(self, ticket: Ticket, states: Sequence[StoredValue]) -> dict[str, int]:
        if SupportsBufferedRows not in self._step.capabilities:
            return {}
        held = total_buffered(states).rows
        drained = {ROWS_DRAINED: self._step.journal.view.buffered.rows - held} if ticket.drain else {}
        return {ROWS_BUFFERED: held} | drained

    def _seal(self, ticket: Ticket, collected: CollectedResponses) -> None:
        step = self._step
        if SupportsSeal in step.capabilities:
            context = SealContext(
                step.step_id, ticket.incarnation, ticket.generation, collected.epoch, token=ticket.token
            )
            step.sink.seal(context, collected.seals(step.resolved, step.journal.log))

    def _seconds_since(self, ticket: Ticket) -> float:
        """Return the duration since the epoch's BEGIN, by the wall clocks of both processes."""
        return max(0.0, self._step.clock.time() - ticket.began_at)
