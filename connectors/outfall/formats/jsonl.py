"""NDJSON: one JSON object per line, as Spark's own JSON writer writes it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.base import Encoder
from outfall.formats.base64 import base64_text
from outfall.formats.options import FormatOptions
from outfall.formats.scalars import Piece, Scalars
from outfall.formats.strings import TEXT, check_utf8, concat, data_of, escaped, literal
from outfall.formats.types import ONE_VALUE, check_json_type, check_names, is_bytes


class JsonlEncoder(Encoder):
    """JSON lines whose text comes from Arrow's string kernels, a column at a time.

    Follows Spark: a NULL field is left out, a NULL in an array or a map's value is `null`, a timestamp carries its
    offset (always UTC here), NaN and the infinities are strings, bytes are base64. Unlike Spark's writer it keeps
    microseconds.
    """

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
        names = self.schema.names
        pieces = [(name, self._field(array, name)) for name, array in zip(names, batch.columns, strict=True)]
        return data_of(_objects(pieces, batch.num_rows, end="}\n"))

    def values(self, array: pa.Array, path: str) -> pa.Array:
        """Turn a column of any supported type into JSON text, NULL where it is NULL.

        Args:
            array: the column.
            path: its name, for errors.

        Raises:
            ValueRefusedError: a value has no JSON text that would come back.
        """
        return self._piece(array, path).joined()

    def _field(self, array: pa.Array, path: str) -> Piece:
        piece = self._piece(array, path)
        if self._null_fields and piece.text.null_count:
            return Piece("", piece.joined().fill_null("null"), "")
        return piece

    def _piece(self, array: pa.Array, path: str) -> Piece:
        kind = array.type
        if pa.types.is_struct(kind):
            return Piece("", self._structs(array, path), "")
        if pa.types.is_map(kind):
            keys, values = _elements_of(array, array.keys, array.items)
            return Piece("{", _joined(array, self._entries(keys, values, path)), "}")
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            (values,) = _elements_of(array, array.values)
            return Piece("[", _joined(array, self._elements(values, f"{path}.element")), "]")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            check_utf8(array, path)
            return Piece('"', escaped(array.cast(TEXT)), '"')
        if is_bytes(kind):
            return Piece('"', base64_text(array), '"')
        return self._scalars.piece(array, path)

    def _structs(self, array: pa.Array, path: str) -> pa.Array:
        names = [array.type.field(index).name for index in range(array.type.num_fields)]
        columns = array.flatten()  # unlike field() it hands a NULL struct down to its fields, and minds a slice
        pieces = [(name, self._field(column, f"{path}.{name}")) for name, column in zip(names, columns, strict=True)]
        return _null_like(array, _objects(pieces, len(array), end="}"))

    def _elements(self, values: pa.Array, path: str) -> pa.Array:
        return self.values(values, path).fill_null("null")

    def _entries(self, keys: pa.Array, values: pa.Array, path: str) -> pa.Array:
        key = self._piece(keys, f"{path}.key")
        texts = self._elements(values, f"{path}.value")
        return concat(literal(key.before), key.text, literal(key.after + ":"), texts)


def _objects(pieces: list[tuple[str, Piece]], rows: int, end: str) -> pa.Array:
    """Make one object per row from the columns' texts, without the fields that are NULL."""
    line: list[pa.Array | pa.Scalar] = []
    pending = "{"
    before: pa.Array | bool = False  # where a field stands already, so that a comma must follow
    for name, piece in pieces:
        key = json.dumps(name, ensure_ascii=False) + ":" + piece.before
        if piece.text.null_count == 0 and isinstance(before, bool):
            line += [literal(pending + ("," if before else "") + key), piece.text]
            pending, before = piece.after, True
            continue
        if isinstance(before, bool):
            start = literal("," + key if before else key)
        else:
            start = pc.if_else(before, literal("," + key), literal(key))
        line += [literal(pending), concat(start, piece.text, literal(piece.after))]
        pending = ""
        before = _stands(before, piece.text)
    if not line:
        return pa.repeat(literal("{" + end), rows)
    return concat(*line, literal(pending + end), skip_null=True)


def _stands(before: pa.Array | bool, text: pa.Array) -> pa.Array | bool:
    """Where a field stands after one more column, `True` for everywhere."""
    if before is True or text.null_count == 0:
        return True
    here = text.is_valid()
    return here if isinstance(before, bool) else pc.or_(before, here)


def _elements_of(array: pa.Array, *children: pa.Array) -> list[pa.Array]:
    """What the lists of an array hold: where it is a slice, its children are still those of the whole."""
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
