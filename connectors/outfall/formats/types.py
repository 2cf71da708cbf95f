"""The types that JSON and CSV can preserve, and the text of scalar values, one column at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError
from outfall.formats.options import FormatOptions
from outfall.formats.patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ, Pattern, check_years
from outfall.formats.strings import TEXT, concat, literal
from outfall.values import CASE_SENSITIVE, spark_type

_REASONS = [
    (pa.types.is_duration, "Spark's reader needs the exact type of an interval in its text", "cast it to a string"),
    (pa.types.is_time, "Spark's reader does not support times", "cast it to a string"),
    (pa.types.is_timestamp, "it has nanoseconds, which Spark would truncate", "cast it to microseconds"),
]

_UP_TO_MILLIS = len("0000-00-00T00:00:00.000")

ONE_VALUE = "a JSON object has one value per name"


def check_names(fields: Iterable[Any], path: str, why: str) -> None:
    """Raise `ConfigurationError` for two columns of one name, because a reader keeps only one of the values."""
    twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
    if twice:
        where = f" of {path!r}" if path else ""
        raise ConfigurationError(
            f"two columns{where} have the name {twice[0]!r}",
            why=why,
            do="rename or drop one of them",
        )


def check_case(schema: pa.Schema) -> None:
    """Reject names that differ only in case, also inside columns, unless the session distinguishes them.

    `ConfigurationError` names two columns.
    """
    if CASE_SENSITIVE not in (schema.metadata or {}):
        _check_case(schema, "")


def _check_case(fields: Iterable[pa.Field], path: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        name = f"{path}{field.name}"
        other = seen.setdefault(field.name.lower(), name)
        if other != name:
            raise ConfigurationError(
                f"the columns {other!r} and {name!r} differ only in case",
                why="Spark's readers do not distinguish them: they fail, or return only one of them",
                do="rename one of them, or set spark.sql.caseSensitive=true here and for all readers",
            )
        _check_case((field.type.field(index) for index in range(field.type.num_fields)), f"{name}.")


def check_json_type(kind: Any, path: str) -> None:
    """Reject a type that Spark's JSON reader would not return unchanged; `ConfigurationError` has the remedy."""
    children = _children(kind)
    if children is not None:
        _check_names(kind, path)
        for name, child in children:
            check_json_type(child, f"{path}.{name}")
    elif not (is_plain(kind) or is_bytes(kind) or pa.types.is_null(kind)):
        _refuse("JSON", kind, path)


def check_csv_type(field: Any) -> None:
    """Reject a type that Spark's CSV reader would not return unchanged; `ConfigurationError` has the remedy."""
    kind = field.type
    if pa.types.is_nested(kind):
        why, do = "CSV has no nested values", 'write it with to_json(), or use format="jsonl" or "parquet"'
        refuse("CSV", kind, field.name, why, do)
    if is_bytes(kind):
        why, do = "Spark's CSV reader does not support binary values", "encode it with Spark's base64()"
        refuse("CSV", kind, field.name, why, do)
    if not is_plain(kind):
        _refuse("CSV", kind, field.name)


