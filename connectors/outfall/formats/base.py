"""The interface of a format, and compression in complete members, so that a file can end or grow after any member."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa

from outfall.options import SinkOptions

if TYPE_CHECKING:
    from outfall.formats.options import Compression, FormatOptions

SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""The suffixes by which readers such as Spark recognize the compression of text files."""

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_GZIP_WINDOW = 31


class Encoder(ABC):
    """Encodes the record batches of one file. There is one encoder per file and attempt.

    The file consists of the bytes of all batches and of `finish`. Rows are not converted to Python objects.

    Another distribution adds a format with an entry point in the group `outfall.formats`, which names a subclass at the
    top level of a module. The driver finds it; tasks import it by module and name, without the entry point.

    Args:
        options: how values are written.
        schema: the schema of every batch.
        start: whether the file is empty, so that the encoder must write its beginning.

    Raises:
        ConfigurationError: a column has a type that the format cannot preserve, or there are too many columns.
    """

    one_schema: ClassVar[bool] = False
    """Whether all rows of a file must have the same columns."""

    growing: ClassVar[bool] = False
    """Whether a file can be appended to, and truncated at the end of a batch. Each record then ends with a line break.
    """

    codecs: ClassVar[tuple[Compression, ...]] = ("none", "gzip", "zstd")
    """The values of the option `compression`. The first is the default.

    Only an encoder that compresses can have `snappy`.
    """

    compresses: ClassVar[bool] = False
    """Whether the encoder itself compresses. The bytes of other formats are compressed as they leave it."""

    addressing: ClassVar[Literal["by name", "by position", "none"]] = "by name"
    """How readers find the columns of a file; `none` for a file without columns."""

    as_text: ClassVar[bool] = False
    """Whether values are stored as text, so that a reader takes numbers of a narrower type for those of a wider one."""

    read_by: ClassVar[frozenset[str]] = frozenset({"format_options"})
    """The options that must be the same for the reader and the writer of a file."""

    spark_only: ClassVar[bool] = False
    """Whether only Spark's own writer encodes the format."""

    options_model: ClassVar[type[SinkOptions] | None] = None
    """The model of `format_options`; `None` if the format has none. See `FormatOptions.of_format`."""

    def __init__(self, options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> None:
        self.check_schema(schema)
        self.schema = schema

    @classmethod
    def suffix(cls, options: FormatOptions) -> str:
        """Return the suffix of file names, from which readers derive the compression."""
        return f".{options.format}{'' if cls.compresses else SUFFIXES[options.codec]}"

    @classmethod
    @abstractmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        """Reject a schema whose values `spark.read` with the same schema would not return unchanged.

        Raises:
            ConfigurationError: names the column and its type.
        """

    @classmethod
    def check_options(cls, options: FormatOptions, schema: pa.Schema) -> None:
        """Reject a schema that the format supports, but not with these options.

        Raises:
            ConfigurationError: names the column.
        """

    @classmethod
    def headed(cls, options: FormatOptions) -> bool:
        """Return whether a file begins with bytes that belong to no record."""
        return False

    @classmethod
    def shape(cls, options: FormatOptions, schema: pa.Schema) -> str | None:
        """Return a short string that is equal if rows may be in the same file. It is recorded between runs.

        Returns:
            `None` if all rows may be in the same file.
        """
        return None

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Encode the rows of a batch in their order.

        Args:
            batch: of the schema given to the constructor; never changed.

        Returns:
            The bytes, which end at the end of a record. A format whose files cannot grow may buffer rows.

        Raises:
            ValueRefusedError: a value cannot be written in this format; names its column and its row in the batch.
        """

    @property
    def kept(self) -> int:
        """The memory of buffered rows, in bytes."""
        return 0

    @property
    def expected(self) -> int:
        """The estimated size of buffered rows in the file, in bytes."""
        return 0

    def spill(self) -> pa.Buffer:
        """Encode the buffered rows now, although a larger group would be more efficient."""
        return pa.py_buffer(b"")

    def finish(self) -> pa.Buffer:
        """Return the bytes that end the file. Called once, after the last batch."""
        return pa.py_buffer(b"")


def member(codec: Compression, buffers: Sequence[pa.Buffer]) -> list[pa.Buffer]:
    """Compress bytes into one gzip member or zstd frame, at Spark's default level.

    All readers accept concatenated members as one file, so no state is kept between calls.
    """
    if codec == "none":
        return list(buffers)
    data = b"".join(buffers)
    if codec == "gzip":
        return [pa.py_buffer(zlib.compress(data, _GZIP_LEVEL, _GZIP_WINDOW))]
    return [pa.Codec(codec, compression_level=_ZSTD_LEVEL).compress(data)]


def last_byte(path: str, codec: Compression) -> bytes:
    """Return the last byte of the decompressed contents of a text file.

    Raises:
        OSError: a compressed file is incomplete.
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
