"""What a row is called in an error: by its key, else by where it stands and how it begins."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from outfall.formats.row_text import row_texts
from outfall.postgres.columns import read_primary_key
from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions

_EXCERPT = 200
"""Characters; a row may be long."""


def key_names(connection: Connection, options: PostgresOptions, given: Sequence[str]) -> list[str]:
    """Return the columns that a row is named by: the option's, else the primary key's, if the rows have them."""
    keys = options.key_columns or read_primary_key(connection, TableName.parse(options.table))
    return list(keys) if all(name in given for name in keys) else []


def batch_row_name(batch: pa.RecordBatch, row: int, keys: Sequence[str], position: int) -> str:
    """Name a row of a batch.

    Args:
        batch: the rows.
        row: which of them.
        keys: the columns to name it by.
        position: which of its task's rows it is.
    """
    shown = batch.slice(row, 1)
    if keys:
        return row_name(row_texts(shown.select(list(keys)))[0], by_key=True)
    return f"row {position} of its task, {_cut(row_texts(shown)[0])}"


def row_name(text: str, *, by_key: bool) -> str:
    """Name a row by the JSON text of its key, or of itself."""
    return f"the row with key {_cut(text)}" if by_key else f"the row {_cut(text)}"


def _cut(text: str) -> str:
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"
