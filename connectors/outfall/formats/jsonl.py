"""NDJSON: one JSON object per line, like Spark's JSON writer; binary values as Base64."""

from __future__ import annotations

import binascii
import json
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.base import Encoder
from outfall.formats.options import FormatOptions
from outfall.formats.strings import TEXT, check_utf8, concat, data_of, literal
from outfall.formats.types import ONE_VALUE, ColumnText, Scalars, check_json_type, check_names, is_bytes

_BINARY = pa.large_binary()
_END = 2**31 - 1
_ESCAPES = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)} | {'"': '\\"'}


class JsonlEncoder(Encoder):
    """Encodes JSON lines with Arrow's string kernels, one column at a time.

    Like Spark's writer, it omits NULL fields, writes `null` for a NULL in an array or as a map value, writes timestamps
    with their offset (here always UTC), NaN and infinities as strings, and binary values as Base64. Unlike Spark's
    writer, it keeps microseconds.
    """

    growing: ClassVar[bool] = True
    as_text: ClassVar[bool] = True
    read_by: ClassVar[frozenset[str]] = frozenset({"date_format", "timestamp_format", "timestamp_ntz_format"})

    def __init__(self, options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> None:
        super().__init__(options, schema, start=start)
        self._scalars = Scalars.of(options, quote='"')
        self._null_fields = not options.ignore_null_fields

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        check_names(schema, "", ONE_VALUE)
        for field in schema:
            check_json_type(field.type, field.name)

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        return data_of(self.objects(batch, end="}\n"))

    def objects(self, batch: pa.RecordBatch, end: str = "}") -> pa.Array:
        """Return each row as a JSON object that ends with `end`. The batch may have any columns of supported types."""
        names = batch.schema.names
        pieces = [(name, self._field(array, name)) for name, array in zip(names, batch.columns, strict=True)]
        return _objects(pieces, batch.num_rows, end)

    def values(self, array: pa.Array, path: str) -> pa.Array:
        """Convert a column of any supported type to JSON text; NULL stays NULL. `path` is its name, for errors.

        Raises `ValueRefusedError` if a value has no JSON text from which it could be read back.
        """
        return self._piece(array, path).joined()

    def _field(self, array: pa.Array, path: str) -> ColumnText:
        piece = self._piece(array, path)
        if self._null_fields and piece.text.null_count:
            return ColumnText("", piece.joined().fill_null("null"), "")
        return piece

    def _piece(self, array: pa.Array, path: str) -> ColumnText:
        kind = array.type
        if pa.types.is_struct(kind):
            return ColumnText("", self._structs(array, path), "")
        if pa.types.is_map(kind):
            keys, values = _elements_of(array, array.keys, array.items)
            return ColumnText("{", _joined(array, self._entries(keys, values, path)), "}")
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            (values,) = _elements_of(array, array.values)
            return ColumnText("[", _joined(array, self._elements(values, f"{path}.element")), "]")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            check_utf8(array, path)
            return ColumnText('"', _escaped(array.cast(TEXT)), '"')
        if is_bytes(kind):
            return ColumnText('"', _base64_text(array), '"')
        return self._scalars.piece(array, path)

    def _structs(self, array: pa.Array, path: str) -> pa.Array:
        names = [array.type.field(index).name for index in range(array.type.num_fields)]
        columns = array.flatten()  # unlike field(), it propagates NULL structs to their fields and respects slices
        pieces = [(name, self._field(column, f"{path}.{name}")) for name, column in zip(names, columns, strict=True)]
        return _null_like(array, _objects(pieces, len(array), end="}"))

    def _elements(self, values: pa.Array, path: str) -> pa.Array:
        return self.values(values, path).fill_null("null")

    def _entries(self, keys: pa.Array, values: pa.Array, path: str) -> pa.Array:
        key = self._piece(keys, f"{path}.key")
        texts = self._elements(values, f"{path}.value")
        return concat(literal(key.before), key.text, literal(key.after + ":"), texts)


def _objects(pieces: list[tuple[str, ColumnText]], rows: int, end: str) -> pa.Array:
    """Build one object per row from the texts of the columns, without NULL fields."""
    line: list[pa.Array | pa.Scalar] = []
    pending = "{"
    before: pa.Array | bool = False  # rows that already have a field, so that a comma must follow
    for name, piece in pieces:
        key = json.dumps(name, ensure_ascii=False) + ":"
        nullable = piece.text.null_count > 0
        if not isinstance(before, bool):
            start = pc.if_else(before, literal("," + key + piece.before), literal(key + piece.before))
            text = piece.text.dictionary_decode() if piece.distinct else piece.text
            line.append(concat(start, text, literal(piece.after)))
        elif nullable or piece.distinct:
            if nullable and pending:  # it is written for a NULL too
                line.append(literal(pending))
                pending = ""
            line.append(piece.joined(pending + ("," if before else "") + key))
            pending = ""
        else:
            line += [literal(pending + ("," if before else "") + key + piece.before), piece.text]
            pending = piece.after
        before = _stands(before, piece.text)
    if not line:
        return pa.repeat(literal("{" + end), rows)
    return concat(*line, literal(pending + end), skip_null=True)


def _stands(before: pa.Array | bool, text: pa.Array) -> pa.Array | bool:
    """Return the rows that have a field after one more column; `True` for all rows."""
    if before is True or text.null_count == 0:
        return True
    here = text.is_valid()
    return here if isinstance(before, bool) else pc.or_(before, here)


def _elements_of(array: pa.Array, *children: pa.Array) -> list[pa.Array]:
    """Return the elements of the lists of an array. The children of a slice are those of the whole array."""
    offsets = array.offsets
    first, last = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
    return [child.slice(first, last - first) for child in children]


def _joined(array: pa.Array, elements: pa.Array) -> pa.Array:
    """Join the elements of each list with commas."""
    offsets = array.offsets.cast(pa.int64())
    if len(offsets) and offsets[0].as_py():
        offsets = pc.subtract(offsets, offsets[0])
    lists = pa.LargeListArray.from_arrays(offsets, elements)
    return _null_like(array, pc.binary_join(lists, literal(",")))


def _null_like(array: pa.Array, text: pa.Array) -> pa.Array:
    return text if array.null_count == 0 else pc.if_else(array.is_valid(), text, pa.scalar(None, TEXT))


def _base64_text(array: pa.Array) -> pa.Array:
    """Encode each value as RFC 4648 Base64 with padding; NULL stays NULL."""
    array = array.cast(_BINARY)
    sizes = pc.fill_null(pc.binary_length(array), 0)
    missing = pc.choose(_modulo_3(sizes), 0, 2, 1)
    padded = _padded(array, missing)
    groups = pc.divide(pc.add(sizes, missing), 3)
    # Each value now fills complete groups of three bytes, so one call can encode all values.
    data = binascii.b2a_base64(padded, newline=False)
    ends = pc.cumulative_sum(pc.multiply(groups, 4))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    text = pa.Array.from_buffers(pa.large_string(), len(array), [None, offsets.buffers()[1], pa.py_buffer(data)])
    for count in (1, 2):
        # Padding replaces the text of the added zero bytes ("A").
        text = pc.if_else(pc.equal(missing, count), pc.binary_replace_slice(text, -count, _END, "=" * count), text)
    return text if array.null_count == 0 else pc.if_else(array.is_valid(), text, pa.scalar(None, text.type))


def _modulo_3(sizes: pa.Array) -> pa.Array:
    return pc.subtract(sizes, pc.multiply(pc.divide(sizes, 3), 3))


def _padded(array: pa.Array, missing: pa.Array) -> pa.Buffer:
    zeros = pc.choose(missing, *(pa.scalar(b"\0" * count, _BINARY) for count in range(3)))
    joined = pc.binary_join_element_wise(array, zeros, pa.scalar(b"", _BINARY), null_handling="replace")
    ends = memoryview(joined.buffers()[1]).cast("q")
    data = joined.buffers()[2]
    first, last = ends[joined.offset], ends[joined.offset + len(joined)]
    return data.slice(first, last - first) if data is not None else pa.py_buffer(b"")


def _escaped(array: pa.Array) -> pa.Array:
    """Escape strings for JSON as Jackson does: quote, backslash and control characters, nothing else."""
    data = data_of(array)
    if data.size == 0:
        return array
    # Most columns need no escape. One scan of all bytes is much cheaper than a kernel over all strings.
    lowest = pc.min(pa.Array.from_buffers(pa.uint8(), data.size, [None, data])).as_py()
    whole = data.to_pybytes()
    if b"\\" in whole:
        array = pc.replace_substring(array, "\\", "\\\\")
    suspects = _ESCAPES if lowest < 0x20 else ['"']
    for character in suspects:
        if character.encode() in whole:
            array = pc.replace_substring(array, character, _ESCAPES[character])
    return array
