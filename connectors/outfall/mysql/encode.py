"""Encodes rows for LOAD DATA LOCAL and for INSERT, column by column."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.types import is_bytes
from outfall.mysql.json_text import json_text
from outfall.mysql.names import quote
from outfall.mysql.types import is_text
from outfall.sql.dialect import compose
from outfall.sql.names import SqlName

_TEXT = pa.large_string()

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\0": "\\0", "'": "\\'"}
"""What begins an escape, ends a field or a row of LOAD DATA, or ends a literal."""
_SPECIAL = r"[\\\t\n\x00']"


class RowEncoder:
    """Encodes rows of a schema for a table. Values are those that `mismatches` does not yield.

    `bits` are the columns of type BIT, which would take the bytes of a text for their bits.
    """

    def __init__(self, table: SqlName, schema: pa.Schema, columns: Sequence[str], bits: Collection[str] = ()) -> None:
        names = [quote(name).replace("%%", "%") for name in columns]
        self._schema = schema
        self._binary = [is_bytes(field.type) for field in schema]
        self._bits = [name in bits for name in columns]
        forms = ["UNHEX(@_{})" if binary else None for binary in self._binary]
        forms = ["CAST(@_{} AS UNSIGNED)" if bit else form for bit, form in zip(self._bits, forms, strict=True)]
        given = [names[number] if form is None else f"@_{number}" for number, form in enumerate(forms)]
        decoded = [f"{names[number]} = {form.format(number)}" for number, form in enumerate(forms) if form]
        self._load = (
            f"LOAD DATA LOCAL INFILE 'outfall' INTO TABLE {table.quoted} CHARACTER SET utf8mb4"
            r" FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n'"
            f" ({', '.join(given)})" + (f" SET {', '.join(decoded)}" if decoded else "")
        ).encode()
        self._insert = compose("INSERT INTO {} ({}) VALUES ", table.quoted, ", ".join(names)).encode()

    def load(self, batch: pa.RecordBatch) -> tuple[bytes, memoryview]:
        """Return the statement LOAD DATA LOCAL, and its data."""
        fields = [pc.fill_null(_escaped(text, field), r"\N") for text, field in self._texts(batch)]
        rows = pc.binary_join_element_wise(*fields, pa.scalar("\t", _TEXT))
        lines = pc.binary_join_element_wise(rows, pa.scalar("", _TEXT), pa.scalar("\n", _TEXT))
        return self._load, _content(lines)

    def insert(self, batch: pa.RecordBatch) -> bytes:
        """Return an INSERT."""
        literals = []
        for (text, field), binary, bit in zip(self._texts(batch), self._binary, self._bits, strict=True):
            if bit:
                literals.append(pc.fill_null(text, "NULL"))
                continue
            quoted = pc.binary_join_element_wise(
                pa.scalar("x'" if binary else "'", _TEXT), _escaped(text, field), pa.scalar("'", _TEXT),
                pa.scalar("", _TEXT),
            )  # fmt: skip
            literals.append(pc.fill_null(quoted, "NULL"))
        values = pc.binary_join_element_wise(*literals, pa.scalar(",", _TEXT))
        rows = pc.binary_join_element_wise(pa.scalar("(", _TEXT), values, pa.scalar("),", _TEXT), pa.scalar("", _TEXT))
        return self._insert + bytes(_content(rows)[:-1])

    def _texts(self, batch: pa.RecordBatch) -> list[tuple[pa.Array, pa.Field]]:
        return [(_text(column, field.name), field) for column, field in zip(batch.columns, self._schema, strict=True)]


def _text(array: pa.Array, name: str) -> pa.Array:
    """Return values as the server reads them, without escapes."""
    kind = array.type
    if pa.types.is_nested(kind):
        return json_text(array, name)
    if is_bytes(kind):
        return pa.array([None if value is None else value.hex() for value in array.to_pylist()], _TEXT)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_timestamp(kind):
        # The clock of UTC, which is the time zone of the session.
        array = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    elif pa.types.is_float32(kind):
        array = array.cast(pa.float64())
    elif pa.types.is_null(kind):
        return pa.nulls(len(array), _TEXT)
    return array.cast(_TEXT)


def _escaped(text: pa.Array, field: pa.Field) -> pa.Array:
    """Escape the texts of a column; numbers and times need no escapes."""
    if not (is_text(field.type) or pa.types.is_nested(field.type)):
        return text
    if not pc.any(pc.match_substring_regex(text, _SPECIAL)).as_py():
        return text
    for character, escape in _ESCAPES.items():
        text = pc.replace_substring(text, character, escape)
    return text


def _content(lines: pa.Array) -> memoryview:
    """Return the bytes of texts without NULL, one after another."""
    _, offsets, data = lines.buffers()
    ends = memoryview(offsets).cast("q")[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data or b"")[ends[0] : ends[-1]]
