"""Record batches as the bytes of one COPY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pgpq
import pyarrow as pa
from pgpq._pgpq import Jsonb
from pgpq.encoders import LargeStringEncoderBuilder

from outfall.formats.strings import TEXT, data_of
from outfall.postgres.columns import Kind, TableColumn
from outfall.postgres.copy_text import lines
from outfall.postgres.copy_values import Place, fitted

_AS_TEXT = frozenset({"textrecv", "varcharrecv", "bpcharrecv", "citextrecv", "enum_recv", "json_recv", "jsonb_recv"})
"""Functions of the server that read text as the binary form; it is what tells citext, wherever it was installed."""

_IN_ARRAYS = frozenset(
    {
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "numeric",
        "text",
        "bytea",
        "date",
        "time",
        "timestamp",
        "interval",
    }
)
"""Elements whose type pgpq names to the server, which compares it."""


class CopyEncoder:
    """Encodes the rows of one COPY: in PostgreSQL's binary format, or as text when a column is only read as text.

    Args:
        schema: of every batch; its types are those that `why_not` lets into the columns.
        columns: the table's columns, in the order of the schema.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[TableColumn]) -> None:
        self._given = (schema, columns)
        self._columns = list(zip(schema.names, (column.kind for column in columns), strict=True))
        types = self._fitted([pa.array([], kind) for kind in schema.types])
        self._schema = pa.schema([pa.field(str(index), array.type) for index, array in enumerate(types)])
        self._pgpq = _binary_encoder(self._schema, [kind for _, kind in self._columns])

    @property
    def format(self) -> Literal["binary", "text"]:
        """The FORMAT to give to COPY. The connection's `client_encoding` must be UTF8."""
        return "text" if self._pgpq is None else "binary"

    def header(self) -> bytes:
        """Return what comes before the first batch. Called once."""
        return b"" if self._pgpq is None else self._pgpq.write_header()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Encode the rows of a batch.

        Returns:
            Bytes to send; those of the last rows may follow with a later batch or the trailer.

        Raises:
            ValueRefusedError: a column cannot hold a value, naming column and row. None of the batch is encoded then.
        """
        arrays = self._fitted(batch.columns)
        if self._pgpq is None:
            return bytes(data_of(lines(arrays)))
        return self._pgpq.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def trailer(self) -> bytes:
        """Return what comes after the last batch. Called once."""
        return b"" if self._pgpq is None else self._pgpq.finish()

    def again(self) -> CopyEncoder:
        """Make an encoder for another COPY into the same columns."""
        return CopyEncoder(*self._given)

    def whole(self, batch: pa.RecordBatch) -> bytes:
        """Return all the bytes of a COPY of this batch alone; changes nothing.

        Raises:
            ValueRefusedError: as `encode`.
        """
        other = self.again()
        return b"".join([other.header(), other.encode(batch), other.trailer()])

    def _fitted(self, arrays: list[pa.Array]) -> list[pa.Array]:
        return [fitted(array, kind, Place(name)) for array, (name, kind) in zip(arrays, self._columns, strict=True)]


def _binary_encoder(schema: pa.Schema, kinds: list[Kind]) -> pgpq.ArrowToPostgresBinaryEncoder | None:
    """Make pgpq's encoder; nothing when a column has no binary form that it writes."""
    if not all(_has_binary(kind, target) for kind, target in zip(schema.types, kinds, strict=True)):
        return None
    builders = {
        field.name: LargeStringEncoderBuilder.new_with_output(field, Jsonb())
        if target.name == "jsonb"
        else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for field, target in zip(schema, kinds, strict=True)
    }
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)


def _has_binary(kind: pa.DataType, target: Kind) -> bool:
    if pa.types.is_large_list(kind):
        element = target.element
        return element is not None and element.name in _IN_ARRAYS and _has_binary(kind.value_type, element)
    if kind == TEXT:
        return target.receive in _AS_TEXT
    return not (pa.types.is_floating(kind) and target.name == "numeric")
