"""When a large object is composed of what small epochs brought."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypedDict

from pydantic import ByteSize, Field

from outfall.options import Duration, SinkOptions
from outfall.storage.rolling import RollBounds

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


def roll_bounds(options: RollOptions, part_size: int, clock: Callable[[], float]) -> RollBounds:
    """Take the bounds from a sink's options."""
    return RollBounds(
        size=options.roll_bytes,
        interval=options.roll_interval,
        rows=options.roll_rows,
        largest=min(_MOST_BYTES, part_size * _MOST_PARTS),
        clock=clock,
    )
