"""Partition values as the text that Spark's cast to string makes of them, and its reader takes back."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.partition_paths.distinct import Distinct
from outfall.formats.partition_paths.names import MAX_BYTES, NULL_NAME, SKIPPED_END, level
from outfall.formats.patterns import local_clock
from outfall.formats.strings import TEXT, check_utf8, data_of, first_row, literal
from outfall.formats.years import check_years

_types = pa.types
_REASONS = [
    (_types.is_floating, "Java's text of such a number differs between versions", "cast it to a decimal or a string"),
    (_types.is_null, "a column of NULLs has no type to read back", "cast it to the type it should have"),
    (_types.is_nested, "a nested value is no directory's name", "use one of its fields as a column of its own"),
    (_types.is_large_binary, "bytes are no text", "encode it with Spark's base64() or hex()"),
    (_types.is_binary, "bytes are no text", "encode it with Spark's base64() or hex()"),
    (_types.is_timestamp, "it has nanoseconds, which Spark would cut", "cast it to microseconds"),
]


def check_type(field: pa.Field) -> None:
    """Refuse a type whose values would not come back from a directory's name.

    Raises:
        ConfigurationError: naming the column, its type and a way out.
    """
    kind = field.type
    if (
        _types.is_signed_integer(kind)
        or _types.is_boolean(kind)
        or _types.is_decimal(kind)
        or _is_string(kind)
        or _types.is_date32(kind)
        or (_types.is_timestamp(kind) and kind.unit != "ns")
    ):
        return
    why, do = next(
        ((why, do) for matches, why, do in _REASONS if matches(kind)),
        ("the type is not supported", "cast it to a string"),
    )
    raise ConfigurationError(
        f"rows cannot be partitioned by column {field.name!r} of type {kind}", why=why, do=f"{do}, or leave it out"
    )


def levels(column: pa.Array, name: str) -> Distinct:
    """Make the names of the directories that a column's rows go to.

    Args:
        column: at least one row, of a type that `check_type` lets through.
        name: the column's.

    Raises:
        ValueRefusedError: a value would not come back, or no directory can be called so; naming column and row.
    """
    if _types.is_temporal(column.type):
        check_years(column, name)
    values = Distinct.of(column)
    if _is_string(column.type):
        return _of_strings(values, column, name)
    if _types.is_timestamp(column.type):
        return values.replaced(level(name, _timestamps(values, name)))
    if _types.is_decimal(column.type):
        return values.replaced(level(name, _decimals(values.values)))
    return values.replaced(level(name, values.values.cast(TEXT)))


def _is_string(kind: pa.DataType) -> bool:
    return bool(_types.is_string(kind) or _types.is_large_string(kind))


def _of_strings(values: Distinct, column: pa.Array, name: str) -> Distinct:
    try:
        values.values.validate(full=True)
    except pa.ArrowInvalid:
        check_utf8(column, name)
    texts = values.values.cast(TEXT)
    names = level(name, texts)
    # One look at all bytes: refused values are rare, and each kernel that looks for them costs as much as the rest.
    whole = data_of(texts).to_pybytes()
    if b"\0" in whole:
        _refuse(
            pc.match_substring(texts, "\0"), values, name,
            why="it holds a NUL character, which no path can hold", do="remove the character from the column",
        )  # fmt: skip
    if NULL_NAME.encode() in whole:
        _refuse(
            pc.equal(texts, literal(NULL_NAME)), values, name,
            why="this name stands for NULL, and the value would come back as NULL", do="use another value",
        )  # fmt: skip
    if SKIPPED_END.encode() in whole:
        _refuse(
            pc.ends_with(texts, SKIPPED_END), values, name,
            why=f"Spark's readers skip directories whose names end with {SKIPPED_END}", do="use another value",
        )  # fmt: skip
    lengths = pc.binary_length(names)
    if pc.max(lengths).as_py() > MAX_BYTES:
        _refuse(
            pc.greater(lengths, MAX_BYTES), values, name,
            why=f"with the column's name and escapes it is longer than the {MAX_BYTES} bytes of a directory's name",
            do="partition by a shorter column, such as a hash of this one",
        )  # fmt: skip
    return values.replaced(names)


def _decimals(values: pa.Array) -> pa.Array:
    texts = values.cast(TEXT)
    # Arrow writes small ones as 1E-7. Spark does not, since ANSI mode is the default; its reader takes both.
    if pc.any(pc.match_substring(texts, "E")).as_py():
        return pa.array([None if value is None else format(value, "f") for value in values.to_pylist()], TEXT)
    return texts


def _timestamps(values: Distinct, name: str) -> pa.Array:
    instants = values.values
    local = instants
    if instants.type.tz is not None:
        local = local_clock(instants, name)
        year = pc.year(local)
        _refuse(
            pc.or_(pc.less(year, 1), pc.greater(year, 9999)), values, name,
            why="its year is outside 1 to 9999 in the session's time zone, and it would not come back",
            do="correct the value, or cast the column to a string",
        )  # fmt: skip
        if instants.type.tz != "UTC":
            _refuse(
                pc.not_equal(_earliest(local, instants.type), instants), values, name,
                why="clocks were set back, and the same time of day had come before: it would be read back as that",
                do="cast the column to a string, or set spark.sql.session.timeZone to UTC",
            )  # fmt: skip
    # ISO text with six digits after the point; Spark drops the zeros at the end.
    return pc.ascii_rtrim(pc.ascii_rtrim(local.cast(pa.timestamp("us")).cast(TEXT), "0"), ".")


def _earliest(local: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.assume_timezone(local, kind.tz, ambiguous="earliest", nonexistent="earliest")


def _refuse(mask: pa.Array, values: Distinct, column: str, *, why: str, do: str) -> None:
    number = first_row(mask)
    if number < 0:
        return
    value, row = values.values.slice(number, 1).cast(TEXT)[0].as_py(), values.first_row(number)
    shown = value if len(value) <= 40 else f"{value[:40]}…"
    raise ValueRefusedError(
        f"rows cannot be partitioned by {shown!r}, which column {column!r} holds in row {row} of the batch",
        why=why,
        do=do,
    )
