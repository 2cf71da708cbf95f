"""Formats: Arrow batches in, bytes out. Shared by every sink that writes bytes."""

from outfall.formats.base import Encoder, last_byte, member
from outfall.formats.options import FormatArguments, FormatOptions
from outfall.formats.stream import can_grow, check_schema, encoder, one_schema, shape, suffix

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
    "shape",
    "suffix",
]
