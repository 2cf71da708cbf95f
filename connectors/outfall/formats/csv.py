"""CSV: one line per row, as Spark's own CSV writer writes it."""

from __future__ import annotations

import hashlib
import json
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.base import Encoder
from outfall.formats.csv_text import Quoting, refuse_rows
from outfall.formats.options import FormatOptions
from outfall.formats.scalars import Piece, Scalars
from outfall.formats.strings import TEXT, check_utf8, concat, data_of, literal
from outfall.formats.types import check_csv_type, check_names

_MOST_COLUMNS = 20_480
"""Spark's CSV reader takes no more, unless it is told."""

_WRITTEN = frozenset("0123456789+-.:TZEeaIyNrufltins")
"""What numbers, truth values, dates and timestamps are made of."""


_READ_BY = {
    "header",
    "sep",
    "quote",
    "escape",
    "null_value",
    "empty_value",
    "date_format",
    "timestamp_format",
    "timestamp_ntz_format",
}
"""Options that a file's reader must have as its writer had them."""


class CsvEncoder(Encoder):
    """CSV whose text comes from Arrow's string kernels, a column at a time.

    Follows Spark: values that hold `sep` or `quote` are quoted, an empty string is `empty_value`, white space around
    values is dropped unless told otherwise. Unlike Spark's writer it keeps microseconds, and refuses what readers would
    not give back: values with line breaks, values that look like NULL, rows that leave an empty line.
    """

    one_schema: ClassVar[bool] = True

    def __init__(self, options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> None:
        super().__init__(options, schema, start=start)
        self._sep = options.sep
        self._quoting = Quoting.of(options)
        self._scalars = Scalars.of(options, quote="")
        patterns = (options.date_format, options.timestamp_format, options.timestamp_ntz_format)
        special = {options.sep, options.quote, options.escape}
        self._plain_scalars = not (options.quote_all or options.null_value or any(patterns) or special & _WRITTEN)
        self._may_be_blank = len(schema) == 1 or options.sep <= " "
        self._head = self._header() if start and options.header else b""

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        if not 0 < len(schema) <= _MOST_COLUMNS:
            raise ConfigurationError(
                f"CSV does not carry rows of {len(schema)} columns",
                why=f"Spark's CSV reader takes 1 to {_MOST_COLUMNS}",
                do='select other columns, or use format="jsonl"',
            )
        check_names(schema, "", "a header has one column per name")
        for field in schema:
            check_csv_type(field)

    @classmethod
    def check_options(cls, options: FormatOptions, schema: pa.Schema) -> None:
        if options.header:
            try:
                Quoting.of(options).quoted(pa.array(schema.names, TEXT), "header", first=True)
            except ValueRefusedError as error:
                raise ConfigurationError(
                    "a column's name cannot stand in the header", why=str(error), do="rename it, or leave header out"
                ) from error

    @classmethod
    def shape(cls, options: FormatOptions, schema: pa.Schema) -> str | None:
        # Options at their defaults are left out, so that one that is added later changes nothing.
        given = options.model_dump(include=_READ_BY, exclude_defaults=True)
        return hashlib.sha256(json.dumps([schema.names, given], sort_keys=True).encode()).hexdigest()[:16]

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        pieces = [self._piece(array, name) for name, array in zip(self.schema.names, batch.columns, strict=True)]
        lines = self._lines(pieces)
        if self._may_be_blank:
            self._refuse_blank(lines)
        data = data_of(lines)
        if not self._head:
            return data
        head, self._head = self._head, b""
        return pa.py_buffer(head + data.to_pybytes())

    def _header(self) -> bytes:
        names = pa.array(self.schema.names, TEXT)
        first = self._quoting.quoted(names.slice(0, 1), "header", first=True)
        rest = self._quoting.quoted(names.slice(1), "header", first=False)
        return (self._sep.join([*first.to_pylist(), *rest.to_pylist()]) + "\n").encode()

    def _piece(self, array: pa.Array, name: str) -> Piece:
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            check_utf8(array, name)
            return Piece("", self._quoting.quoted(array.cast(TEXT), name, name == self.schema.names[0]), "")
        piece = self._scalars.piece(array, name)
        if self._plain_scalars:
            # A constant would be written for a NULL, too.
            return piece if piece.text.null_count == 0 else Piece("", piece.joined(), "")
        return Piece("", self._quoting.quoted(piece.joined(), name, name == self.schema.names[0]), "")

    def _lines(self, pieces: list[Piece]) -> pa.Array:
        """Join columns to lines; a NULL that is left is an empty `null_value`."""
        *others, last = pieces
        ends = concat(last.text, literal(last.after + "\n"), skip_null=True)
        if not others:
            return ends
        columns = [piece.joined() for piece in others]
        # `sep` costs far less as the kernel's separator than as a column of its own between two others.
        separator = literal(self._sep)
        return pc.binary_join_element_wise(*columns, ends, separator, null_handling="replace", null_replacement="")

    def _refuse_blank(self, lines: pa.Array) -> None:
        refuse_rows(
            pc.equal(pc.binary_length(pc.ascii_trim_whitespace(lines)), 0),
            "the line would be blank",
            "Spark's CSV reader skips such lines, and the row would be lost",
            "set null_value or quote_all, or filter such rows out",
        )
