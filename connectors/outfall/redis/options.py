"""The options of `RedisSink`, and the pattern of its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from string import Formatter
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ByteSize, Field, field_validator, model_validator

from outfall.connections import ServerSettings
from outfall.errors import ValueRefusedError
from outfall.options import Duration
from outfall.redis.client import RedisConnection
from outfall.redis.packing import joined
from outfall.versioned import VersionedOptions, VersionedSettings

Layout = Literal["hash", "json", "value"]


class RedisOptions(VersionedOptions, RedisConnection):
    """The options of `RedisSink`, in its constructor and in Spark."""

    key: str = Field(
        description="The pattern of the keys, with the columns that identify a row in braces: `flight:{carrier}:{id}`."
        " `{{` and `}}` are literal braces, for the hash tags of a cluster. A value that contains the text up to the"
        " next column is rejected if rows of other values could have the same key.",
    )
    layout: Layout = Field(
        default="hash",
        description="What is stored under a key. `hash`: a field per column; NULL has none. `json`: a string with the"
        " row as a JSON object. `value`: a string with the column `value_column`.",
    )
    value_column: str | None = Field(
        default=None, min_length=1, description="The column that the layout `value` stores, a string or binary."
    )
    ttl: Duration | None = Field(
        default=None, description="How long a key lives after it was written. Default: until it is deleted."
    )
    require_durable: bool = Field(
        default=False,
        description="Whether a server whose settings let it forget acknowledged writes is rejected before the first"
        " row. Otherwise a warning says that the guarantee does not hold.",
    )
    max_batch_size: int = Field(default=500, gt=0, description="Maximum number of rows in one pipeline.")
    max_in_flight_requests: int = Field(
        default=4, gt=0, description="Maximum number of concurrent pipelines per task, each on its own connection."
    )
    max_record_size_in_bytes: ByteSize = Field(
        default=ByteSize(1 << 20),
        gt=0,
        description="Maximum size of one row, at most `max_batch_size_in_bytes`. A larger row becomes a dead letter.",
    )

    @field_validator("key")
    @classmethod
    def _pattern(cls, value: str) -> str:
        if not KeyPattern(value).columns:
            raise ValueError("must name a column in braces, such as {id}")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.layout == "value") != (self.value_column is not None):
            raise ValueError('layout "value" and value_column belong together')
        if self.delete_marker in KeyPattern(self.key).columns:
            raise ValueError("delete_marker cannot be in the key")
        if self.ttl is not None and self.ttl < timedelta(milliseconds=1):
            raise ValueError("ttl must be at least a millisecond")
        return self


class RedisSettings(VersionedSettings, ServerSettings, total=False):
    """The fields of `RedisOptions` as keyword arguments of the constructor."""

    layout: Layout
    value_column: str | None
    ttl: timedelta | float | str | None
    cluster: bool
    sentinel: str | None
    wait_replicas: int
    require_durable: bool
    client_certificate: str | None
    client_key: str | None


class KeyPattern:
    """The pattern of the keys: texts, and columns between them."""

    def __init__(self, pattern: str) -> None:
        """Parse a pattern. Raises `ValueError` if it is not valid."""
        self.pieces: list[tuple[str, str | None]] = []
        for text, column, how, conversion in Formatter().parse(pattern):
            if column == "" or how or conversion:
                raise ValueError("names columns in braces, without a format")
            self.pieces.append((text, column))

    @property
    def columns(self) -> list[str]:
        """The columns, in their order."""
        return [column for _, column in self.pieces if column is not None]

    def keys(self, values: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Array:
        """Return the key of each row, from the binary values of the columns.

        Raises `ValueRefusedError` if a row with other values could have the key of a row.
        """
        for name, end in self._ends(schema):
            found = pc.find_substring(joined(values[name], end), end)
            if not pc.all(pc.equal(pc.cast(found, pa.int64()), pc.binary_length(values[name]))).as_py():
                raise ValueRefusedError(
                    f"the key column {name!r} of a row contains {end.decode()!r}, which ends it in the key",
                    why="another row could have the same key",
                    do=f"put a text after {{{name}}} in the pattern that none of its values contains, or encode it",
                )
        pieces: list[Any] = []
        for text, column in self.pieces:
            pieces += [text.encode()] if column is None else [text.encode(), values[column]]
        return joined(*pieces)

    def _ends(self, schema: pa.Schema) -> Iterator[tuple[str, bytes]]:
        """Yield the columns whose values must not contain the text up to the next column, with that text.

        The last column ends with the key. Dates, times and booleans end themselves, since they have one form. A number
        ends where the text is no part of one, and a text where the text is followed by such columns only.
        """
        places = [place for place, (_, column) in enumerate(self.pieces) if column is not None]
        for place, following in pairwise(places):
            column = str(self.pieces[place][1])
            end = "".join(text for text, _ in self.pieces[place + 1 : following + 1])
            kinds = {_kind(schema, str(self.pieces[each][1])) for each in places if each >= following}
            free = {
                "one form": True,
                "number": end[:1] not in _NUMBERS,
                "text": kinds == {"one form"} or ("text" not in kinds and end[-1:] not in _NUMBERS),
            }
            if not free[_kind(schema, column)]:
                yield column, end.encode()


_NUMBERS = "0123456789-."


def _kind(schema: pa.Schema, column: str) -> str:
    """Return how the values of a column end in a key: a "number", a "text", or values of "one form"."""
    kind = schema.field(column).type
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        return "one form"
    return "number" if pa.types.is_integer(kind) or pa.types.is_decimal(kind) else "text"
