"""Confluent's wire format: a zero byte, the id of the schema in four bytes, and the encoded value."""

from __future__ import annotations

import struct

MAGIC = 0
_HEAD = struct.Struct(">BI")
HEAD_SIZE = _HEAD.size


def head(schema_id: int) -> bytes:
    """Return the first five bytes of a message."""
    return _HEAD.pack(MAGIC, schema_id)
