"""What a format must do, and compression in whole members: a compressed file may end after any, and grow by more."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from outfall.formats.options import Compression, FormatOptions

SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""What readers, Spark's among them, know the compression of a file of text by."""

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_GZIP_WINDOW = 31


class Encoder(ABC):
    """Turns the record batches of one file into its bytes. One encoder per file and attempt.

    The bytes of successive batches, then those of `finish`, are the file. No row becomes a Python object on the way.

    Args:
        options: how values are written.
        schema: the schema of every batch.
        start: whether the file is empty so far, so that what belongs at its beginning is still to be written.

    Raises:
        ConfigurationError: a column has a type that the format does not carry unchanged, or there are too many columns.
    """

    one_schema: ClassVar[bool] = False
    """Whether all rows of a file must have the same columns."""

    growing: ClassVar[bool] = True
    """Whether a file may be appended to, and cut where a batch ended."""

    def __init__(self, options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> None:
        self.check_schema(schema)
        self.schema = schema

    @classmethod
    def suffix(cls, options: FormatOptions) -> str:
        """Return the end of the names of files, from which readers take the compression."""
        return f".{options.format}{SUFFIXES[options.codec]}"

    @classmethod
    @abstractmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        """Refuse a schema that would not come back unchanged from `spark.read` with the same schema.

        Raises:
            ConfigurationError: naming the column and its type.
        """

    @classmethod
    def check_options(cls, options: FormatOptions, schema: pa.Schema) -> None:
        """Refuse a schema that the format carries, but not with these options.

        Raises:
            ConfigurationError: naming the column.
        """

    @classmethod
    def shape(cls, options: FormatOptions, schema: pa.Schema) -> str | None:
        """Return a short text that is equal where rows may follow each other in one file, to be kept from run to run.

        Returns:
            `None` when all rows may.
        """
        return None

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Encode the rows of a batch in their order.

        Args:
            batch: of the schema given to the constructor; never changed.

        Returns:
            The bytes, which end where a record ends. A format whose files cannot grow may keep rows for later.

        Raises:
            ValueRefusedError: a value cannot be written in this format, naming its column and its row in the batch.
        """

    @property
    def kept(self) -> int:
        """Bytes of memory that rows take which are kept for later."""
        return 0

    @property
    def expected(self) -> int:
        """Bytes that those rows will take in the file, as far as that can be told."""
        return 0

    def spill(self) -> pa.Buffer:
        """Encode the rows that are kept for later, although they would be better off together with more."""
        return pa.py_buffer(b"")

    def finish(self) -> pa.Buffer:
        """Return the bytes that close the file. Called once, after the last batch."""
        return pa.py_buffer(b"")


def member(codec: Compression, buffers: Sequence[pa.Buffer]) -> list[pa.Buffer]:
    """Compress bytes into one gzip member or zstd frame, at the level that Spark takes by default.

    Members in a row are one file for every reader, so nothing has to be kept from one call to the next.
    """
    if codec == "none":
        return list(buffers)
    data = b"".join(buffers)
    if codec == "gzip":
        return [pa.py_buffer(zlib.compress(data, _GZIP_LEVEL, _GZIP_WINDOW))]
    return [pa.Codec(codec, compression_level=_ZSTD_LEVEL).compress(data)]


def last_byte(path: str, codec: Compression) -> bytes:
    """Return the last byte of what a file of text holds, decompressed.

    Raises:
        OSError: a compressed file is not whole.
    """
    if codec == "none":
        with open(path, "rb") as file:
            file.seek(-1, 2)
            return file.read(1)
    last = b""
    with pa.CompressedInputStream(path, codec) as stream:
        while piece := stream.read(1 << 20):
            last = piece[-1:]
    return last
