"""The one loop that repeats calls: which errors, for how long, with which pauses, and what it logs."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest

from outfall.errors import TerminalError, TransientError
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.testing.local_engine import FakeClock


class Call:
    """Fails so many times, and takes its time."""

    def __init__(self, clock: FakeClock, failures: int, *, error: Exception | None = None, seconds: float = 0) -> None:
        self.calls = 0
        self._clock = clock
        self._failures = failures
        self._error = error
        self._seconds = seconds

    def __call__(self) -> str:
        self.calls += 1
        self._clock.seconds += self._seconds
        if self.calls <= self._failures:
            raise self._error or TransientError(f"failure {self.calls}")
        return "done"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def longest_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)


def run(call: Callable[[], str], clock: FakeClock, *, deadline: float = 300.0, log: RetryLog | None = None) -> str:
    return retried(
        call,
        passes=lambda error: isinstance(error, TransientError),
        deadline=deadline,
        first_wait=0.5,
        longest_wait=3,
        log=log,
        describe=lambda error: Retry("db:5432", "publishing t", str(error)),
        now=clock.now,
        sleep=clock.sleep,
    )


@pytest.mark.usefixtures("longest_jitter")
def test_pauses_double_from_the_first_to_the_longest(clock: FakeClock) -> None:
    assert run(Call(clock, failures=5), clock) == "done"
    assert clock.sleeps == [0.5, 1, 2, 3, 3]


def test_a_pause_has_full_jitter(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    monkeypatch.setattr(random, "uniform", draw)
    run(Call(clock, failures=3), clock)
    assert drawn == [(0, 0.5), (0, 1), (0, 2)]
    assert clock.sleeps == [0, 0, 0]


def test_a_permanent_error_is_raised_at_once(clock: FakeClock) -> None:
    call = Call(clock, failures=9, error=TerminalError("no such table"))
    with pytest.raises(TerminalError, match="no such table"):
        run(call, clock)
    assert (call.calls, clock.sleeps) == (1, [])


@pytest.mark.usefixtures("longest_jitter")
def test_the_first_failure_after_the_deadline_is_raised(clock: FakeClock) -> None:
    # The attempts end at 4, 8.5 and 13.5 seconds.
    call = Call(clock, failures=9, seconds=4)
    with pytest.raises(TransientError, match="failure 3"):
        run(call, clock, deadline=13)
    assert (call.calls, clock.sleeps) == (3, [0.5, 1])


@pytest.mark.usefixtures("longest_jitter")
def test_each_retry_is_reported_with_attempt_reason_and_time_left(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RetryLog(logging.getLogger("outfall.test"), interval=0)
    run(Call(clock, failures=2, seconds=10), clock, log=log)
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("outfall.test", "db:5432: publishing t failed (attempt 1, 290 s left) and is retried: failure 1."),
        ("outfall.test", "db:5432: publishing t failed (attempt 2, 280 s left) and is retried: failure 2."),
    ]


def test_the_last_failure_is_raised_and_not_called_a_retry(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    log = RetryLog(logging.getLogger("outfall.test"))
    with pytest.raises(TransientError):
        run(Call(clock, failures=1, seconds=10), clock, deadline=10, log=log)
    assert caplog.records == []
