"""Columns whose values stand outside the body: in the url, or as keys."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError


def check_column(schema: pa.Schema, name: str, use: str) -> None:
    """Refuse a column that is not there, or whose values have no text that is the same everywhere.

    Args:
        schema: of the rows.
        name: the column.
        use: what it is for, for texts: `"the url"`.

    Raises:
        ConfigurationError: naming the column and its type.
    """
    if name not in schema.names:
        raise ConfigurationError(
            f"{use} needs the column {name!r}, and the rows have {', '.join(schema.names)}", do="correct the name"
        )
    kind = schema.field(name).type
    types = pa.types
    if not (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_decimal(kind)
    ):
        raise ConfigurationError(
            f"{use} cannot be made of column {name!r} of type {kind}", do="cast the column to a string"
        )


def texts(batch: pa.RecordBatch, name: str, use: str) -> list[str]:
    """Return a column's values as text.

    Raises:
        ConfigurationError: as `check_column`.
        ValueRefusedError: a value is NULL or empty, or no UTF-8.
    """
    check_column(batch.schema, name, use)
    column = batch.column(name)
    empty = pc.fill_null(pc.equal(text := column.cast(pa.large_string()), ""), True)
    if pc.any(empty).as_py():
        row = pc.index(empty, True).as_py()
        raise ValueRefusedError(
            f"column {name!r} is NULL or empty, and {use} needs it",
            why=f"it is so in row {row} of the batch",
            do="leave such rows out, or give them a value",
        )
    try:
        found: list[str] = text.to_pylist()
    except UnicodeDecodeError as error:
        raise ValueRefusedError(
            f"column {name!r} holds a string that is not UTF-8, and {use} needs it", do="decode the column"
        ) from error
    return found