def is_bytes(kind: Any) -> bool:
    """Return whether a type is Spark's binary type."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _children(kind: Any) -> list[tuple[str, Any]] | None:
    if pa.types.is_struct(kind):
        return [(kind.field(index).name, kind.field(index).type) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [("value", kind.item_type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [("element", kind.value_type)]
    return None


def is_plain(kind: Any) -> bool:
    """Return whether values of a type are scalars that both the JSON and the CSV reader support."""
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit != "ns")
    )


def _check_names(kind: Any, path: str) -> None:
    if pa.types.is_map(kind):
        if not (pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)):
            why = "JSON names are strings, and Spark's JSON reader supports no other map keys"
            refuse("JSON", kind, path, why, "cast the keys to strings")
    elif pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        if any(field.metadata and field.metadata.get(b"variant") == b"true" for field in fields):
            refuse("JSON", kind, path, "it is a variant, which Spark sends in binary form", "write it with to_json()")
        check_names(fields, path, ONE_VALUE)


def refuse(format: str, kind: Any, path: str, why: str, do: str) -> NoReturn:
    """Reject a column with a `ConfigurationError`."""
    raise ConfigurationError(f"{format} does not support column {path!r} of type {spark_type(kind)}", why=why, do=do)


def _refuse(format: str, kind: Any, path: str) -> NoReturn:
    why, do = next(
        ((why, do) for matches, why, do in _REASONS if matches(kind)),
        ("the type is not supported", "cast it to a string"),
    )
    refuse(format, kind, path, why, do)


_BOOLEANS = pa.array(["false", "true"], TEXT)
_PROBED = 512
_FEW = 256
"""Distinct values among the first 512 with which a dictionary costs less than a text per value."""


@dataclass(frozen=True)
class ColumnText:
    """The text of a column between two constants, which are separate so that one join writes everything."""

    before: str
    text: pa.Array
    """Its type is `TEXT`, or a dictionary of it, to which constants are added once for each distinct value."""
    after: str

    @property
    def distinct(self) -> bool:
        """Whether `text` is a dictionary."""
        return isinstance(self.text, pa.DictionaryArray)

    def joined(self, before: str = "") -> pa.Array:
        """Return the complete text after another constant; NULL stays NULL."""
        if self.distinct:
            return self._around(self.text.dictionary, before).take(self.text.indices)
        return self._around(self.text, before)

    def _around(self, text: pa.Array, before: str) -> pa.Array:
        start = before + self.before
        return concat(literal(start), text, literal(self.after)) if start or self.after else text


@dataclass(frozen=True)
class Scalars:
    """How the scalar values of a file are written.

    `quote` is around values other than numbers and booleans: JSON's quote, or empty. A pattern is `None` for ISO 8601.
    """

    quote: str
    date: Pattern | None
    timestamp: Pattern | None
    timestamp_ntz: Pattern | None

    @classmethod
    def of(cls, options: FormatOptions, quote: str) -> Self:
        """Return the settings from options."""
        return cls(
            quote,
            _pattern(options.date_format, DATE),
            _pattern(options.timestamp_format, TIMESTAMP),
            _pattern(options.timestamp_ntz_format, TIMESTAMP_NTZ),
        )

    def piece(self, array: pa.Array, path: str) -> ColumnText:
        """Convert a column of a scalar type except strings to text; NULL stays NULL."""
        kind = array.type
        if pa.types.is_boolean(kind):
            return ColumnText("", pa.DictionaryArray.from_arrays(array.cast(pa.int8()), _BOOLEANS), "")
        if pa.types.is_floating(kind):
            return ColumnText("", _floats(array, self.quote), "")
        if pa.types.is_date(kind):
            check_years(array, path)
            return self._quoted(array.cast(TEXT) if self.date is None else self.date.format(array, path))
        if pa.types.is_timestamp(kind):
            check_years(array, path)
            return self._timestamps(array, path)
        if pa.types.is_integer(kind):
            return ColumnText("", _of_distinct(array, lambda values: values.cast(TEXT)), "")
        return ColumnText("", array.cast(TEXT), "")

    def _timestamps(self, array: pa.Array, path: str) -> ColumnText:
        zoned = array.type.tz is not None
        pattern = self.timestamp if zoned else self.timestamp_ntz
        if pattern is not None:
            return self._quoted(pattern.format(array, path))
        return self._quoted(_of_distinct(array, _iso_timestamps), "Z" if zoned else "")

    def _quoted(self, text: pa.Array, end: str = "") -> ColumnText:
        return ColumnText(self.quote, text, end + self.quote)


def _of_distinct(array: pa.Array, text: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return the text of a column: a dictionary if the first values are so few that others repeat them too."""
    if len(array) < _PROBED or pc.count_distinct(array.slice(0, _PROBED)).as_py() > _FEW:
        return text(array)
    encoded = array.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, text(encoded.dictionary))


def _pattern(text: str | None, allowed: frozenset[str]) -> Pattern | None:
    return None if text is None else Pattern.parse(text, allowed)


def _floats(array: pa.Array, quote: str) -> pa.Array:
    text = array.cast(TEXT)
    # Spark would infer "1" as an integer, and would read "-0" without its sign.
    integral = pc.equal(array, pc.trunc(array))
    if pc.any(integral).as_py():
        bare = pc.and_(integral, pc.invert(pc.match_substring(text, "e")))
        text = concat(text, pc.if_else(bare, literal(".0"), literal("")))
    if not pc.all(pc.is_finite(array)).as_py():
        signs = [literal(f"{quote}{word}{quote}") for word in ("Infinity", "-Infinity", "NaN")]
        infinity = pc.if_else(pc.greater(array, 0), signs[0], signs[1])
        text = pc.if_else(pc.is_inf(array), infinity, pc.if_else(pc.is_nan(array), signs[2], text))
    return text


def _iso_timestamps(array: pa.Array) -> pa.Array:
    """Return text in UTC with milliseconds like Spark, or with microseconds if the value has any."""
    # Arrow stores the instant in UTC. Printing it with its zone would look up the zone for every row.
    naive = array.view(pa.timestamp(array.type.unit))
    millis = naive.cast(pa.timestamp("ms"), safe=False)
    whole = pc.equal(millis.cast(naive.type), naive)
    if pc.all(whole).as_py() is not False:
        return _iso(millis)
    text = _iso(naive)
    if not pc.any(whole).as_py():
        return text
    # Slice, because a second cast takes five times as long; as bytes, because slicing by code point counts them first.
    cut = pc.binary_slice(text.view(pa.large_binary()), 0, _UP_TO_MILLIS).view(TEXT)
    return pc.if_else(whole, cut, text)


def _iso(naive: pa.Array) -> pa.Array:
    return pc.binary_replace_slice(naive.cast(TEXT), 10, 11, "T")
