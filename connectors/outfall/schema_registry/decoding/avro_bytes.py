"""Checks that bytes are a value of an Avro schema, before fastavro decodes them.

fastavro takes a negative index of an enum or a union as one from the end, skips what lies behind the end, and believes
the number of an array's items, also of those without bytes: a message of ten bytes may keep it busy for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from outfall.schema_registry.avro_schema import AvroType, parts
from outfall.schema_registry.decoding.by_value import ValueMismatchError

Check = Callable[[bytes, int], int]
"""Returns where a value ends that begins at a place. Raises `ValueMismatchError` or `IndexError`."""

_MOST_EMPTY = 100_000
"""Types of a value's items without bytes, such as null. What has bytes is bounded by the message."""
_LONGEST = 10
"""Bytes of a long."""
_seen = threading.local()
"""`empty`: how many such types the value has had that a thread checks."""
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def value_check(kind: AvroType) -> Callable[[bytes], None]:
    """Return what raises `ValueMismatchError` for bytes that do not begin with a value of a writer's type."""
    check = _check(kind, {})

    def whole(data: bytes) -> None:
        _seen.empty = 0
        try:
            end = check(data, 0)
        except (IndexError, RecursionError):
            end = len(data) + 1
        if end > len(data):
            raise ValueMismatchError("the bytes end before the value does")

    return whole


def _check(kind: AvroType, records: dict[str, Check]) -> Check:
    """Return the check of a type. `records` are those that it is inside of, which it may contain again."""
    if kind.branches:
        return _indexed([_check(each, records) for each in kind.branches], "union")
    alone = _alone(kind, records)
    if not kind.nullable:
        return alone
    null = _sized(0)
    return _indexed([null, alone] if kind.null_first else [alone, null], "union")


def _alone(kind: AvroType, records: dict[str, Check]) -> Check:
    """Return the check of a type without null."""
    if kind.kind == "record":
        return _record(kind, records)
    if kind.kind == "union":
        return records[kind.name]
    if kind.kind == "enum":
        return _indexed([_sized(0)] * len(kind.symbols), "enum")
    if kind.items is not None:
        item = _check(kind.items, records)
        return _blocks(item if kind.kind == "array" else _pair(item), parts(kind.items))
    base = kind.base
    if base == "fixed":
        return _sized(kind.size)
    if base in _SIZES:
        return _sized(_SIZES[base])
    return _prefixed if base in ("bytes", "string") else _number


def _record(kind: AvroType, records: dict[str, Check]) -> Check:
    fields: list[Check] = []

    def check(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    inner = {**records, kind.name: check}
    fields += [_check(each.type, inner) for each in kind.fields]
    return check


def _sized(size: int) -> Check:
    return lambda data, at: at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    found = shift = 0
    for end in range(at, at + _LONGEST):
        byte = data[end]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), end + 1
        shift += 7
    raise ValueMismatchError(f"a number has more than {_LONGEST} bytes")


def _number(data: bytes, at: int) -> int:
    return _long(data, at)[1]


def _prefixed(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    if size < 0:
        raise ValueMismatchError(f"a string or bytes have the length {size}")
    return at + size


def _pair(item: Check) -> Check:
    return lambda data, at: item(data, _prefixed(data, at))


def _indexed(branches: list[Check], what: str) -> Check:
    def check(data: bytes, at: int) -> int:
        index, at = _long(data, at)
        if not 0 <= index < len(branches):
            raise ValueMismatchError(f"the {what} has no position {index}")
        return branches[index](data, at)

    return check


def _blocks(item: Check, types: int) -> Check:
    """Check blocks of items, each with their number, until one of none. A negative one is followed by a size."""

    def check(data: bytes, at: int) -> int:
        while True:
            count, at = _long(data, at)
            if count == 0:
                return at
            if count < 0:
                count, at = -count, _number(data, at)
            for _ in range(count):
                start, at = at, item(data, at)
                if at > len(data):
                    return at
                if at == start:
                    _seen.empty += types
                    if _seen.empty > _MOST_EMPTY:
                        raise ValueMismatchError(f"its arrays have more than {_MOST_EMPTY:,} items without bytes")

    return check
