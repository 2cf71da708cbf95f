"""One COPY: its command, the encoding of record batches, and the running stream.

A COPY uses PostgreSQL's binary format (encoded by pgpq) if all columns support it; otherwise it uses text.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal

import pgpq
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pgpq._pgpq import Jsonb
from pgpq.encoders import LargeStringEncoderBuilder
from psycopg import sql

from outfall.formats.strings import TEXT, concat, data_of, literal
from outfall.postgres.catalogue.columns import Kind, TableColumn
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.copy.values import EPOCH, UUID, ValueContext, fitted
from outfall.sql.names import SqlName
from outfall.trace_points import reached

_AS_TEXT = frozenset({"textrecv", "varcharrecv", "bpcharrecv", "citextrecv", "enum_recv", "json_recv", "jsonb_recv"})
"""Functions of the server whose binary form is text. They also identify citext in any schema."""

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
"""Element types for which pgpq writes the type that the server expects."""

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_IN_ARRAY = {"\\": "\\\\", '"': '\\"'}
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_FIRST_YEAR = -719_162
_AFTER_LAST_YEAR = 2_932_897
"""The days of the years 1 to 9999, for which Arrow's text is valid for the server."""


class CopyEncoder:
    """Encodes the rows of one COPY in PostgreSQL's binary format, or as text if a column requires text.

    The schema is that of every batch, with types that `why_not` accepts for the columns, which are in its order.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[TableColumn]) -> None:
        self._given = (schema, columns)
        self._columns = list(zip(schema.names, (column.kind for column in columns), strict=True))
        types = self._fitted([pa.array([], kind) for kind in schema.types])
        self._schema = pa.schema([pa.field(str(index), array.type) for index, array in enumerate(types)])
        self._pgpq = _binary_encoder(self._schema, [kind for _, kind in self._columns])

    @property
    def format(self) -> Literal["binary", "text"]:
        """The FORMAT of the COPY. The connection's `client_encoding` must be UTF8."""
        return "text" if self._pgpq is None else "binary"

    def header(self) -> bytes:
        """Return the bytes before the first batch. Called once."""
        return b"" if self._pgpq is None else self._pgpq.write_header()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Return bytes to send for a batch. The bytes of its last rows may follow with a later batch or the trailer.

        Raises `ValueRefusedError`, which names column and row, if a column cannot hold a value. Then no row of the
        batch is encoded.
        """
        arrays = self._fitted(batch.columns)
        if self._pgpq is None:
            return bytes(data_of(_lines(arrays)))
        return self._pgpq.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def trailer(self) -> bytes:
        """Return the bytes after the last batch. Called once."""
        return b"" if self._pgpq is None else self._pgpq.finish()

    def again(self) -> CopyEncoder:
        """Return an encoder for another COPY into the same columns."""
        return CopyEncoder(*self._given)

    def whole(self, batch: pa.RecordBatch) -> bytes:
        """Return all bytes of a COPY of only this batch. Changes nothing.

        Raises `ValueRefusedError` as `encode` does.
        """
        other = self.again()
        return b"".join([other.header(), other.encode(batch), other.trailer()])

    def _fitted(self, arrays: list[pa.Array]) -> list[pa.Array]:
        return [
            fitted(array, kind, ValueContext(name)) for array, (name, kind) in zip(arrays, self._columns, strict=True)
        ]


class RunningCopy:
    """One running COPY: header, batches, trailer. The server accepts or rejects it when it is finished."""

    def __init__(self, cursor: psycopg.Cursor[Any], copy: psycopg.Copy, stack: ExitStack, encoder: CopyEncoder) -> None:
        self._cursor = cursor
        self._copy = copy
        self._stack = stack
        self._encoder = encoder

    @classmethod
    def start(cls, connection: PostgresConnection, command: sql.Composed, encoder: CopyEncoder) -> RunningCopy:
        """Send the command, one of `copy_command`, and the header. The encoder is for only this COPY."""
        stack, cursor = ExitStack(), connection.cursor()
        copy = stack.enter_context(cursor.copy(command))
        copy.write(encoder.header())
        return cls(cursor, copy, stack, encoder)

    def write(self, batch: pa.RecordBatch) -> int:
        """Send rows; return the number of bytes.

        Raises `ValueRefusedError` as `CopyEncoder.encode` does, after which the COPY can continue, and psycopg's
        errors.
        """
        data = self._encoder.encode(batch)
        reached("sql: copying")
        self._copy.write(data)
        return len(data)

    def finish(self) -> int:
        """Wait until the server has received all rows; return the number of bytes that were still to be sent."""
        rest = self._encoder.trailer()
        self._copy.write(rest)
        self._stack.close()
        return len(rest)

    @property
    def stored(self) -> int:
        """The number of rows that a finished COPY has stored, without those that a trigger skipped."""
        return self._cursor.rowcount

    def abort(self, error: BaseException | None = None) -> None:
        """Abort the COPY after an error or after its connection was closed. A finished COPY is not affected."""
        # A running COPY on a closed connection raises an error.
        with suppress(psycopg.Error):
            self._stack.__exit__(None if error is None else type(error), error, None)


def copy_command(table: SqlName, columns: Sequence[str], encoder: CopyEncoder) -> sql.Composed:
    """Return the COPY of rows into columns of a table."""
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
        sql.SQL(table.quoted), sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(encoder.format)
    )


def _binary_encoder(schema: pa.Schema, kinds: list[Kind]) -> pgpq.ArrowToPostgresBinaryEncoder | None:
    """Return pgpq's encoder; `None` if it does not support the binary form of a column."""
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


