"""When the asynchronous base tries again, and when it gives up."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.async_sink import RequestOutcome
from outfall.async_sink.host_state import RetryBudget, RetryGate
from outfall.async_sink.limiting import AimdLimiter, FixedLimiter
from outfall.async_sink.retrying import (
    Backoff,
    ErrorAction,
    RetryPolicy,
    by_type,
    first_of,
    network_errors,
    outfall_errors,
)
from outfall.errors import FencedError, TransientError, ValueRefusedError
from tests.unit.support.async_destination import Answer, opened

# What an error means.


def test_the_first_classifier_that_knows_an_error_decides() -> None:
    classify = first_of(by_type(ErrorAction.DEAD_LETTER, KeyError), by_type(ErrorAction.RETRY, LookupError))
    assert classify(KeyError()) is ErrorAction.DEAD_LETTER
    assert classify(IndexError()) is ErrorAction.RETRY
    assert classify(ValueError()) is ErrorAction.FATAL


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (ValueRefusedError("x"), ErrorAction.DEAD_LETTER),
        (TransientError("x"), ErrorAction.RETRY),
        (FencedError("x"), ErrorAction.FATAL),
        (ConnectionResetError(), ErrorAction.RETRY),
        (TimeoutError(), ErrorAction.RETRY),
        (PermissionError(), ErrorAction.FATAL),
    ],
)
def test_errors_whose_meaning_is_known(error: Exception, action: ErrorAction) -> None:
    assert first_of(outfall_errors, network_errors)(error) is action


# Pauses.


def test_pauses_double_up_to_the_cap_and_are_fully_jittered() -> None:
    backoff = Backoff(0.1, 5.0)
    longest = [backoff.pause(retry, lambda: 1.0) for retry in range(1, 9)]
    assert longest == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert backoff.pause(5, lambda: 0.0) == 0
    assert backoff.pause(5000, lambda: 1.0) == 5.0


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_negative_or_above_the_cap(retry: int, chance: float) -> None:
    assert 0 <= Backoff(0.3, 7.0).pause(retry, lambda: chance) <= 7.0


def test_there_is_no_pause_after_the_last_try() -> None:
    policy = RetryPolicy(max_retries=3)
    pauses = [policy.pause(tries, 0.0, lambda: 0.5) for tries in range(1, 5)]
    assert pauses[3] is None
    assert None not in pauses[:3]
    assert RetryPolicy(max_retries=0).pause(1, 0.0, lambda: 0.5) is None


def test_a_deadline_beats_the_number_of_tries() -> None:
    policy = RetryPolicy(max_retries=100, deadline=10.0, backoff=Backoff(1.0, 1.0))
    assert policy.pause(1, 9.0, lambda: 1.0) == 1.0
    assert policy.pause(1, 9.1, lambda: 1.0) is None


def test_a_pause_asked_for_is_kept_with_jitter_on_top_and_cut_at_the_deadline() -> None:
    policy = RetryPolicy(deadline=60.0)
    assert policy.pause(1, 0.0, lambda: 0.0, at_least=30.0) == 30.0
    assert policy.pause(1, 0.0, lambda: 0.5, at_least=30.0) == 30.05
    assert policy.pause(8, 0.0, lambda: 1.0, at_least=1.0) == pytest.approx(13.8)
    assert policy.pause(1, 40.0, lambda: 0.0, at_least=30.0) == 20.0
    assert policy.pause(1, 60.0, lambda: 0.0, at_least=30.0) is None


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Backoff, {"base": 0.0}),
        (Backoff, {"base": 2.0, "cap": 1.0}),
        (RetryPolicy, {"max_retries": None, "deadline": None}),
        (RetryPolicy, {"max_retries": -1}),
        (RetryPolicy, {"deadline": 0.0}),
        (RetryBudget, {"ratio": 1.1}),
        (RetryBudget, {"reserve": -1}),
        (RetryBudget, {"probe_interval": 0}),
    ],
)
def test_policies_refuse_what_makes_no_sense(kind: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"need|must"):
        kind(**arguments)


def test_a_host_is_held_until_the_latest_moment_asked_for() -> None:
    host = RetryGate()
    assert host.wait(5.0) == 0
    host.hold(20.0)
    host.hold(10.0)
    assert host.wait(5.0) == 15.0
    assert host.wait(20.0) == 0


# The budget.


@pytest.mark.thorough
@given(st.integers(0, 500), st.integers(0, 200), st.randoms(use_true_random=False))
def test_retries_that_come_to_nothing_are_at_most_a_tenth_and_what_was_advanced(
    firsts: int, retries: int, chance: random.Random
) -> None:
    budget = RetryBudget(0.1, reserve=10.0, probe_interval=15.0)
    calls = [True] * firsts + [False] * retries
    chance.shuffle(calls)
    spent = 0
    for first in calls:
        if first:
            budget.earn()
        else:
            spent += budget.spend(0.0)
    assert spent <= max(10, 0.1 * firsts)


def test_retries_that_succeed_cost_nothing() -> None:
    budget = RetryBudget(0.1, reserve=1.0)
    for _ in range(100):
        assert budget.spend(0.0)
        budget.refund()


def test_an_empty_budget_lets_one_retry_through_from_time_to_time() -> None:
    budget = RetryBudget(0.1, reserve=0.0, probe_interval=15.0)
    assert not budget.spend(100.0)
    assert budget.wait(100.0) == 15.0
    assert not budget.spend(114.0)
    assert budget.spend(115.0)
    assert not budget.spend(115.0)
    assert budget.wait(120.0) == 10.0


def test_a_long_good_time_does_not_pay_for_a_long_bad_one() -> None:
    budget = RetryBudget(0.1, capacity=100.0)
    for _ in range(1_000_000):
        budget.earn()
    assert sum(budget.spend(0.0) for _ in range(1000)) == 100


# Through a partition.


def outage(until: float, clock: Any, begin: float = 0.0) -> Any:
    """A service that refuses everything for a time, and accepts everything before and after."""

    def service(entries: Sequence[str], number: int) -> Answer:
        down = begin <= clock() < until
        return 0.02, RequestOutcome(retry=entries if down else [], reason="503 Service Unavailable")

    return service


def test_a_short_outage_ends_in_recovery_with_everything_delivered_once() -> None:
    partition, destination = opened(max_in_flight_requests=8, retry_deadline=600, limiter=AimdLimiter(80))
    destination.service = outage(30.0, destination.events.now, begin=1.0)
    rows = [str(number) for number in range(10_000)]
    partition.write_batch(rows)
    partition.flush(True)
    assert destination.accepted == dict.fromkeys(rows, 1)
    assert destination.events.now() < 90


@pytest.mark.thorough
def test_ten_minutes_of_outage_hold_memory_flat_and_cost_a_tenth_of_the_requests() -> None:
    partition, destination = opened(
        max_in_flight_requests=8,
        retry_deadline=1200,
        max_buffered_requests=200,
        limiter=FixedLimiter(8),
        budget=RetryBudget(0.1),
        jitter=0.9,
    )
    down = outage(605.0, destination.events.now, begin=5.0)
    held: list[int] = []

    def service(entries: Sequence[str], number: int) -> Answer:
        held.append(partition.buffered + len(entries) * partition.in_flight)
        return down(entries, number)  # type: ignore[no-any-return]

    destination.service = service
    partition.write_batch([str(number) for number in range(50_000)])
    partition.flush(True)
    requests = len(destination.requests)
    during = sum(5.0 <= moment < 605.0 for moment in destination.times)
    counts = partition.metrics.counts
    assert counts["sent"] == 50_000
    assert max(held) <= 200 + 10 * 9
    assert requests <= 1.1 * 5_000
    assert during <= 200
    assert destination.events.now() < 900


def test_an_outage_is_warned_of_at_once_and_then_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    partition, destination = opened(max_in_flight_requests=8, retry_deadline=600, limiter=FixedLimiter(8))
    destination.service = outage(100.0, destination.events.now)
    partition.write_batch([str(number) for number in range(1000)])
    partition.flush(True)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings[0] == (
        "TextSink(''): a request with 10 entries failed (attempt 1, 600 s left) and is retried: 503 Service Unavailable"
    )
    assert 3 <= len(warnings) <= 5
    assert all(
        re.search(r"attempt [2-9]\d*, [4-5]\d\d s left.*; \d+ more retries since", text) for text in warnings[1:]
    )
    assert partition.metrics.counts["retries"] == len(destination.requests) - 100


def test_an_outage_beyond_the_deadline_ends_in_one_useful_error() -> None:
    partition, destination = opened(max_in_flight_requests=8, retry_deadline=300, budget=RetryBudget(0.1))
    destination.service = outage(630.0, destination.events.now)
    with pytest.raises(TransientError) as raised:
        partition.write_batch([str(number) for number in range(200_000)])
    text = str(raised.value)
    assert "did not accept" in text
    assert "503 Service Unavailable" in text
    assert "retry_deadline" in text
    assert 200 < destination.events.now() <= 320
    assert len(destination.requests) < 60


def test_one_entry_that_always_fails_ends_after_its_retries() -> None:
    partition, destination = opened(lambda entries, number: (0.01, RequestOutcome(retry=entries)), max_retries=3)
    partition.write_batch(["a"])
    with pytest.raises(TransientError, match="entries: 1, attempts: 4"):
        partition.flush(True)
    assert len(destination.requests) == 4


@pytest.mark.parametrize(
    ("limit", "advice", "followed"),
    [
        ({"max_retries": 3}, "raise or omit max_retries", {"max_retries": None}),
        ({"retry_deadline": 1}, "raise retry_deadline", {"retry_deadline": 300}),
    ],
)
def test_the_limit_that_ended_the_retries_is_the_one_to_raise(
    limit: dict[str, Any], advice: str, followed: dict[str, Any]
) -> None:
    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.3, RequestOutcome(retry=entries if number < 9 else [])

    partition, _ = opened(service, **limit)
    partition.write_batch(["a"])
    with pytest.raises(TransientError, match=f"longer outages {advice}"):
        partition.flush(True)
    partition, _ = opened(service, **followed)
    partition.write_batch(["a"])
    partition.flush(True)
    assert partition.metrics.counts["sent"] == 1


def test_partial_failures_cost_nothing_of_the_budget() -> None:
    chance = random.Random(3)

    def service(entries: Sequence[str], number: int) -> Answer:
        return 0.01, RequestOutcome(retry=[entry for entry in entries if chance.random() < 0.3])

    partition, destination = opened(service, max_batch_size=50, budget=RetryBudget(0.1, reserve=1.0))
    partition.write_batch([str(number) for number in range(5000)])
    partition.flush(True)
    assert partition.metrics.counts["sent"] == 5000
    assert destination.events.now() < 60


def test_pauses_before_retries_are_spread_over_the_time_that_they_may_take() -> None:
    """Retries of requests that failed together are spread over the time that they may wait."""
    chance = random.Random(5)
    backoff = Backoff(0.1, 20.0)
    moments = sorted(backoff.pause(8, chance.random) for _ in range(1000))
    fullest = max(sum(1 for _ in group) for _, group in itertools.groupby(moments, key=lambda moment: int(moment * 10)))
    assert fullest < 30
