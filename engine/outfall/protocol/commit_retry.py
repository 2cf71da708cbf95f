"""Calls the committer until each committable is resolved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from outfall.capabilities import CommitRequest, Committer, Metrics
from outfall.errors import CommitError, CommitRefusedError, ConfigurationError, OutfallError, raise_together
from outfall.options import in_own_case
from outfall.protocol.clock import Clock
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.source_options import SourceOptions
from outfall.trace_points import reached

_log = logging.getLogger(__name__)
_retries = RetryLog(_log)


@dataclass(frozen=True)
class CommitPolicy:
    """How long a commit is retried, and the treatment of data that the target rejects. Durations in seconds.

    A committable contains all rows that one task wrote in one epoch, or one file or object of them. In a database, one
    rejected row rejects the rows of the whole epoch.

    Raises:
        ConfigurationError: A value is out of range.
    """

    deadline: float = 600.0
    """From the first attempt to the last. After it, unresolved committables fail the query; the next run retries."""
    first_wait: float = 0.1
    longest_wait: float = 30.0
    on_known_failure: Literal["fail", "drop"] = "fail"
    """With `fail`, the query fails and its next run retries. With `drop`, all rows of the committable are dropped, the
    accepted ones too. The record then counts them, `outfall status` shows them, and the step no longer has a guarantee.
    A sink that writes rejected rows as dead letters loses none."""

    def __post_init__(self) -> None:
        """Reject values that are out of range."""
        for name in ("deadline", "first_wait", "longest_wait"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise ConfigurationError(f"{name} is {seconds!r}", do="pass a number of seconds above 0")
        object.__setattr__(self, "on_known_failure", in_own_case(self.on_known_failure, ("fail", "drop")))
        if self.on_known_failure not in ("fail", "drop"):
            raise ConfigurationError(f"on_known_failure is {self.on_known_failure!r}", do='pass "fail" or "drop"')

    @classmethod
    def from_options(cls, options: SourceOptions) -> CommitPolicy:
        """Return the policy that options of `format("outfall")` ask for."""
        return cls(deadline=options.commit_deadline.total_seconds(), on_known_failure=options.on_known_failure)


@dataclass(frozen=True)
class CommitContext:
    """Step and epoch of a commit, for texts."""

    step_id: str
    epoch: int


@dataclass
class _Group:
    """Requests that are committed together, and their error."""

    name: str | None
    requests: list[CommitRequest[Any]] = field(default_factory=list)
    error: OutfallError | None = None

    def pending(self) -> list[CommitRequest[Any]]:
        """Return the unresolved requests, or none if the group has failed."""
        if self.error is not None:
            return []
        return [request for request in self.requests if request.outcome.kind in {"unsignalled", "retry"}]

    def committed(self) -> bool:
        return all(request.outcome.kind in _PUBLISHED for request in self.requests)


_PUBLISHED = {"committed", "already committed"}


class _UnresolvedError(Exception):
    """Requests of a round request a retry."""


class CommitLoop:
    """Runs one committer over the requests of one epoch."""

    def __init__(
        self,
        committer: Committer[Any],
        policy: CommitPolicy,
        place: CommitContext,
        *,
        clock: Clock,
        metrics: Metrics,
        on_committed: Callable[[Sequence[str]], None] = lambda groups: None,
    ) -> None:
        """Prepare to commit. `on_committed` is called with the names of groups that are completely committed."""
        self._committer = committer
        self._policy = policy
        self._place = place
        self._clock = clock
        self._metrics = metrics
        self._on_committed = on_committed
        self._groups: list[_Group] = []

    def run(self, requests: Sequence[CommitRequest[Any]]) -> None:
        """Commit the requests, and retry those that request it after a pause, until each is resolved or lost.

        Each round commits the groups one by one, or as many at the same time as the committer permits. A failed group
        is omitted from the next round, and its error is raised at the end. If data is lost and none is published, the
        remaining requests are not committed.

        Raises `CommitRefusedError` if a request failed for a known reason and the policy is to fail, and `CommitError`
        if the reason is unknown or the deadline passed. If several groups failed, raises `TransientError` or
        `TerminalError`.
        """
        self._groups = self._grouped(requests)
        clock, policy = self._clock, self._policy
        until = clock.now() + policy.deadline
        try:
            retried(
                self._round,
                passes=lambda error: isinstance(error, _UnresolvedError),
                deadline=policy.deadline,
                first_wait=policy.first_wait,
                longest_wait=policy.longest_wait,
                log=_retries,
                describe=lambda _: self._unresolved(),
                now=clock.now,
                # The last round begins at the deadline.
                sleep=lambda seconds: clock.sleep(min(seconds, max(0.0, until - clock.now()))),
            )
        except _UnresolvedError:
            self._out_of_time()
        errors = {group.name or "": group.error for group in self._groups if group.error is not None}
        raise_together(errors, f"{len(errors)} of {len(self._groups)} sinks failed to commit", **self._where())

    def _grouped(self, requests: Sequence[CommitRequest[Any]]) -> list[_Group]:
        groups: dict[str | None, _Group] = {}
        for request in requests:
            name = self._committer.group(request.committable)
            groups.setdefault(name, _Group(name)).requests.append(request)
        return list(groups.values())

    def _round(self) -> None:
        """Commit the unresolved requests once. Raises `_UnresolvedError` if some of them request a retry."""
        waiting, most = [group for group in self._groups if group.pending()], self._committer.at_once
        for first in range(0, len(waiting), most):
            if self._lost_in_vain():
                return
            self._offer(waiting[first : first + most])
        if any(group.pending() for group in self._groups):
            raise _UnresolvedError

    def _offer(self, groups: Sequence[_Group]) -> None:
        """Commit groups at the same time."""
        pending = [group.pending() for group in groups]
        for request in (request for requests in pending for request in requests):
            if request.outcome.kind == "retry":
                self._metrics.add("retries")
                request.offer_again()
        reached("before commit")
        errors = self._called(pending)
        reached("after commit")
        committed = []
        for group, requests, error in zip(groups, pending, errors, strict=True):
            group.error = error or self._resolved(requests)
            if group.name is not None and group.error is None and group.committed():
                committed.append(group.name)
        if committed:
            self._on_committed(committed)

    def _called(self, groups: Sequence[Sequence[CommitRequest[Any]]]) -> list[OutfallError | None]:
        """Call the committer with the requests of each group; return the errors."""
        if len(groups) == 1:
            return [self._call(groups[0])]
        with ThreadPoolExecutor(len(groups), "outfall-commit") as threads:
            return list(threads.map(self._call, groups))

    def _resolved(self, requests: Sequence[CommitRequest[Any]]) -> OutfallError | None:
        try:
            for request in requests:
                self._resolve(request)
        except OutfallError as error:
            return error
        return None

    def _unresolved(self) -> Retry:
        pending = [request for group in self._groups for request in group.pending()]
        reasons = (request.outcome.reason for request in pending if request.outcome.reason)
        return Retry(
            f"step {self._place.step_id}",
            f"committing {len(pending)} committables of epoch {self._place.epoch}",
            next(reasons, "the target is not ready"),
        )

    def _lost_in_vain(self) -> bool:
        """Return whether the epoch will be abandoned, so that no further group may be committed."""
        requests = [request for group in self._groups for request in group.requests]
        if len(self._groups) == 1 or not any(request.outcome.kind == "lost" for request in requests):
            return False
        return self._committer.nothing_published(requests)

    def _call(self, pending: Sequence[CommitRequest[Any]]) -> OutfallError | None:
        """Call the committer; return its error. An exception is an unknown failure of the whole call."""
        try:
            self._committer.commit(pending)
        except OutfallError as error:
            return error
        except Exception as error:
            failed = CommitError.because_of(
                error,
                f"committing {len(pending)} committables failed",
                do="fix the cause; the next run of the query commits the recorded data",
                **self._where(),
            )
            failed.__cause__ = error
            return failed
        return None

    def _resolve(self, request: CommitRequest[Any]) -> None:
        outcome = request.outcome
        match outcome.kind:
            case "unsignalled" if self._committer.strict:
                raise CommitError(
                    f"the strict {type(self._committer).__name__} left a committable unresolved", **self._where()
                )
            case "unsignalled":
                request.signal_committed()
            case "already committed":
                self._metrics.add("already_committed")
            case "known failure":
                self._known_failure(request)
            case "unknown failure":
                raise self._failed(
                    CommitError,
                    request,
                    "committing failed for an unknown reason",
                    "fix the cause; the next run of the query commits the recorded data",
                )

    def _known_failure(self, request: CommitRequest[Any]) -> None:
        if self._policy.on_known_failure == "fail":
            raise self._failed(
                CommitRefusedError,
                request,
                "the target rejected a committable",
                "fix the target or the rows, and start the query again: it commits the recorded data",
            )
        self._metrics.add("dropped_committables")
        self._metrics.add("dropped_rows", request.rows or 0)
        rows = "an unknown number of" if request.rows is None else f"{request.rows:,}"
        place = self._place
        error = request.outcome.error
        _log.error("step %s, epoch %d: dropped a committable of %s rows: %s", place.step_id, place.epoch, rows, error)

    def _failed(self, family: type[OutfallError], request: CommitRequest[Any], what: str, do: str) -> OutfallError:
        error = request.outcome.error
        if error is None:
            return family(what, do=do, **self._where())
        return family.because_of(error, what, do=do, **self._where())

    def _out_of_time(self) -> None:
        for group in self._groups:
            left = len(group.pending())
            if left:
                group.error = CommitError(
                    f"{left} of {len(group.requests)} committables were not committed"
                    f" within {self._policy.deadline:g} s",
                    do="check the target; the next run of the query commits the recorded data",
                    **self._where(),
                )

    def _where(self) -> dict[str, Any]:
        return {"step": self._place.step_id, "epoch": self._place.epoch}


@contextmanager
def closing_committer(committer: Committer[Any]) -> Iterator[None]:
    """Close the committer at the end of the block. An error in `close` does not hide an error of the block."""
    try:
        yield
    except BaseException:
        try:
            committer.close()
        except Exception:
            _log.warning("closing the committer failed, too", exc_info=True)
        raise
    committer.close()
