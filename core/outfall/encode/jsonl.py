"""NDJSON: one JSON object per line, as Spark's own JSON writer writes it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from outfall.encode.base import Encoder
from outfall.encode.json_types import check_names, check_type
from outfall.encode.json_values import Piece, scalar_piece
from outfall.encode.strings import TEXT, check_utf8, concat, data_of, escaped, literal


class JsonlEncoder(Encoder):
    """JSON lines whose text comes from Arrow's string kernels, a column at a time.

    Follows Spark: a NULL field is left out, a NULL in an array or a map's value is `null`, a timestamp carries its
    offset (always UTC here), NaN and the infinities are strings. Unlike Spark's writer it keeps microseconds.
    """

    suffix = ".jsonl"

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        check_names(schema, "")
        for field in schema:
            check_type(field.type, field.name)

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        names = self.schema.names
        pieces = [(name, _piece(array, name)) for name, array in zip(names, batch.columns, strict=True)]
        return data_of(_objects(pieces, batch.num_rows, end="}\n"))


def _piece(array: pa.Array, path: str) -> Piece:
    """Turn a column of any supported type into JSON text, NULL where it is NULL."""
    kind = array.type
    if pa.types.is_struct(kind):
        return Piece("", _structs(array, path), "")
    if pa.types.is_map(kind):
        return Piece("{", _joined(array, _entries(array, path)), "}")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return Piece("[", _joined(array, _elements(array.values, f"{path}.element")), "]")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        check_utf8(array, path)
        return Piece('"', escaped(array.cast(TEXT)), '"')
    return scalar_piece(array, path)


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


def _structs(array: pa.Array, path: str) -> pa.Array:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = array.flatten()  # unlike field() it hands a NULL struct down to its fields, and minds a slice
    pieces = [(name, _piece(column, f"{path}.{name}")) for name, column in zip(names, columns, strict=True)]
    return _null_like(array, _objects(pieces, len(array), end="}"))


def _elements(values: pa.Array, path: str) -> pa.Array:
    piece = _piece(values, path)
    return concat(literal(piece.before), piece.text, literal(piece.after)).fill_null("null")


def _entries(array: pa.Array, path: str) -> pa.Array:
    key = _piece(array.keys, f"{path}.key")
    values = _elements(array.items, f"{path}.value")
    return concat(literal(key.before), key.text, literal(key.after + ":"), values)


def _joined(array: pa.Array, elements: pa.Array) -> pa.Array:
    """Join the elements of each list with commas."""
    lists = pa.LargeListArray.from_arrays(array.offsets.cast(pa.int64()), elements)
    return _null_like(array, pc.binary_join(lists, literal(",")))


def _null_like(array: pa.Array, text: pa.Array) -> pa.Array:
    return text if array.null_count == 0 else pc.if_else(array.is_valid(), text, pa.scalar(None, TEXT))
