"""Types of options: values that a user may write in several forms, and their parsers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr

from outfall.serde import parse_json
from outfall.urls import HTTP, split_server

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86_400, "day": 86_400, "days": 86_400,
}  # fmt: skip
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_endpoint(value: Any) -> Any:
    """Validate the address of a service whose credentials come from elsewhere.

    Raises:
        ValueError: The value is not an http or https URL, or may contain a secret.
    """
    if value is None:
        return None
    split_server(str(value), HTTP, "an http or https URL", "credentials come from the client's own chain")
    return value


def parse_names(value: Any) -> Any:
    """Parse a list of names: a list, or a string with commas between them.

    Raises:
        ValueError: The value is neither of these, or a name is empty.
    """
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be a list of names, or a string with commas between them")
    if not all(names):
        raise ValueError("must not contain an empty name")
    return tuple(names)


Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]
"""The type of an option that is a list of columns or other names."""


def parse_names_by_name(value: Any) -> Any:
    """Parse a mapping of names to lists of names, or a JSON object as a string. `None` is an empty one.

    Raises:
        ValueError: The value is neither, a name is empty, or a list of names is empty or has one twice.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            value = None
    elif value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise ValueError('must be a mapping of names to lists of names, such as {"orders": ["id", "line"]}')
    lists = {name: parse_names(names) for name, names in value.items()}
    for name, names in lists.items():
        if not names:
            raise ValueError(f"has no name for {name!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"has a name twice for {name!r}")
    return lists


NamesByName = Annotated[dict[str, tuple[str, ...]], BeforeValidator(parse_names_by_name)]
"""The type of an option that lists columns or other names for each of several names."""


def parse_pairs(value: Any) -> Any:
    """Parse a mapping of names to values, or a JSON object as a string. Numbers and booleans become strings.

    Raises:
        ValueError: The value is neither. The text does not contain the values, which may be secrets.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping) or not all(
        isinstance(item, str | SecretStr | int | float) for item in value.values()
    ):
        raise ValueError('must be a mapping of names to strings, such as {"X-Api-Key": "env:API_KEY"}')
    return {name: item if isinstance(item, str | SecretStr) else json.dumps(item) for name, item in value.items()}


Pairs = Annotated[dict[str, SecretStr], BeforeValidator(parse_pairs)]
"""The type of an option that is a mapping of names to values, which may be secrets."""


def parse_epoch(value: Any) -> int:
    """Parse the number of a batch job's epoch.

    Raises:
        ValueError: The value is not an integer from 0 to 2^63-1, the largest number that every target can store.
    """
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*\+?\d{1,19}\s*", value, re.ASCII) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise ValueError("must be an integer from 0 to 2^63-1, for example the date as 20261121")
    return number


Epoch = Annotated[int, BeforeValidator(parse_epoch)]
"""The type of an option that is the number of an epoch."""


def parse_duration(value: Any) -> timedelta:
    """Parse a duration.

    Args:
        value: A `timedelta`, a number of seconds, or a string: a number with a unit, or without one for seconds.

    Raises:
        ValueError: The value is none of these, or not positive.
    """
    span = parse_limit(value)
    if not span:
        raise ValueError("must be longer than 0")
    return span


def parse_limit(value: Any) -> timedelta:
    """Parse a duration that is a limit, or 0 for no limit. Otherwise as `parse_duration`."""
    if isinstance(value, str):
        value = _seconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _span(value)
    if not isinstance(value, timedelta):
        raise ValueError("must be a duration: a timedelta, seconds, or a string such as '10 minutes'")
    if value < timedelta(0):
        raise ValueError("must not be negative")
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""The type of an option that is a duration."""

Limit = Annotated[timedelta, BeforeValidator(parse_limit)]
"""The type of an option that is a duration, or 0 for no limit."""


def _span(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"must be at most {timedelta.max.days} days") from error


def _seconds(text: str) -> float:
    match = _TEXT.fullmatch(text)
    unit = (match[2] or "s").lower() if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a duration: write for example '30 seconds', '10 minutes' or '1 hour'")
    return float(match[1]) * _UNITS[unit]
