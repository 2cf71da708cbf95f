"""The format that options select, and the bytes of one file as a stream of pieces."""

from __future__ import annotations

import pyarrow as pa

from outfall.errors import ValueRefusedError
from outfall.formats.base import Encoder, member
from outfall.formats.options import Compression, FormatOptions
from outfall.values import spark_type

_PIECE_BYTES = 1 << 20
"""Encoded bytes that are compressed together: with this size, the overhead of a member is negligible."""


def encoder(options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> Encoder:
    """Create the encoder of one file. Its bytes are not compressed, unless the format itself compresses.

    Args:
        options: the format and how it writes values.
        schema: the schema of all batches.
        start: whether the file is empty.

    Raises:
        ConfigurationError: the format does not support the schema.
    """
    return options.encoder(options, schema, start=start)


def check_schema(options: FormatOptions, schema: pa.Schema) -> None:
    """Reject a schema that the format cannot preserve. Called before the first byte is written.

    Raises:
        ConfigurationError: names the column and its type.
    """
    options.encoder.check_schema(schema)
    options.encoder.check_options(options, schema)


def suffix(options: FormatOptions) -> str:
    """Return the suffix of file names, for example `".jsonl"` or `".csv.gz"`."""
    return options.encoder.suffix(options)


def can_grow(options: FormatOptions) -> bool:
    """Return whether files of the format can be appended to."""
    return options.encoder.growing


def shape(options: FormatOptions, schema: pa.Schema) -> str | None:
    """Return a short string that is equal if rows may be in the same file; `None` if all rows may."""
    return options.encoder.shape(options, schema)


def one_schema(options: FormatOptions) -> bool:
    """Return whether all rows of a file must have the same columns."""
    return options.encoder.one_schema


class EncodedStream:
    """Encodes batches into the bytes of one file, and compresses them in complete members.

    `start` tells whether the file is empty; `False` is for formats whose files can grow.
    """

    def __init__(self, options: FormatOptions, *, start: bool = True) -> None:
        self._options = options
        self._codec: Compression = "none" if options.encoder.compresses else options.codec
        self._encoder: Encoder | None = None
        self._start = start
        self._buffers: list[pa.Buffer] = []
        self._held = 0
        self.rows = 0
        """Rows encoded so far."""

    @property
    def held(self) -> int:
        """The number of encoded bytes that are buffered until they fill a piece."""
        return self._held

    @property
    def expected(self) -> int:
        """The estimated encoded size of the rows that the format buffers, in bytes."""
        return self._encoder.expected if self._encoder is not None else 0

    @property
    def begun(self) -> bool:
        """Whether rows were encoded since the last call of `finish`."""
        return self._encoder is not None

    @property
    def empty(self) -> bool:
        """Whether the file is empty."""
        return self._start

    @property
    def kept(self) -> int:
        """The memory of rows that the format buffers, in bytes."""
        return self._encoder.kept if self._encoder is not None else 0

    def encode(self, batch: pa.RecordBatch, *, piece: int = _PIECE_BYTES) -> list[pa.Buffer]:
        """Encode the rows of a batch in their order; return the bytes that are ready to be stored.

        `piece` is the number of encoded bytes at which they are compressed and returned. Raises `ValueRefusedError` if
        a value cannot be written or the columns change within a file of one schema, and `ConfigurationError` if the
        format does not support the columns.
        """
        self._hold(self._encoder_of(batch.schema).encode(batch))
        self.rows += batch.num_rows
        return self.drain() if self._held >= piece else []

    def spill(self) -> list[pa.Buffer]:
        """Encode and return all buffered rows and bytes now, although a larger piece would be more efficient."""
        if self._encoder is not None:
            self._hold(self._encoder.spill())
        return self.drain()

    def finish(self) -> list[pa.Buffer]:
        """Return the rest of the file. More rows may follow if files of the format can grow."""
        if self._encoder is not None:
            self._hold(self._encoder.finish())
            self._encoder = None
        return self.drain()

    def _encoder_of(self, schema: pa.Schema) -> Encoder:
        if self._encoder is not None and not self._encoder.schema.equals(schema):
            if self._encoder.one_schema:
                raise ValueRefusedError(
                    f"the columns change from ({_columns(self._encoder.schema)}) to ({_columns(schema)})",
                    why=f"all rows of a {self._options.format} file must have the same columns",
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
        """Return the buffered bytes as a complete member, after which a growing file can be truncated."""
        if not self._buffers:
            return []
        buffers, self._buffers, self._held = self._buffers, [], 0
        return member(self._codec, buffers)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {spark_type(field.type)}" for field in schema)
