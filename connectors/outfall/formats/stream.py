"""The formats by their names, and the bytes of one file as they come about: batches in, pieces out."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from outfall.errors import ValueRefusedError
from outfall.formats.base import Encoder, member
from outfall.formats.csv import CsvEncoder
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.options import Compression, Format, FormatOptions
from outfall.formats.parquet import ParquetEncoder
from outfall.formats.text import TextEncoder
from outfall.values import spark_type

_FORMATS: Mapping[Format, type[Encoder]] = {
    "csv": CsvEncoder,
    "jsonl": JsonlEncoder,
    "parquet": ParquetEncoder,
    "text": TextEncoder,
}

_PIECE_BYTES = 1 << 20
"""Encoded bytes that are compressed together: enough that a member's own bytes cost nothing."""


def encoder(options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> Encoder:
    """Make the encoder of one file, whose bytes are not compressed yet unless the format does it itself.

    Args:
        options: the format and how it writes values.
        schema: of all batches.
        start: whether the file is empty so far.

    Raises:
        ConfigurationError: the format does not carry the schema.
    """
    return _FORMATS[options.format](options, schema, start=start)


def check_schema(options: FormatOptions, schema: pa.Schema) -> None:
    """Refuse, before the first byte, a schema that the format does not carry unchanged.

    Raises:
        ConfigurationError: naming the column and its type.
    """
    _FORMATS[options.format].check_schema(schema)
    _FORMATS[options.format].check_options(options, schema)


def suffix(options: FormatOptions) -> str:
    """Return the end of the names of files, as `".jsonl"` or `".csv.gz"`."""
    return _FORMATS[options.format].suffix(options)


def can_grow(options: FormatOptions) -> bool:
    """Tell whether files of the format may be appended to."""
    return _FORMATS[options.format].growing


def shape(options: FormatOptions, schema: pa.Schema) -> str | None:
    """Return a short text that is equal where rows may follow each other in one file; `None` when all rows may."""
    return _FORMATS[options.format].shape(options, schema)


def one_schema(options: FormatOptions) -> bool:
    """Tell whether all rows of a file of the format must have the same columns."""
    return _FORMATS[options.format].one_schema


class EncodedStream:
    """Encodes batches into the bytes of one file, and compresses them in whole members.

    Args:
        options: the format and the compression.
        start: whether the file is empty so far; of formats that grow it may hold some bytes.
    """

    def __init__(self, options: FormatOptions, *, start: bool = True) -> None:
        self._options = options
        # A format that compresses inside its files is not compressed again.
        self._codec: Compression = "none" if options.format == "parquet" else options.codec
        self._encoder: Encoder | None = None
        self._start = start
        self._buffers: list[pa.Buffer] = []
        self._held = 0
        self.rows = 0
        """Rows encoded so far."""

    @property
    def held(self) -> int:
        """Encoded bytes that are held back until they are a piece."""
        return self._held

    @property
    def expected(self) -> int:
        """Bytes that the format is going to make of what it keeps, as far as their number is known."""
        return self._encoder.expected if self._encoder is not None else 0

    @property
    def begun(self) -> bool:
        """Whether the format's own state is open: rows came, and `finish` was not called since."""
        return self._encoder is not None

    @property
    def empty(self) -> bool:
        """Whether the file is empty so far."""
        return self._start

    @property
    def kept(self) -> int:
        """Bytes of memory that the format keeps for later."""
        return self._encoder.kept if self._encoder is not None else 0

    def encode(self, batch: pa.RecordBatch, *, piece: int = _PIECE_BYTES) -> list[pa.Buffer]:
        """Encode the rows of a batch in their order; return what is ready to be stored.

        Args:
            batch: the rows.
            piece: how many encoded bytes are enough to be compressed and returned.

        Raises:
            ValueRefusedError: a value cannot be written, or the columns change within a file of one schema.
            ConfigurationError: the format does not carry the columns.
        """
        self._hold(self._encoder_of(batch.schema).encode(batch))
        self.rows += batch.num_rows
        return self.drain() if self._held >= piece else []

    def spill(self) -> list[pa.Buffer]:
        """Encode and return all that is held back, although it would be better off together with more."""
        if self._encoder is not None:
            self._hold(self._encoder.spill())
        return self.drain()

    def finish(self) -> list[pa.Buffer]:
        """Return the rest of the file. Of formats that grow more rows may follow."""
        if self._encoder is not None:
            self._hold(self._encoder.finish())
            self._encoder = None
        return self.drain()

    def _encoder_of(self, schema: pa.Schema) -> Encoder:
        if self._encoder is not None and not self._encoder.schema.equals(schema):
            if self._encoder.one_schema:
                raise ValueRefusedError(
                    f"the columns change from ({_columns(self._encoder.schema)}) to ({_columns(schema)})",
                    why=f"all rows of a {self._options.format} file have the same columns",
                    do='give all rows the same columns, or use format="jsonl"',
                )
            self._hold(self._encoder.finish())
            self._encoder = None
        if self._encoder is None:
            self._encoder = encoder(self._options, schema, start=self._start)
            self._start = False
        return self._encoder

    def _hold(self, buffer: pa.Buffer) -> None:
        if buffer.size:
            self._buffers.append(buffer)
            self._held += buffer.size

    def drain(self) -> list[pa.Buffer]:
        """Return what is encoded and held back, as a whole member: a file that grows can be cut wherever one ended."""
        if not self._buffers:
            return []
        buffers, self._buffers, self._held = self._buffers, [], 0
        return member(self._codec, buffers)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {spark_type(field.type)}" for field in schema)
