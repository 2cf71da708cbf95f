"""`Retry-After` (RFC 9110 §10.2.3): how long a server asks to be left alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_after(
    value: str | None, *, longest: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> float | None:
    """Read the header.

    Args:
        value: a number of seconds or a date; `None` when the header is absent.
        longest: seconds that are waited at most, whatever the server asks for.
        now: the time.

    Returns:
        Seconds from 0 to `longest`; `None` when the header is absent or makes no sense, a negative number among that.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return min(float(text), longest)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return min(max((date - now()).total_seconds(), 0.0), longest)
