"""The meaning of an HTTP status for the records of a request (RFC 9110 §15, RFC 6585, RFC 4918)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """The reaction to a status."""

    COMPLETE = "complete"
    """The records are accepted."""
    PER_ITEM = "per_item"
    """The response has a status per record: `per_item=` reads it; without it the query fails."""
    RETRY = "retry"
    """The same request is sent again, with the same key, after a pause."""
    SPLIT = "split"
    """The server stored nothing of the request: each half is sent on its own, down to the record at fault, which is
    rejected.
    """
    DEAD_LETTER = "dead_letter"
    """A record is at fault, and is rejected. In a request with many records the response must name it, or the server
    must drop what it has stored before (`idempotency="item"`); otherwise the query fails, because the server may have
    stored a part of them.
    """
    STOP = "stop"
    """Every request would fail like this: the query fails."""
    FOLLOW = "follow"
    """The same request, with its body, is sent to another location."""


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    statuses: str
    verdict: Verdict
    why: str


TABLE = (
    Rule("200-206, 208-299", Verdict.COMPLETE, "accepted; `per_item` reads the body for each record"),
    Rule("207", Verdict.PER_ITEM, "some records may have failed; without `per_item` the query fails"),
    Rule("307, 308", Verdict.FOLLOW, "RFC 9110 keeps method and body; another origin gets neither auth nor headers"),
    Rule(
        "300-306, 309-399",
        Verdict.STOP,
        "after 301, 302 and 303 clients send GET, and a login page may respond with 200: records would be lost",
    ),
    Rule("400, 422", Verdict.DEAD_LETTER, "an invalid record; the same request is never sent again"),
    Rule("413", Verdict.SPLIT, "too large a body, which the server does not process"),
    Rule("409 with a key", Verdict.RETRY, "the first attempt with this key is still being processed"),
    Rule("409 without a key", Verdict.DEAD_LETTER, "a record conflicts with existing data"),
    Rule("408, 423, 425, 429", Verdict.RETRY, "a transient state of the server"),
    Rule("401, 403", Verdict.STOP, "wrong credentials; OAuth2 first requests a new token, once"),
    Rule("404, 410, 414 with a template as url", Verdict.DEAD_LETTER, "the record's own URL is at fault"),
    Rule(
        "402, 404-407, 410, 411, 414, 415, 421, 426, 428, 431, 451",
        Verdict.STOP,
        "URL, method or headers are at fault, not the record",
    ),
    Rule("other 4xx", Verdict.DEAD_LETTER, "the content of the request is at fault"),
    Rule("501, 505", Verdict.STOP, "the server does not support the request"),
    Rule("other 5xx", Verdict.RETRY, "a transient server error"),
)
"""The default reactions; the first matching row applies."""

_ACTIONS = {
    verdict.value: verdict
    for verdict in (Verdict.COMPLETE, Verdict.RETRY, Verdict.SPLIT, Verdict.DEAD_LETTER, Verdict.STOP)
}
_KEYED, _UNKEYED, _TEMPLATE = "with a key", "without a key", "with a template as url"
_DONE = (404, 409, 410)
_OTHER = {"other 4xx": range(400, 500), "other 5xx": range(500, 600)}


class Statuses:
    """The table of one sink.

    It depends on whether requests carry an idempotency key (`keyed`) and whether the URL depends on the record
    (`template`). `exceptions` are the user's verdicts for single statuses.
    """

    def __init__(self, *, keyed: bool, template: bool, exceptions: Mapping[int, Verdict] | None = None) -> None:
        self._verdicts: dict[int, Verdict] = {}
        for rule in TABLE:
            if (keyed and _UNKEYED in rule.statuses) or (not keyed and _KEYED in rule.statuses):
                continue
            if _TEMPLATE in rule.statuses and not template:
                continue
            for status in _expand(rule.statuses):
                self._verdicts.setdefault(status, rule.verdict)
        self._exceptions = exceptions or {}

    def verdict(self, status: int) -> Verdict:
        """Return the verdict of a status. Unknown statuses fail the query."""
        return self._exceptions.get(status) or self._verdicts.get(status, Verdict.STOP)

    def of_record(self, status: int) -> Verdict:
        """Return the verdict of a status that a response has for one record.

        Exceptions apply too. But an error is not `complete` because the response as a whole is: only those statuses
        can be that say that the record exists already, or no longer.
        """
        verdict = self.verdict(status)
        if verdict is Verdict.COMPLETE and status >= 400 and status not in _DONE:
            return self._verdicts.get(status, Verdict.STOP)
        return verdict


def parse_exceptions(value: Any) -> Any:
    """Parse exceptions from the table: a mapping, or a string such as `404=dead_letter, 409=complete`.

    Raises `ValueError` if a status or a verdict is invalid.
    """
    if isinstance(value, str):
        pairs = [item.partition("=")[::2] for item in value.split(",") if item.strip()]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ValueError("must be a mapping of statuses, or a string such as '404=dead_letter, 409=complete'")
    return {_status(status): _action(action) for status, action in pairs}


def _expand(text: str) -> list[int]:
    if text in _OTHER:
        return list(_OTHER[text])
    found: list[int] = []
    for first, last in re.findall(r"(\d{3})(?:-(\d{3}))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def _status(value: Any) -> int:
    text = str(value).strip()
    if not re.fullmatch(r"[2-5]\d\d", text):
        raise ValueError(f"{text!r} is not a status from 200 to 599")
    return int(text)


def _action(value: Any) -> Verdict:
    name = value.value if isinstance(value, Verdict) else str(value).strip().lower()
    if name not in _ACTIONS:
        raise ValueError(f"{name!r} is not one of {', '.join(_ACTIONS)}")
    return _ACTIONS[name]