def _lines(columns: list[pa.Array]) -> pa.Array:
    """Build one line per row from columns that `fitted` has returned."""
    texts = [_escaped(_text(column), _ESCAPES) for column in columns]
    # A value equal to the marker of NULL has its backslash doubled already.
    joined = pc.binary_join_element_wise(*texts, literal("\t"), null_handling="replace", null_replacement="\\N")
    return concat(joined, literal("\n"))


def _text(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_large_list(kind):
        return _arrays(array)
    if kind == UUID or pa.types.is_large_binary(kind):
        return _hexadecimal(array)
    if pa.types.is_date(kind):
        return _dates(array)
    if pa.types.is_timestamp(kind):
        return _timestamps(array)
    if pa.types.is_duration(kind):
        return _durations(array)
    return array if kind == TEXT else array.cast(TEXT)


def _escaped(text: pa.Array, escapes: dict[str, str]) -> pa.Array:
    whole = data_of(text).to_pybytes()
    for character, escape in escapes.items():
        if character.encode() in whole:
            text = pc.replace_substring(text, character, escape)
    return text


def _arrays(array: pa.Array) -> pa.Array:
    values = array.values
    elements = _text(values)
    if not (pa.types.is_boolean(values.type) or pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
        elements = concat(literal('"'), _escaped(elements, _IN_ARRAY), literal('"'))
    whole = pa.LargeListArray.from_arrays(array.offsets, elements.fill_null("NULL"))
    return _null_like(array, concat(literal("{"), pc.binary_join(whole, literal(",")), literal("}")))


def _hexadecimal(array: pa.Array) -> pa.Array:
    """Convert all values to hexadecimal digits with one call."""
    given = array
    array = array.cast(pa.large_binary()).fill_null(b"")  # the bytes behind a NULL would shift all others
    digits = pa.py_buffer(binascii.hexlify(data_of(array.view(TEXT))))
    sizes = pc.binary_length(array)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(pc.multiply(sizes, 2))])
    text = pa.Array.from_buffers(TEXT, len(array), [None, offsets.buffers()[1], digits])
    return _null_like(given, text if given.type == UUID else concat(literal("\\x"), text))


def _dates(array: pa.Array) -> pa.Array:
    days = array.view(pa.int32())
    usual = pc.and_(pc.greater_equal(days, _FIRST_YEAR), pc.less(days, _AFTER_LAST_YEAR))
    if pc.all(usual).as_py() is not False:
        return array.cast(TEXT)
    iso = pc.if_else(usual, days, pa.scalar(0, pa.int32())).cast(pa.date32()).cast(TEXT)
    return pc.if_else(usual, iso, _julian(days.cast(pa.int64())))


def _timestamps(array: pa.Array) -> pa.Array:
    end = "" if array.type.tz is None else "+00"
    counts = array.view(pa.int64())
    usual = pc.and_(pc.greater_equal(counts, _FIRST_YEAR * _DAY), pc.less(counts, _AFTER_LAST_YEAR * _DAY))
    text = pc.if_else(usual, counts, 0).cast(pa.timestamp("us")).cast(TEXT)
    if pc.all(usual).as_py() is False:
        days = _floor_days(counts)
        clock = _clock(pc.subtract(counts, pc.multiply(days, _DAY)))
        text = pc.if_else(usual, text, concat(_julian(days), literal(" "), clock))
    return concat(text, literal(end)) if end else text


def _julian(days: pa.Array) -> pa.Array:
    """Return days as Julian days, which need neither eras nor years of five digits."""
    return concat(literal("J"), pc.add(days, EPOCH).cast(TEXT))


def _floor_days(counts: pa.Array) -> pa.Array:
    days = pc.divide(counts, _DAY)
    return pc.subtract(days, pc.less(counts, pc.multiply(days, _DAY)).cast(pa.int64()))


def _durations(array: pa.Array) -> pa.Array:
    # With units and a sign for each, because the server parses the smallest interval in no shorter form.
    counts = array.view(pa.int64())
    sign = pc.if_else(pc.less(counts, 0), literal("-"), literal(""))
    hours = pc.divide(counts, _HOUR)
    rest = pc.abs(pc.subtract(counts, pc.multiply(hours, _HOUR)))
    seconds = pc.divide(rest, 1_000_000)
    fraction = pc.utf8_lpad(pc.subtract(rest, pc.multiply(seconds, 1_000_000)).cast(TEXT), 6, "0")
    parts = [sign, pc.abs(hours).cast(TEXT), literal(" hours "), sign, seconds.cast(TEXT), literal("."), fraction]
    return concat(*parts, literal(" seconds"))


def _clock(microseconds: pa.Array) -> pa.Array:
    """Return the time of day as text."""
    return microseconds.cast(pa.time64("us")).cast(TEXT)


def _null_like(array: pa.Array, text: pa.Array) -> pa.Array:
    return text if array.null_count == 0 else pc.if_else(array.is_valid(), text, pa.scalar(None, TEXT))
