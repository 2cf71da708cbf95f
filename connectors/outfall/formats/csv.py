"""CSV: one line per row, quoted, escaped and trimmed like Spark's CSV writer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.base import Encoder
from outfall.formats.options import FormatOptions
from outfall.formats.strings import TEXT, check_utf8, concat, data_of, literal, refuse_breaks, refuse_rows
from outfall.formats.types import ColumnText, Scalars, check_csv_type, check_names

_SPACES = "".join(map(chr, range(0x21)))
"""The characters that Spark's CSV writer treats as white space."""

_MOST_COLUMNS = 20_480
"""The default limit of Spark's CSV reader."""

_WRITTEN = frozenset("0123456789+-.:TZEeaIyNrufltins")
"""The characters of numbers, booleans, dates and timestamps."""


_READ_BY = frozenset(
    {
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
)


class CsvEncoder(Encoder):
    """Encodes CSV with Arrow's string kernels, one column at a time.

    Like Spark's writer, it quotes values that contain `sep` or `quote`, writes an empty string as `empty_value`, and
    drops white space around values by default. Unlike Spark's writer, it keeps microseconds, and rejects values that
    readers would not return: values with line breaks, values equal to `null_value`, and rows that become a blank line.
    """

    one_schema: ClassVar[bool] = True
    addressing: ClassVar[Literal["by name", "by position", "none"]] = "by position"
    as_text: ClassVar[bool] = True
    read_by: ClassVar[frozenset[str]] = _READ_BY
    growing: ClassVar[bool] = True

    def __init__(self, options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> None:
        super().__init__(options, schema, start=start)
        self._sep = options.sep
        self._quoting = _Quoting.of(options)
        self._scalars = Scalars.of(options, quote="")
        patterns = (options.date_format, options.timestamp_format, options.timestamp_ntz_format)
        special = {options.sep, options.quote, options.escape}
        self._plain_scalars = not (options.quote_all or options.null_value or any(patterns) or special & _WRITTEN)
        self._may_be_blank = len(schema) == 1 or options.sep <= " "
        self._head = self._header() if start and options.header else b""

    @classmethod
    def headed(cls, options: FormatOptions) -> bool:
        return options.header

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        if not 0 < len(schema) <= _MOST_COLUMNS:
            raise ConfigurationError(
                f"CSV does not support rows of {len(schema)} columns",
                why=f"Spark's CSV reader accepts 1 to {_MOST_COLUMNS} columns",
                do='select other columns, or use format="jsonl"',
            )
        check_names(schema, "", "a header has one column per name")
        for field in schema:
            check_csv_type(field)

    @classmethod
    def check_options(cls, options: FormatOptions, schema: pa.Schema) -> None:
        if options.header:
            try:
                _Quoting.of(options).quoted(pa.array(schema.names, TEXT), "header", first=True)
            except ValueRefusedError as error:
                raise ConfigurationError(
                    "a column name cannot be in the header",
                    why=str(error),
                    do="rename the column, or leave header out",
                ) from error

    @classmethod
    def shape(cls, options: FormatOptions, schema: pa.Schema) -> str | None:
        # Options at their defaults are left out, so that adding an option later does not change existing shapes.
        given = options.model_dump(include=set(_READ_BY), exclude_defaults=True)
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

    def _piece(self, array: pa.Array, name: str) -> ColumnText:
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            check_utf8(array, name)
            return ColumnText("", self._quoting.quoted(array.cast(TEXT), name, name == self.schema.names[0]), "")
        piece = self._scalars.piece(array, name)
        if self._plain_scalars:
            # The constants before and after would also be written for a NULL.
            return piece if piece.text.null_count == 0 else ColumnText("", piece.joined(), "")
        return ColumnText("", self._quoting.quoted(piece.joined(), name, name == self.schema.names[0]), "")

    def _lines(self, pieces: list[ColumnText]) -> pa.Array:
        """Join columns to lines. A remaining NULL is written as an empty `null_value`."""
        *others, last = pieces
        ends = concat(last.joined(), literal("\n"), skip_null=True)
        if not others:
            return ends
        columns = [piece.joined() for piece in others]
        # The separator of the kernel is much cheaper than a constant column between two columns.
        separator = literal(self._sep)
        return pc.binary_join_element_wise(*columns, ends, separator, null_handling="replace", null_replacement="")

    def _refuse_blank(self, lines: pa.Array) -> None:
        refuse_rows(
            pc.equal(pc.binary_length(pc.ascii_trim_whitespace(lines)), 0),
            "the line would be blank",
            "Spark's CSV reader skips such lines, and the row would be lost",
            "set null_value or quote_all, or filter such rows out",
        )


@dataclass(frozen=True)
class _Quoting:
    """How string values are written."""

    sep: str
    quote: str
    escape: str
    always: bool
    null: str
    empty: str
    trims_start: bool
    trims_end: bool

    @classmethod
    def of(cls, options: FormatOptions) -> Self:
        """Return the settings for strings from options."""
        return cls(
            options.sep,
            options.quote,
            options.escape,
            options.quote_all,
            options.null_value,
            options.quote * 2 if options.empty_value == '""' else options.empty_value,
            options.ignore_leading_white_space,
            options.ignore_trailing_white_space,
        )

    def quoted(self, text: pa.Array, column: str, first: bool) -> pa.Array:
        """Quote and escape values of type `TEXT`. Spark quotes values in the first column that start like a comment.

        `ValueRefusedError` names column and row of a value that readers would not return.
        """
        data = data_of(text)
        whole = data.to_pybytes()
        refuse_breaks(text, whole, column, "CSV readers treat it as the end of a record, and CSV has no escape for it")
        spaced = data.size > 0 and pc.min(pa.Array.from_buffers(pa.uint8(), data.size, [None, data])).as_py() <= 0x20
        if spaced and self.trims_start:
            text = pc.ascii_ltrim(text, _SPACES)
        # Spark determines which values need quotes before it trims their ends.
        needs = self._needs_quotes(text, whole, first)
        if spaced and self.trims_end:
            text = pc.ascii_rtrim(text, _SPACES)
        if self.null:
            self._refuse_null_likes(text, column)
        return self._with_constants(text, needs, whole)

    def _with_constants(self, text: pa.Array, needs: pa.Array | None, whole: bytes) -> pa.Array:
        empty = pc.equal(pc.binary_length(text), 0)
        if self.always:
            text = self._enclosed(text, whole)
        elif needs is not None:
            text = pc.if_else(needs, self._enclosed(text, whole), text)
        if pc.any(empty).as_py():
            text = pc.if_else(empty, literal(self._constant(self.empty)), text)
        null = self._constant(self.null)
        return text.fill_null(null) if null and text.null_count else text

    def _constant(self, value: str) -> str:
        return f"{self.quote}{value}{self.quote}" if self.always and value != self.quote * 2 else value

    def _needs_quotes(self, text: pa.Array, whole: bytes, first: bool) -> pa.Array | None:
        masks = [
            pc.match_substring(text, character) for character in (self.sep, self.quote) if character.encode() in whole
        ]
        if first and b"#" in whole:
            masks.append(pc.starts_with(text, "#"))
        if not masks or self.always:
            return None
        needs = masks[0]
        for mask in masks[1:]:
            needs = pc.or_(needs, mask)
        return needs

    def _enclosed(self, text: pa.Array, whole: bytes) -> pa.Array:
        if self.escape != self.quote and self.escape.encode() in whole:
            text = pc.replace_substring(text, self.escape, self.escape * 2)
        if self.quote.encode() in whole:
            text = pc.replace_substring(text, self.quote, self.escape + self.quote)
        return concat(literal(self.quote), text, literal(self.quote))

    def _refuse_null_likes(self, text: pa.Array, column: str) -> None:
        refuse_rows(
            pc.equal(text, literal(self.null)),
            f"column {column!r} contains a value equal to null_value {self.null!r}",
            "it would be read as NULL",
            "choose a null_value that does not occur as a value",
        )
