"""Formats: Arrow batches in, bytes out. Shared by every sink that writes bytes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from outfall.encode.base import Encoder
from outfall.encode.jsonl import JsonlEncoder
from outfall.encode.rows import rows_to_batch
from outfall.encode.text import TextEncoder
from outfall.errors import ConfigurationError

__all__ = ["FORMATS", "Encoder", "check_schema", "encoder", "rows_to_batch", "suffix"]

FORMATS: Mapping[str, type[Encoder]] = {"jsonl": JsonlEncoder, "text": TextEncoder}


def encoder(format: str, schema: pa.Schema) -> Encoder:
    """Make the encoder of one file.

    Raises:
        ConfigurationError: the format is unknown, or does not carry the schema.
    """
    return _format(format)(schema)


def check_schema(format: str, schema: pa.Schema) -> None:
    """Refuse, before the first byte, a schema that the format does not carry unchanged.

    Raises:
        ConfigurationError: naming the column and its type.
    """
    _format(format).check_schema(schema)


def suffix(format: str) -> str:
    """Return the end of the names of files in this format, as `".jsonl"`."""
    return _format(format).suffix


def _format(name: str) -> type[Encoder]:
    if name not in FORMATS:
        raise ConfigurationError(f"there is no format {name!r}", do=f"use one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name]
