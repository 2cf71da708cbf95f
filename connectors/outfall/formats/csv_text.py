"""Quoting, escaping and trimming of CSV values, as Spark's CSV writer does them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ValueRefusedError
from outfall.formats.options import FormatOptions
from outfall.formats.strings import concat, data_of, first_row, literal

_SPACES = "".join(map(chr, range(0x21)))
"""What Spark's CSV writer takes for white space."""


@dataclass(frozen=True)
class Quoting:
    """How values of text are written."""

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
        """Take what concerns text from options."""
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
        """Make values that a reader takes for one value each.

        Args:
            text: the values, of type `TEXT`.
            column: its name, for errors.
            first: whether it is the first column, where Spark quotes what starts like a comment.

        Raises:
            ValueRefusedError: naming column and row of a value that would not come back.
        """
        data = data_of(text)
        whole = data.to_pybytes()
        self._refuse_breaks(text, whole, column)
        spaced = data.size > 0 and pc.min(pa.Array.from_buffers(pa.uint8(), data.size, [None, data])).as_py() <= 0x20
        if spaced and self.trims_start:
            text = pc.ascii_ltrim(text, _SPACES)
        # Spark looks for what needs quotes before it trims the end.
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

    def _refuse_breaks(self, text: pa.Array, whole: bytes, column: str) -> None:
        for name, character in (("newline", "\n"), ("carriage return", "\r")):
            if character.encode() in whole:
                refuse_rows(
                    pc.match_substring(text, character),
                    f"column {column!r} holds a {name}",
                    "readers of CSV take it for the end of a record, and CSV has no escape for it",
                    'replace it before writing, or use format="jsonl", which escapes it',
                )

    def _refuse_null_likes(self, text: pa.Array, column: str) -> None:
        refuse_rows(
            pc.equal(text, literal(self.null)),
            f"column {column!r} holds a value that looks like null_value {self.null!r}",
            "it would come back as NULL",
            "choose a null_value that is no value",
        )


def refuse_rows(mask: pa.Array, what: str, why: str, do: str) -> None:
    """Refuse the first row where the mask is true.

    Raises:
        ValueRefusedError: if there is one.
    """
    row = first_row(mask)
    if row >= 0:
        raise ValueRefusedError(f"{what}, in row {row} of the batch", why=why, do=do)
