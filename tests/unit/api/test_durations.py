"""Spans of time in options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from outfall.options import parse_duration, parse_limit


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (timedelta(minutes=2), 120), (15, 15), (0.5, 0.5), ("20", 20),
        ("15 seconds", 15), ("16s", 16), ("1.5 hours", 5400),
        ("10 minutes", 600), ("10 Min", 600), ("2 days", 172_800), ("250 ms", 0.25),
    ],
)  # fmt: skip
def test_durations_are_timedeltas_seconds_or_text(given: Any, seconds: float) -> None:
    assert parse_duration(given) == timedelta(seconds=seconds)


@pytest.mark.parametrize("given", ["", "soon", "10 lightyears", "-5 s", "5 s 3", 0, -1, timedelta(0), True, None, [1]])
def test_what_is_no_span_of_time_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"duration|longer than 0|negative"):
        parse_duration(given)


@pytest.mark.parametrize("parse", [parse_duration, parse_limit])
@pytest.mark.parametrize("given", [1e300, float("inf"), float("nan"), "9999999999999 days", 10**400])
def test_what_is_longer_than_any_span_is_refused(given: Any, parse: Any) -> None:
    with pytest.raises(ValueError, match="at most 999999999 days"):
        parse(given)


def test_a_limit_may_be_none() -> None:
    assert [parse_limit(given) for given in (0, "0 s", timedelta(0))] == [timedelta(0)] * 3
    with pytest.raises(ValueError, match="negative"):
        parse_limit(-1)
