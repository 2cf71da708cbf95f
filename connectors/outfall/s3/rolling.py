"""When a large object is composed of what small epochs brought."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Self, TypedDict

from pydantic import ByteSize, Field

from outfall.options import Duration, SinkOptions

_MOST_PARTS = 8_000
"""Fewer than S3 takes in an object, since the last epoch's bytes come on top."""
_MOST_BYTES = 2 << 40


class RollArguments(TypedDict, total=False):
    """The bounds as keyword arguments of a sink; `RollOptions` says what each means."""

    roll_bytes: int | str | None
    roll_interval: timedelta | float | str | None
    roll_rows: int | None


class RollOptions(SinkOptions):
    """The bounds of an object that gathers the rows of several epochs."""

    roll_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="Gather the rows of several epochs, and publish them as one object once they take this many bytes:"
        " a number, or text such as `128 MiB`. An object ends where an Arrow batch ends, so it may be longer by"
        " one. For Parquet the bytes are those of Arrow's stream format, compressed. Needs `workers=`.",
    )
    roll_interval: Duration | None = Field(
        default=None,
        description="The same once the oldest of them came this long ago, looked at while epochs run: seconds, or text"
        " such as `1 hour`. `bucket_pattern` needs it beside the other bounds, and so does `partition_by` by columns"
        " whose values come no more after a while: their last rows would wait for ever.",
    )
    roll_rows: int | None = Field(
        default=None, ge=1, description="The same once there are so many; no object has more of them."
    )

    @property
    def rolls(self) -> bool:
        """Whether rows wait across epochs."""
        return not (self.roll_bytes is None and self.roll_interval is None and self.roll_rows is None)


@dataclass(frozen=True)
class Rolling:
    """The bounds; with none of them nothing waits beyond its epoch."""

    size: int
    """Bytes; at most what S3 takes in one object."""
    age: float | None = None
    """Seconds."""
    rows: int | None = None
    ever: bool = True
    """Whether rows wait across epochs at all."""
    clock: Callable[[], float] = time.time
    """Seconds since 1970: ages are compared across processes and restarts."""

    @classmethod
    def of(cls, options: RollOptions, part_size: int, clock: Callable[[], float]) -> Self:
        """Take the bounds from a sink's options."""
        most = min(_MOST_BYTES, part_size * _MOST_PARTS)
        interval = options.roll_interval
        return cls(
            size=min(options.roll_bytes or most, most),
            age=interval.total_seconds() if interval else None,
            rows=options.roll_rows,
            ever=options.rolls,
            clock=clock,
        )

    def due(self, *, size: int, rows: int, since: float) -> bool:
        """Tell whether an object is to be composed.

        Args:
            size: its bytes.
            rows: its rows.
            since: when the oldest of them came, in seconds since 1970.
        """
        return (
            size >= self.size
            or (self.rows is not None and rows >= self.rows)
            or (self.age is not None and self.clock() - since >= self.age)
        )

    def room(self, rows: int) -> int | None:
        """How many rows an object takes that has some already; `None` for any number."""
        return None if self.rows is None else max(0, self.rows - rows)

    def fits(self, rows: int) -> bool:
        """Whether an object may have so many rows."""
        return self.rows is None or rows <= self.rows
