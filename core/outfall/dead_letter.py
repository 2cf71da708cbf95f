"""The format of dead letters, in every sink that takes them.

A record that its destination permanently rejects becomes a dead letter: it is written to another sink with the reason,
in the same epoch as the accepted rows. The pattern is Hohpe and Woolf's Dead Letter Channel (Enterprise Integration
Patterns, 2003), https://www.enterpriseintegrationpatterns.com/patterns/messaging/DeadLetterChannel.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

EXCERPT_CHARACTERS = 1000
"""The kept length of a response, whose body may be a page of HTML."""

NOT_CONVERTIBLE = "not_convertible"
"""The code of a record that Outfall rejected before it sent it, so that the destination has no code for it."""

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("row", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("code", pa.string()),
        pa.field("excerpt", pa.string()),
        pa.field("step", pa.string(), nullable=False),
        pa.field("epoch", pa.int64()),
        pa.field("part", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""The columns of dead letters."""


@dataclass(frozen=True)
class DeadLetter:
    """One rejected record. `time` is the time of the rejection."""

    row: str
    """The record as JSON; see `outfall.formats.row_text`."""
    reason: str
    """The reason, in the words of the destination, without secrets."""
    step: str
    epoch: int | None
    part: str | None = None
    """The part or the writer; `None` if the driver detected the rejection."""
    code: str | None = None
    """The destination's code for the reason: an SQLSTATE, an HTTP status, an AWS error code."""
    excerpt: str | None = None
    """The beginning of the destination's response."""
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    masked: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    """Returns how errors and logs call the record, with as much of it as they may show. Not stored."""

    def __post_init__(self) -> None:
        """Escape lone surrogates and truncate the excerpt.

        Raises:
            ValueError: The time has no zone.
        """
        if self.time.tzinfo is None:
            raise ValueError("the time of a dead letter requires a time zone")
        for name in ("row", "reason", "code", "excerpt"):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, escape_surrogates(text))
        if self.excerpt is not None and len(self.excerpt) > EXCERPT_CHARACTERS:
            object.__setattr__(self, "excerpt", self.excerpt[:EXCERPT_CHARACTERS])


def dead_letter_batch(dead_letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return dead letters as rows of `DEAD_LETTER_SCHEMA`, for a sink to write."""
    columns = [[getattr(dead_letter, name) for dead_letter in dead_letters] for name in DEAD_LETTER_SCHEMA.names]
    arrays = [pa.array(values, kind.type) for values, kind in zip(columns, DEAD_LETTER_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA)


def escape_surrogates(text: str) -> str:
    """Return a text that is valid in UTF-8, with lone surrogates escaped."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
