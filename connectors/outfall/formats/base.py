"""What a format must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import pyarrow as pa

from outfall.formats.compression import SUFFIXES
from outfall.formats.options import FormatOptions


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
