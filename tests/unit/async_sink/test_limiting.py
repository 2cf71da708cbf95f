"""Limiters against services of which it is known how much they bear."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from outfall.async_sink.limiting import AimdLimiter, EndedRequest, FixedLimiter, GradientLimiter, InFlight, Limiter
from tests.unit.support.limited_service import Client, Seen, Service


def answer(failed: int = 0, entries: int = 10) -> EndedRequest:
    return EndedRequest(0.0, entries, failed, None if failed else 0.1)


# Adaptive: the cases of Vector's `tests/data/adaptive-concurrency`, with ranges of our own (a request that waits for
# its retry holds no slot here).

CASES: dict[str, tuple[Service, int, float, dict[str, tuple[float, float]]]] = {
    "constant link": (Service(), 500, 0, {"max": (30, 32), "mean": (15, 16), "limit": (15, 18)}),
    "defers at high concurrency": (
        Service(most=5), 500, 0, {"max": (5, 13), "mean": (2, 8), "limit": (3, 9)},
    ),
    "defers at high rate": (Service(most_per_second=100), 1000, 0, {"max": (11, 24), "mean": (4, 15)}),
    "drops at high concurrency": (
        Service(most=5, action="drop"), 500, 0, {"max": (5, 16), "mean": (2, 9), "limit": (3, 10)},
    ),
    "jittery link": (Service(jitter=0.1), 1000, 0, {"max": (15, 45), "mean": (8, 20)}),
    "medium send": (Service(), 500, 0.025, {"max": (8, 9), "mean": (3.8, 4.5), "mode": (4, 5)}),
    "shallow knee": (Service(knee=10), 1000, 0, {"max": (10, 13), "mean": (9, 12), "limit": (9, 12)}),
    "slow link": (Service(scale=1.0), 200, 0, {"max": (2, 7), "mean": (1.3, 5), "limit": (1.5, 5)}),
    "slow send 1": (Service(delay=0.05), 100, 0.1, {"max": (1, 1), "mean": (0.5, 0.55), "limit": (1, 2)}),
    "slow send 2": (Service(delay=0.05), 100, 0.05, {"max": (1, 2), "mean": (0.9, 1.2), "limit": (1, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_limiter_finds_what_a_service_bears(case: str) -> None:
    service, requests, interval, ranges = CASES[case]
    seen = Client(service, GradientLimiter()).run(requests, interval=interval)
    figures = {
        "max": max(seen.in_flight),
        "mean": Seen.mean(seen.in_flight),
        "mode": Seen.mode(seen.in_flight),
        "limit": Seen.mean(seen.limit),
    }
    outside = {name: figures[name] for name, (least, most) in ranges.items() if not least <= figures[name] <= most}
    assert not outside, figures


@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_a_fixed_limit_never_moves(jitter: float) -> None:
    seen = Client(Service(jitter=jitter), FixedLimiter(10)).run(500)
    assert max(seen.in_flight) == 10
    assert set(seen.limit) == {10}
    assert Seen.mean(seen.in_flight) > 8


def settled(service: Service, limiter: Limiter, *, requests: int = 10_000) -> Seen:
    """What is seen once the limiter has had its time."""
    client = Client(service, limiter)
    client.run(max(requests, 10 * (service.knee or 0) ** 2))
    client.seen = Seen()
    return client.run(requests)


MORE_KNEES = [(50, 0.0), (100, 0.0), (20, 0.1), (40, 0.1)]


@pytest.mark.parametrize(
    ("knee", "jitter"),
    [(20, 0.0), (40, 0.5), *(pytest.param(*each, marks=pytest.mark.thorough) for each in MORE_KNEES)],
)
def test_the_gradient_limiter_ends_within_a_fifth_of_the_knee(knee: int, jitter: float) -> None:
    seen = settled(Service(delay=0.02, knee=knee, jitter=jitter), GradientLimiter())
    assert 0.8 * knee <= Seen.mean(seen.limit) <= 1.2 * knee


@pytest.mark.parametrize("knee", [3, *(pytest.param(knee, marks=pytest.mark.thorough) for knee in (5, 10))])
def test_jitter_does_not_drive_the_gradient_limiter_far_above_a_small_knee(knee: int) -> None:
    """Vector's rule alone ends at 27 for each of them, which halves what comes through."""
    service = Service(knee=knee, jitter=0.1)
    found, best = settled(service, GradientLimiter()), settled(service, FixedLimiter(knee))
    assert Seen.mean(found.limit) <= knee + 9
    assert best.seconds / found.seconds > 0.75


