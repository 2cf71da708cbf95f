"""Two-phase commit: visibility, and all kinds of commit failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from outfall.capabilities import CommitRequest, SupportsCommitter
from outfall.errors import CommitError, CommitRefusedError
from outfall.protocol.commit_retry import CommitPolicy
from outfall.recovery import recovery_config
from outfall.recovery.entries import Prepared, decode_entry, load_value
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.harness import gives, is_directory
from outfall.testing.conformance.spying import Probe, probing
from outfall.testing.conformance.stepping import at_step
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials
from outfall.testing.local_engine import FakeClock

Requests = Sequence[CommitRequest[Any]]


@check
def nothing_visible_before_commit(trials: Trials) -> None:
    """Rows are visible before their epoch is recorded. Readers see rows that may be rolled back."""
    _needs_committer(trials)
    trials.needs(trials.once, "at-least-once may show rows early")
    trial = trials.new()
    trial.run_epochs(1)
    begun = trial.begin(trial.driver(), trial.bring(1))
    begun.run_tasks()
    if visible := trial.of_epoch(1):
        raise ConformanceError(
            f"{visible.total()} rows of epoch 1 are visible although only its tasks have run",
            do="publish in Committer.commit; prepare_commit must leave the data durable and invisible",
        )
    with at_step("before commit", lambda: _none_visible(trial)):
        begun.finish()
    trial.finish()


def _none_visible(trial: Trial) -> None:
    if visible := trial.of_epoch(1):
        raise ConformanceError(f"{visible.total()} rows of epoch 1 are visible before the committer was called")


class Commits(Probe):
    """Intercepts the committer a number of times."""

    def __init__(self, *actions: Callable[[Requests, Callable[[], Any]], Any]) -> None:
        self._actions = list(actions)

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        if method != "committer.commit" or not self._actions:
            return super().around(method, args, call)
        return self._actions.pop(0)(args[0], call)


def reply_lost(requests: Requests, commit: Callable[[], Any]) -> None:
    """The commit succeeds, and the caller gets an error."""
    commit()
    raise ConnectionError("the reply was lost")


def reply_late(requests: Requests, commit: Callable[[], Any]) -> None:
    """The commit succeeds, but the caller gets no response and calls again."""
    commit()
    for request in requests:
        if request.outcome.kind in {"unsignalled", "committed", "already committed"}:
            request.retry_later()


def _reply_late_and_updated(requests: Requests, commit: Callable[[], Any]) -> None:
    commit()
    for request in requests:
        if request.outcome.kind in {"unsignalled", "committed", "already committed"}:
            request.update_and_retry_later(request.committable)


def _not_yet(requests: Requests, commit: Callable[[], Any]) -> None:
    for request in requests:
        request.retry_later()


def _refused(requests: Requests, commit: Callable[[], Any]) -> None:
    requests[0].signal_failed_with_known_reason(ValueError("refused"))


def _unknown(requests: Requests, commit: Callable[[], Any]) -> None:
    requests[-1].signal_failed_with_unknown_reason(ConnectionError("unreachable"))


@check
def lost_reply_of_a_commit(trials: Trials) -> None:
    """A commit succeeds, but its response is lost. The next driver publishes the data again."""
    _needs_committer(trials)
    trial = trials.new()
    trial.run_epochs(1)
    for times in (1, 2):
        with when(f"a commit succeeded and its response was lost, {times} times"):
            content = trial.bring(trial.epoch)
            for _ in range(times):
                # Every response, because a fan-out commits once per sink.
                with probing(Commits(*[reply_lost] * 100)), suppress(CommitError):
                    trial.run(trial.driver(), content)
            trial.finish()


@check
def commit_is_asked_again(trials: Trials) -> None:
    """The same driver commits a committable twice. It is published twice or rejected."""
    _needs_committer(trials)
    for name, actions in {
        "retry_later after the work was done": [reply_late],
        "retry_later before anything was done, and after": [_not_yet, reply_late],
        "update_and_retry_later after the work was done": [_reply_late_and_updated, reply_late],
    }.items():
        trial = trials.new()
        with when(f"a committer signaled {name}"):
            trial.run_epochs(1)
            with probing(Commits(*actions)):
                trial.run(trial.driver(clock=FakeClock()), trial.bring(1))
            trial.finish()


@check
def failed_commit_is_resumed(trials: Trials) -> None:
    """After a failed commit, with known or unknown reason, the next driver loses or repeats rows."""
    _needs_committer(trials)
    for name, action in {"a known": _refused, "an unknown": _unknown}.items():
        trial = trials.new()
        with when(f"a commit failed for {name} reason, and the query was restarted"):
            trial.run_epochs(1)
            content = trial.bring(1)
            with probing(Commits(action)), suppress(CommitError, CommitRefusedError):
                trial.run(trial.driver(), content)
            trial.finish(1)


@check
def commit_deadline(trials: Trials) -> None:
    """After a commit misses its deadline, the next driver loses or repeats rows."""
    _needs_committer(trials)
    trial = trials.new()
    trial.run_epochs(1)
    clock = FakeClock()
    options = trials.harness.options()
    policy = CommitPolicy(deadline=60.0, first_wait=1.0, longest_wait=30.0)
    slow = trial.driver(clock=clock, options=type(options)(**(vars(options) | {"commit": policy})))
    with when("a commit passed its deadline of 60 s on a fake clock"):
        with probing(Commits(*[_not_yet] * 1000)):
            try:
                trial.run(slow, trial.bring(1))
            except CommitError:
                pass
            else:
                raise ConformanceError("an epoch completed without a commit")
        if not 60.0 <= clock.seconds < 90.0:
            raise ConformanceError(f"the deadline of 60 s came after {clock.seconds:.0f} s")
        trial.finish(1)


@check
def lost_before_committing(trials: Trials) -> None:
    """A committable without data counts as committed, or the others are published next to a replay."""
    _lose(trials, "after PREPARED")


@check
def lost_after_committing(trials: Trials) -> None:
    """Data is lost during the commit. It counts as committed, or all data is written again."""
    _lose(trials, "before commit")
    _lose(trials, "sink: request 2 taken")


def _lose(trials: Trials, step: str) -> None:
    _needs_committer(trials)
    trials.needs_from_author("lose")
    trial = trials.new()
    trial.run_epochs(1)
    before = _files(trial)
    seen = trial.run_until(step, trial.bring(1))
    if step not in seen:
        return
    if gives(trials.harness, "lose"):
        trials.harness.lose(trial.target, recorded_committables(trial)[-1])
    else:
        created = _files(trial) - before
        # Otherwise the check would pass without a loss: a database in a directory has its files from the start.
        trials.needs_to_try(bool(created), "the epoch created no file to remove, and the test has no lose()")
        for path in created:
            path.unlink()
    with when(f"a driver died at {step!r}, and the data of one of its committables was lost"):
        for _ in range(3):
            # A permanent error is acceptable, because no data is silently missing.
            with suppress(Exception):
                trial.run(trial.driver(), trial.bring(1))
        trial.verify()


def _files(trial: Trial) -> set[Path]:
    return {path for path in trial.target.rglob("*") if path.is_file()} if is_directory(trial.target) else set()


def recorded_committables(trial: Trial) -> list[Any]:
    """Return the committables of the last recorded epoch from the log."""
    sink = trial.sink()
    log = recovery_config(trial.recovery).open("sink")
    entries = [decode_entry(raw, "sink") for raw in log.read()]
    prepared = [entry for entry in entries if isinstance(entry, Prepared)][-1]
    return [load_value(sink.committable_serializer(), item.value, log=log) for item in prepared.committables]


@check
def target_refuses(trials: Trials) -> None:
    """The sink ignores a failure of the target. The epoch counts as completed, but rows are missing."""
    trials.needs_from_author("breaking")
    for step in ("after open target", "after BEGIN", "sink: before write_batch", "task: before flush", "before commit"):
        trial = trials.new()
        trial.run_epochs(1)
        content = trial.bring(1)
        with when(f"the target failed from {step!r} on"):
            _run_refused(trial, step, content)
            trial.verify()
            trial.finish(1)


def _run_refused(trial: Trial, step: str, content: Any) -> None:
    with ExitStack() as refusing:

        def refuse() -> None:
            refusing.enter_context(trial.harness.breaking(trial.target))

        with suppress(Exception), at_step(step, refuse):
            trial.run(trial.driver(clock=FakeClock()), content)


def _needs_committer(trials: Trials) -> None:
    commits = SupportsCommitter in trials.resolved.capabilities
    trials.needs(commits, "the sink has no SupportsCommitter: nothing is committed")
