"""Confluent's wire format: a zero byte, the id of the schema in four bytes, and the encoded value."""

from __future__ import annotations

import struct
from collections.abc import Sequence

MAGIC = 0
_HEAD = struct.Struct(">BI")
HEAD_SIZE = _HEAD.size
_DEEPEST = 100


def head(schema_id: int) -> bytes:
    """Return the first five bytes of a message."""
    return _HEAD.pack(MAGIC, schema_id)


def index_bytes(indexes: Sequence[int]) -> bytes:
    """Return the positions of a message of Protobuf, for behind the head: their number and each as a zigzag varint.

    The first message of a file, which is the usual one, is a single zero.
    """
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def message_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the positions at the beginning of a value, and where the message begins. Raises `ValueError`."""
    count, at = _number(value, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _DEEPEST:
        raise ValueError(f"the message is at {count} positions")
    found = []
    for _ in range(count):
        index, at = _number(value, at)
        found.append(index)
    return tuple(found), at


def _varint(number: int) -> bytes:
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _number(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for place, byte in enumerate(data[at : at + 5]):
        found |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at + place + 1
    raise ValueError("the positions of the message end early")
