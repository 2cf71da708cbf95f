"""Directory names like those of Spark's `partitionBy`: from the escaped values of a column.

The work is done once for each distinct value of a column, not for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.patterns import check_years, local_clock
from outfall.formats.strings import TEXT, check_utf8, concat, data_of, first_row, literal
from outfall.values import spark_type

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""The value for NULL and for the empty string; readers read it as NULL."""

MAX_BYTES = 255
"""The maximum length of a directory name, on all common filesystems."""

_SKIPPED_END = "._COPYING_"
"""Spark's readers skip directories with this suffix, because Hadoop uses it for copies in progress."""

# ExternalCatalogUtils.charToEscape. It lacks NUL, which no path can contain.
_ESCAPED = bytes(range(1, 0x20)) + b"\"#%'*/:=?\\\x7f{[]^"
_PLAIN = bytes(set(range(256)) - set(_ESCAPED))
_TABLE = {code: f"%{code:02X}" for code in _ESCAPED}

_types = pa.types
_REASONS = [
    (_types.is_floating, "Java's text of such a number differs between versions", "cast it to a decimal or a string"),
    (_types.is_null, "a column of NULLs has no type to read back", "cast it to the intended type"),
    (_types.is_nested, "a nested value cannot be a directory name", "use one of its fields as a separate column"),
    (_types.is_large_binary, "binary values are not text", "encode it with Spark's base64() or hex()"),
    (_types.is_binary, "binary values are not text", "encode it with Spark's base64() or hex()"),
    (_types.is_timestamp, "it has nanoseconds, which Spark would truncate", "cast it to microseconds"),
]


def check_type(field: pa.Field) -> None:
    """Reject a type whose values cannot be read back from a directory name; `ConfigurationError` has the remedy."""
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
        f"rows cannot be partitioned by column {field.name!r} of type {spark_type(kind)}",
        why=why,
        do=f"{do}, or leave it out",
    )


def column_directories(column: pa.Array, name: str) -> Distinct:
    """Return the directory names of a column's values: of at least one row, of a type that `check_type` accepts.

    `ValueRefusedError` names column and row of a value that could not be read back, or cannot be a directory name.
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
    # One scan of all bytes: rejected values are rare, and each kernel that finds them costs as much as the rest.
    whole = data_of(texts).to_pybytes()
    if b"\0" in whole:
        _refuse(
            pc.match_substring(texts, "\0"), values, name,
            why="it contains a NUL character, which no path can contain", do="remove the character from the column",
        )  # fmt: skip
    if NULL_NAME.encode() in whole:
        _refuse(
            pc.equal(texts, literal(NULL_NAME)), values, name,
            why="this name represents NULL, and the value would be read as NULL", do="use another value",
        )  # fmt: skip
    if _SKIPPED_END.encode() in whole:
        _refuse(
            pc.ends_with(texts, _SKIPPED_END), values, name,
            why=f"Spark's readers skip directories whose names end with {_SKIPPED_END}", do="use another value",
        )  # fmt: skip
    lengths = pc.binary_length(names)
    if pc.max(lengths).as_py() > MAX_BYTES:
        _refuse(
            pc.greater(lengths, MAX_BYTES), values, name,
            why=f"with the column name and escapes, it is longer than {MAX_BYTES} bytes, the limit of a directory name",
            do="partition by a shorter column, such as a hash of this one",
        )  # fmt: skip
    return values.replaced(names)


def _decimals(values: pa.Array) -> pa.Array:
    texts = values.cast(TEXT)
    # Arrow writes small decimals as 1E-7. Spark in ANSI mode, its default, does not; its reader accepts both.
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
            why="its year is outside 1 to 9999 in the session time zone, so it could not be read back",
            do="correct the value, or cast the column to a string",
        )  # fmt: skip
        if instants.type.tz != "UTC":
            _refuse(
                pc.not_equal(_earliest(local, instants.type), instants), values, name,
                why="that local time occurs twice because clocks were set back; it would be read as the earlier one",
                do="cast the column to a string, or set spark.sql.session.timeZone to UTC",
            )  # fmt: skip
    # ISO text has six digits after the point. Spark drops trailing zeros.
    return pc.ascii_rtrim(pc.ascii_rtrim(local.cast(pa.timestamp("us")).cast(TEXT), "0"), ".")


def _earliest(local: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.assume_timezone(local, kind.tz, ambiguous="earliest", nonexistent="earliest")


def _refuse(mask: pa.Array, values: Distinct, column: str, *, why: str, do: str) -> None:
    number = first_row(mask)
    if number < 0:
        return
    raise ValueRefusedError(
        f"rows cannot be partitioned by the value of column {column!r} in row {values.first_row(number)} of the batch",
        why=why,
        do=do,
    )


def escape_text(text: str) -> str:
    """Escape a name or a value like Spark's `ExternalCatalogUtils.escapePathName`."""
    return text.translate(_TABLE)


def escape(texts: pa.Array) -> pa.Array:
    """Escape an array of `TEXT` in the same way; NULL stays NULL."""
    found = set(data_of(texts).to_pybytes().translate(None, _PLAIN))
    # The percent sign first, because all escapes begin with it.
    for code in sorted(found, key=lambda code: (code != ord("%"), code)):
        texts = pc.replace_substring(texts, chr(code), _TABLE[code])
    return texts