def test_a_service_that_is_slower_or_faster_from_now_on_is_found_anew() -> None:
    client = Client(Service(), GradientLimiter())
    # Down it takes long: at the moment of the change nobody knows what a smaller limit would bring.
    for knee, least, most in ((40, 32, 48), (10, 8, 30), (40, 32, 48)):
        client.service = Service(knee=knee, jitter=0.05)
        client.run(10_000)
        client.seen = Seen()
        found = Seen.mean(client.run(5_000).limit)
        assert least <= found <= most, knee


def test_the_gradient_limiter_keeps_to_its_bounds() -> None:
    assert max(Client(Service(), GradientLimiter(5)).run(500).limit) == 5
    refused = GradientLimiter(5, initial=5)
    for moment in range(20):
        refused.ended(EndedRequest(float(moment), 1, int(moment > 0), 0.1 if moment == 0 else None))
    assert refused.limit == 1


def test_a_limit_that_is_not_reached_does_not_grow_nor_shrink() -> None:
    limiter = GradientLimiter(initial=7)
    for moment in range(100):
        limiter.started(InFlight(1, 1))
        limiter.ended(EndedRequest(float(moment), 1, 0, 0.1))
    assert limiter.limit == 7


# Additive increase, multiplicative decrease.


def test_aimd_grows_by_ten_and_halves() -> None:
    limiter = AimdLimiter(1000, initial=100)
    limiter.ended(answer())
    assert limiter.limit == 110
    limiter.ended(answer(failed=1))
    assert limiter.limit == 55


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("proportional", [False, True])
def test_every_decrease_is_strict_so_that_500_reaches_1(factor: float, proportional: bool) -> None:
    limiter = AimdLimiter(500, decrease_factor=factor, proportional=proportional)
    limits = [limiter.limit]
    while limiter.limit > 1:
        limiter.ended(answer(failed=10))
        limits.append(limiter.limit)
    assert all(later < earlier for earlier, later in itertools.pairwise(limits))
    limiter.ended(answer(failed=10))
    assert limiter.limit == 1


def test_aimd_is_bounded_above() -> None:
    limiter = AimdLimiter(105, initial=100)
    for _ in range(3):
        limiter.ended(answer())
    assert limiter.limit == 105


def test_a_partial_failure_counts_in_part_if_asked() -> None:
    whole, part = AimdLimiter(1000), AimdLimiter(1000, proportional=True)
    for limiter in (whole, part):
        for _ in range(100):
            limiter.ended(EndedRequest(0.0, 500, 5, None))
    assert whole.limit == 1
    assert part.limit > 800


def test_aimd_limits_entries_and_the_size_of_the_next_request() -> None:
    limiter = AimdLimiter(100)
    assert limiter.admits(InFlight(1, 60), 40)
    assert not limiter.admits(InFlight(1, 60), 41)
    assert limiter.admits(InFlight(0, 0), 500)
    assert limiter.batch_size(500) == 100


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (FixedLimiter, {"requests": 0}),
        (AimdLimiter, {"largest": 0}),
        (AimdLimiter, {"largest": 10, "initial": 11}),
        (AimdLimiter, {"largest": 10, "increase": 0}),
        (AimdLimiter, {"largest": 10, "decrease_factor": 1.0}),
        (AimdLimiter, {"largest": 10, "decrease_factor": 0.0}),
        (GradientLimiter, {"largest": 0}),
        (GradientLimiter, {"initial": 0}),
        (GradientLimiter, {"decrease_ratio": 1.0}),
        (GradientLimiter, {"ewma_alpha": 0.0}),
        (GradientLimiter, {"deviations": -1}),
    ],
)
def test_limiters_refuse_what_makes_no_sense(kind: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        kind(**arguments)


@pytest.mark.parametrize("limiter", [FixedLimiter(1), AimdLimiter(1), GradientLimiter()])
def test_a_limiter_admits_a_request_when_nothing_is_under_way(limiter: Limiter) -> None:
    for moment in range(20):
        limiter.ended(EndedRequest(float(moment), 1, 1, None))
    assert limiter.admits(InFlight(0, 0), 1)
    assert limiter.batch_size(500) >= 1


def test_an_answer_cannot_fail_more_than_it_held() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        dataclasses.replace(answer(), entries=2, failed=3)
