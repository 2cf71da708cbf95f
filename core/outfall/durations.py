"""Spans of time in options: a `timedelta`, a number of seconds, or text as Spark's triggers have it (`10 minutes`)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86_400, "day": 86_400, "days": 86_400,
}  # fmt: skip
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_duration(value: Any) -> timedelta:
    """Read a span of time.

    Args:
        value: a `timedelta`, a number of seconds, or text: a number with a unit, or alone for seconds.

    Raises:
        ValueError: it is none of these, or not longer than nothing.
    """
    span = parse_limit(value)
    if not span:
        raise ValueError("must be longer than nothing")
    return span


def parse_limit(value: Any) -> timedelta:
    """Read a span of time that bounds something, 0 for no bound. As `parse_duration` else."""
    if isinstance(value, str):
        value = _seconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _span(value)
    if not isinstance(value, timedelta):
        raise ValueError("must be a span of time: a timedelta, seconds, or text such as '10 minutes'")
    if value < timedelta(0):
        raise ValueError("must be longer than nothing")
    return value


def _span(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"must be at most {timedelta.max.days} days") from error


def _seconds(text: str) -> float:
    match = _TEXT.fullmatch(text)
    unit = (match[2] or "s").lower() if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a span of time: write for example '30 seconds', '10 minutes' or '1 hour'")
    return float(match[1]) * _UNITS[unit]


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""The type of an option that is a span of time."""

Limit = Annotated[timedelta, BeforeValidator(parse_limit)]
"""The type of an option that is a span of time, or 0 for no bound."""
