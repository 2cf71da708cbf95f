"""Formats: Arrow batches in, bytes out. Shared by every sink that writes bytes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from outfall.formats.base import Encoder
from outfall.formats.compression import last_byte, member
from outfall.formats.csv import CsvEncoder
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.options import Format, FormatArguments, FormatOptions
from outfall.formats.parquet import ParquetEncoder
from outfall.formats.text import TextEncoder
from outfall.values import rows_to_batch

__all__ = [
    "Encoder",
    "FormatArguments",
    "FormatOptions",
    "can_grow",
    "check_schema",
    "encoder",
    "last_byte",
    "member",
    "one_schema",
    "rows_to_batch",
    "shape",
    "suffix",
]

_FORMATS: Mapping[Format, type[Encoder]] = {
    "csv": CsvEncoder,
    "jsonl": JsonlEncoder,
    "parquet": ParquetEncoder,
    "text": TextEncoder,
}


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
