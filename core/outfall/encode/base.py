"""What a format must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import pyarrow as pa


class Encoder(ABC):
    """Turns the record batches of one file into its bytes. One encoder per file and attempt.

    The bytes of successive batches, then those of `finish`, are the file. No row becomes a Python object on the way.

    Args:
        schema: the schema of every batch.

    Raises:
        ConfigurationError: a column has a type that the format does not carry unchanged, or there are too many columns.
    """

    suffix: ClassVar[str]
    """The end of the names of files in this format."""

    def __init__(self, schema: pa.Schema) -> None:
        self.check_schema(schema)
        self.schema = schema

    @classmethod
    @abstractmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        """Refuse a schema that would not come back unchanged from `spark.read` with the same schema.

        Raises:
            ConfigurationError: naming the column and its type.
        """

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Encode the rows of a batch in their order.

        Args:
            batch: of the schema given to the constructor; never changed.

        Returns:
            The bytes, which end where a record ends.

        Raises:
            ValueRefusedError: a value cannot be written in this format, naming its column and its row in the batch.
        """

    def finish(self) -> pa.Buffer:
        """Return the bytes that close the file. Called once, after the last batch."""
        return pa.py_buffer(b"")
