"""Text: one string column, one line per row."""

from __future__ import annotations

from typing import ClassVar, Literal

import pyarrow as pa

from outfall.errors import ConfigurationError
from outfall.formats.base import SUFFIXES, Encoder
from outfall.formats.options import FormatOptions
from outfall.formats.strings import TEXT, concat, data_of, literal, refuse_breaks
from outfall.values import spark_type


class TextEncoder(Encoder):
    """Encodes Spark's text format. NULL is written as an empty line, which is read as an empty string.

    Unlike Spark's writer, it rejects a value with a line break, which readers would treat as two rows.
    """

    growing: ClassVar[bool] = True
    addressing: ClassVar[Literal["by name", "by position", "none"]] = "none"
    read_by: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def suffix(cls, options: FormatOptions) -> str:
        return f".txt{SUFFIXES[options.codec]}"

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        types = [field.type for field in schema]
        if len(types) != 1 or not (pa.types.is_string(types[0]) or pa.types.is_large_string(types[0])):
            found = ", ".join(f"{field.name}: {spark_type(field.type)}" for field in schema)
            raise ConfigurationError(
                "the text format needs exactly one string column",
                why=f"the columns are ({found})",
                do='select one string column, or use format="jsonl"',
            )

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        lines = batch.column(0).cast(TEXT)
        why = "readers of text files treat it as the end of a record"
        refuse_breaks(lines, data_of(lines).to_pybytes(), self.schema[0].name, why)
        return data_of(concat(lines, literal("\n"), skip_null=True))
