"""Converts between rows and Python values, for sinks that take values and engines that provide them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError

CASE_SENSITIVE = b"outfall.case_sensitive"
"""Metadata of a schema whose session distinguishes names that differ only in case (`spark.sql.caseSensitive`)."""


def to_values(batch: pa.RecordBatch, value_column: str | None) -> list[Any]:
    """Convert rows to values.

    Args:
        batch: The rows.
        value_column: The column with the values; `None` for a dict of all columns per row.

    Returns:
        One value per row. Structs and maps are dicts, timestamps with a zone are aware datetimes.

    Raises:
        ConfigurationError: Two columns have the same name, and a dict would keep only one.
    """
    if value_column is not None:
        return _column(batch.column(value_column))
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two columns have the name {twice!r}", do="rename or remove one of them")
    columns = [_column(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    convert = _map_converter(column.type)
    return values if convert is None else [convert(value) for value in values]


def _map_converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts maps to dicts, or `None` if the type has no maps. Arrow returns pairs."""
    if pa.types.is_map(kind):
        item = _map_converter(kind.item_type) or _same
        return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _map_converter(kind.value_type)
        return inner and (lambda items: None if items is None else [inner(item) for item in items])
    if pa.types.is_struct(kind):
        fields = {field.name: _map_converter(field.type) for field in kind}
        if any(fields.values()):
            return lambda row: None if row is None else {k: (fields[k] or _same)(v) for k, v in row.items()}
    return None


def _same(value: Any) -> Any:
    return value


def to_batch(values: list[Any], value_column: str | None) -> pa.RecordBatch:
    """Convert values to rows. The inverse of `to_values`, for engines without Arrow.

    Raises:
        ValueRefusedError: The values of a column have no common type.
    """
    if value_column is None:
        return rows_to_batch(values)
    return pa.RecordBatch.from_arrays([_inferred(value_column, values)], names=[value_column])


def rows_to_batch(values: Sequence[Any]) -> pa.RecordBatch:
    """Create a batch from rows (dicts), or from single values, which become a column `value`.

    A column that some rows lack is NULL in these rows. Types are inferred from all rows.

    Raises:
        ValueRefusedError: The values of a column have no common type, or its name is not a string.
    """
    rows = [value if isinstance(value, dict) else {"value": value} for value in values]
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        if not isinstance(name, str):
            raise ValueRefusedError(
                f"the column name {name!r} is not a string", why="columns are found by name", do="use strings as names"
            )
    columns = [_inferred(name, [row.get(name) for row in rows]) for name in names]
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, names=names)


def _inferred(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        # Without Arrow's text, which quotes a value.
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise ValueRefusedError(
            f"the values of column {name!r} have no common type",
            why=f"they are of the Python types {', '.join(kinds)} ({type(error).__name__})",
            do="cast the column before writing it",
        ) from None


def spark_type(kind: pa.DataType) -> str:
    """Return Spark's name of a type, as `DESCRIBE TABLE` prints it; Arrow's own for a type that Spark does not have."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in kind)}>"
    if types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    return _SPARK_TYPES.get(kind, str(kind))


_SPARK_TYPES: dict[pa.DataType, str] = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.duration("us"): "interval day to second",
}


_MOST_SHOWN = 20


def require_columns(rows: Sequence[str], named: Mapping[str, str | Iterable[str] | None], do: str = "") -> None:
    """Check that rows have each column that an option names, once.

    Args:
        rows: The names of the columns of the rows.
        named: The names of one or more columns by the option, or by another text for what requires them.
        do: What to do, if it is more than to select the column or to correct the option.

    Raises:
        ConfigurationError: A column is missing, or stands twice.
    """
    for option, names in named.items():
        for name in [names] if isinstance(names, str) else names or ():
            if rows.count(name) > 1:
                raise ConfigurationError(f"two columns have the name {name!r}", do="rename or remove one of them")
            if name not in rows:
                folded = {row.casefold(): row for row in rows}
                near = [folded[row] for row in difflib.get_close_matches(name.casefold(), folded, n=3)]
                shown = [*rows[:_MOST_SHOWN], *(["…"] if len(rows) > _MOST_SHOWN else [])]
                raise ConfigurationError(
                    f"{option} requires the column {name!r}, and the rows have {', '.join(shown)}",
                    why=f"similar columns are {', '.join(map(repr, near))}" if near else None,
                    do=do or f"select it, or correct {option}",
                )


def without_values(batch: pa.RecordBatch, rows: pa.Array, kept: Collection[str]) -> pa.RecordBatch:
    """Return a batch in which some rows have NULL in all columns but the `kept` ones.

    Of a removal only the key is used, and its source may have put anything into the other columns. `rows` says of each
    row whether it is one.
    """
    if not pc.any(rows).as_py():
        return batch
    places = pc.if_else(rows, None, pa.array(range(batch.num_rows), pa.int64()))
    columns = [
        column if name in kept else column.take(places)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def detached(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of a small slice, which would keep its whole batch in memory, or the batch itself."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
    return batch.take(pc.cumulative_sum(ones, start=-1))


def arrow_stream(batch: pa.RecordBatch) -> bytes:
    """Return a batch as a stream of Arrow IPC, compressed."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())