def level(name: str, values: pa.Array) -> pa.Array:
    """Return the directory names of a column or a level `name=`, from unescaped values of type `TEXT`."""
    nothing = pc.fill_null(pc.equal(values, literal("")), True)
    return concat(literal(f"{escape_text(name)}="), pc.if_else(nothing, literal(NULL_NAME), escape(values)))


def check_level(name: str | None, sample: str) -> None:
    """Reject a directory that Spark's readers skip, that leaves the root, or that filesystems do not support.

    `name` is the unescaped text before the first `=`; `None` if there is no `=`. `sample` is the longest escaped name
    of the directory, with the same beginning and end as all its names. `ValueError` states the reason.
    """
    if name == "":
        raise ValueError(f"the level {sample!r} has no name before its =")
    if "\0" in sample:
        raise ValueError(f"the level {sample!r} contains a NUL character, which no path can contain")
    if sample in ("", ".", ".."):
        raise ValueError(f"the level {sample!r} cannot be a directory name")
    if sample.startswith(".") or (name is None and sample.startswith("_")):
        raise ValueError(f"the level {sample!r} begins with {sample[0]!r}, and Spark's readers skip such directories")
    if sample.endswith(_SKIPPED_END):
        raise ValueError(f"the level {sample!r} ends with {_SKIPPED_END!r}, and Spark's readers skip such directories")
    if len(sample.encode()) > MAX_BYTES:
        raise ValueError(f"the level {sample[:40]!r}… is longer than {MAX_BYTES} bytes, the limit of a directory name")


@dataclass(frozen=True)
class Distinct:
    """Distinct values, in the order of the first row of each: at least one, and NULL may be one of them.

    `rows` has the index of the value of each row; it is `None` if all rows have the same value.
    """

    values: pa.Array
    rows: pa.Array | None

    @classmethod
    def of(cls, array: pa.Array) -> Self:
        """Find the distinct values of at least one row."""
        # Comparing neighbors is much cheaper than hashing, and most batches have one partition.
        if _all_same(array):
            return cls(array.slice(0, 1), None)
        encoded = array.dictionary_encode(null_encoding="encode")
        return cls(encoded.dictionary, encoded.indices)

    def replaced(self, values: pa.Array) -> Distinct:
        """Replace the values by others, and merge equal ones."""
        if self.rows is None:
            return Distinct(values, None)
        merged = Distinct.of(values)
        if merged.rows is None:
            return merged
        if len(merged.values) == len(values):
            return Distinct(values, self.rows)
        return Distinct(merged.values, merged.rows.take(self.rows))

    def first_row(self, number: int) -> int:
        """Return the first row that has a value."""
        return 0 if self.rows is None else first_row(pc.equal(self.rows, number))

    def at(self, rows: pa.Array) -> pa.Array | pa.Scalar:
        """Return the values of some rows; a scalar if all rows have the same value."""
        return self.values[0] if self.rows is None else self.values.take(self.rows.take(rows))

    def list_at(self, rows: pa.Array) -> list[Any]:
        """Return the values of some rows as Python values."""
        found = self.at(rows)
        return [found.as_py()] * len(rows) if isinstance(found, pa.Scalar) else list(found.to_pylist())


def split_rows(batch: pa.RecordBatch, columns: list[Distinct]) -> tuple[pa.Array, Iterator[pa.RecordBatch]]:
    """Split a batch by the combinations of the values of at least one row, in the order of the first row of each.

    Returns the first row of each combination, and its rows in their order. If the rows of a combination are adjacent,
    they share the memory of the batch.
    """
    rows = combined(columns)
    if rows is None:
        return pa.array([0]), iter([batch])
    order = None if _stand_together(rows) else pc.array_sort_indices(rows)  # a stable sort
    if order is not None:
        batch, rows = batch.take(order), rows.take(order)
    ends = pc.run_end_encode(rows).run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    firsts = pa.array(starts)
    parts = (batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True))
    return firsts if order is None else order.take(firsts), parts


def combined(columns: list[Distinct]) -> pa.Array | None:
    """Number the distinct combinations of column values, in the order of the first row of each.

    Returns the number of the combination of each row; `None` if all rows have the same one.
    """
    varying = [column for column in columns if column.rows is not None]
    if len(varying) < 2:
        return varying[0].rows if varying else None
    codes: Any = pa.scalar(0, pa.int64())
    size = 1
    for column in varying:
        count = len(column.values)
        if size * count >= 2**63:
            found = codes.dictionary_encode()
            codes, size = found.indices.cast(pa.int64()), len(found.dictionary)
        codes = pc.add(pc.multiply(codes, count), pc.cast(column.rows, pa.int64()))
        size *= count
    return codes.dictionary_encode().indices


def _stand_together(rows: pa.Array) -> bool:
    """Return whether the rows of each combination are adjacent; combinations are numbered by their first row."""
    return bool(pc.all(pc.greater_equal(rows.slice(1), rows.slice(0, len(rows) - 1))).as_py())


def _all_same(array: pa.Array) -> bool:
    if array.null_count:
        return bool(array.null_count == len(array))
    last = len(array) - 1
    if array[0] != array[last]:
        return False
    return bool(pc.all(pc.equal(array.slice(1), array.slice(0, last)), min_count=0).as_py())
