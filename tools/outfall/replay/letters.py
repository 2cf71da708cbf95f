"""One dead letter as it is found: what it is known by, and whether it is meant."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outfall.dead_letter import DEAD_LETTER_SCHEMA, DeadLetter
from outfall.errors import ConfigurationError

ID_BYTES = 16
"""Of a letter's id: two letters of other contents never share one, as far as a hash can promise it."""

_NEEDED = [field.name for field in DEAD_LETTER_SCHEMA if not field.nullable]


@dataclass(frozen=True)
class FoundLetter:
    """A letter, and where it lies."""

    letter: DeadLetter
    place: str
    """For texts: a file and its line, a table, a partition and its offset."""

    @property
    def id(self) -> bytes:
        """What the letter is known by: a hash of its contents, wherever it lies and in whatever order it is read."""
        letter = self.letter
        time = letter.time.isoformat(timespec="microseconds")
        parts = [letter.row, letter.reason, letter.code, letter.excerpt, letter.step, letter.epoch, letter.part, time]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=ID_BYTES).digest()


def letter_of(values: Mapping[str, Any], place: str) -> FoundLetter:
    """Make a letter of a record with the columns of `DEAD_LETTER_SCHEMA`, in whatever types a format has for them.

    Raises:
        ConfigurationError: it is none; names the place.
    """
    missing = [name for name in _NEEDED if values.get(name) is None]
    if missing:
        raise ConfigurationError(
            f"{place} holds no dead letter: it has no {', '.join(missing)}",
            do="name a place that holds dead letters alone (their columns: docs/dead-letters.md)",
        )
    try:
        epoch = values.get("epoch")
        letter = DeadLetter(
            row=str(values["row"]),
            reason=str(values["reason"]),
            step=str(values["step"]),
            epoch=None if epoch is None else int(epoch),
            part=values.get("part"),
            code=values.get("code"),
            excerpt=values.get("excerpt"),
            time=_time(values["time"]),
        )
    except ValueError as error:
        raise ConfigurationError(f"{place} holds no dead letter", why=str(error)) from None
    return FoundLetter(letter, place)


def _time(value: Any) -> datetime:
    time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


@dataclass(frozen=True)
class LetterFilter:
    """Which letters are meant: those for which all that is given holds."""

    reason: re.Pattern[str] | None = None
    """Is found in the reason."""
    codes: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    first_epoch: int | None = None
    last_epoch: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""

    def takes(self, letter: DeadLetter) -> bool:
        """Whether a letter is meant."""
        return (
            (self.reason is None or self.reason.search(letter.reason) is not None)
            and (not self.codes or letter.code in self.codes)
            and (not self.steps or letter.step in self.steps)
            and (not self.parts or letter.part in self.parts)
            and self._takes_epoch(letter.epoch)
            and (self.since is None or letter.time >= self.since)
            and (self.until is None or letter.time < self.until)
        )

    def _takes_epoch(self, epoch: int | None) -> bool:
        if self.first_epoch is None and self.last_epoch is None:
            return True
        return (
            epoch is not None
            and (self.first_epoch is None or epoch >= self.first_epoch)
            and (self.last_epoch is None or epoch <= self.last_epoch)
        )
