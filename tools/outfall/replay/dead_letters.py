"""A dead letter in a source: its id, and filters."""

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
"""Size of the id, a hash of the contents."""

_NEEDED = [field.name for field in DEAD_LETTER_SCHEMA if not field.nullable]


@dataclass(frozen=True)
class FoundDeadLetter:
    """A dead letter and its location."""

    dead_letter: DeadLetter
    place: str
    """For messages: file and line, table, or partition and offset."""

    @property
    def id(self) -> bytes:
        """Hash of the contents, independent of location and read order."""
        dead_letter = self.dead_letter
        time = dead_letter.time.isoformat(timespec="microseconds")
        parts = [
            dead_letter.row,
            dead_letter.reason,
            dead_letter.code,
            dead_letter.excerpt,
            dead_letter.step,
            dead_letter.epoch,
            dead_letter.part,
            time,
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=ID_BYTES).digest()


def dead_letter_of(values: Mapping[str, Any], place: str) -> FoundDeadLetter:
    """Create a dead letter from a record with the columns of `DEAD_LETTER_SCHEMA`, in the types of any format.

    Raises `ConfigurationError`, with the location, if the record is not a dead letter.
    """
    missing = [name for name in _NEEDED if values.get(name) is None]
    if missing:
        raise ConfigurationError(
            f"{place} is not a dead letter: it has no {', '.join(missing)}",
            do="give a location that contains only dead letters (columns: docs/dead-letters.md)",
        )
    try:
        epoch = values.get("epoch")
        dead_letter = DeadLetter(
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
        raise ConfigurationError(f"{place} is not a dead letter", why=str(error)) from None
    return FoundDeadLetter(dead_letter, place)


def _time(value: Any) -> datetime:
    time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


@dataclass(frozen=True)
class DeadLetterFilter:
    """Selects dead letters that match all given conditions."""

    reason: re.Pattern[str] | None = None
    """Must occur in the reason."""
    codes: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    first_epoch: int | None = None
    last_epoch: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""

    def takes(self, dead_letter: DeadLetter) -> bool:
        """Whether a dead letter matches."""
        return (
            (self.reason is None or self.reason.search(dead_letter.reason) is not None)
            and (not self.codes or dead_letter.code in self.codes)
            and (not self.steps or dead_letter.step in self.steps)
            and (not self.parts or dead_letter.part in self.parts)
            and self._takes_epoch(dead_letter.epoch)
            and (self.since is None or dead_letter.time >= self.since)
            and (self.until is None or dead_letter.time < self.until)
        )

    def _takes_epoch(self, epoch: int | None) -> bool:
        if self.first_epoch is None and self.last_epoch is None:
            return True
        return (
            epoch is not None
            and (self.first_epoch is None or epoch >= self.first_epoch)
            and (self.last_epoch is None or epoch <= self.last_epoch)
        )
