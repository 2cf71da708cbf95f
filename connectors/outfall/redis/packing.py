"""Rows to arguments of the script, packed column by column in the form of the protocol.

The form is RESP (https://redis.io/docs/latest/develop/reference/protocol-spec/): an argument is a *bulk string*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ValueRefusedError
from outfall.versioned import KeyedBatch

PREFIX = b"outfall:v:"
"""Before the key of a version."""
BRACED = b"outfall:vb:"
"""Before the key of a version of a key like `{a}`, since the version of `a` lies at `outfall:v:{a}`."""
RECORDS = b"outfall:record:"
"""Before the key of a record."""
_BYTES = pa.large_binary()


class Packed(NamedTuple):
    """The part of a call of the script for one row."""

    keys: bytes
    arguments: bytes
    size: int
    """The number of arguments."""


class Bodies(NamedTuple):
    """What upserts write, each an array."""

    what: pa.Array
    """`s` for a string, or the number of arguments of `HSET`."""
    counts: pa.Array
    packed: pa.Array
    """The packed arguments; `counts` has their numbers."""


def packed_rows(keys: pa.Array, bodies: Bodies, changes: KeyedBatch, *, versions: bool) -> list[Packed]:
    """Return what calls contain of each row. Raises `ValueRefusedError` for keys that cannot be."""
    if any(pc.any(pc.starts_with(keys, prefix)).as_py() for prefix in (PREFIX, BRACED, RECORDS)):
        raise ValueRefusedError(
            "the key of a row begins as the keys of Outfall's records do", do="use another pattern for the keys"
        )
    names = joined(bulks(keys), bulks(_version_keys(keys))) if versions else bulks(keys)
    what = changes.chosen(pa.scalar(b"d", _BYTES), bodies.what)
    written = changes.chosen(pa.scalar(b"", _BYTES), bodies.packed)
    counts = pc.add(changes.chosen(pa.scalar(0, pa.int64()), bodies.counts), 2)
    arguments = joined(bulks(changes.ranks.cast(_BYTES)), bulks(what), written)
    return list(map(Packed, names.to_pylist(), arguments.to_pylist(), counts.to_pylist()))


def strings(values: pa.Array) -> Bodies:
    """Return bodies that set a key to a binary value."""
    rows = len(values)
    return Bodies(pa.repeat(pa.scalar(b"s", _BYTES), rows), pa.repeat(pa.scalar(1, pa.int64()), rows), bulks(values))


def hashes(names: Sequence[str], columns: Sequence[pa.Array]) -> Bodies:
    """Return bodies with a field for each binary value that is not NULL."""
    fields = [joined(bulk(name), bulks(values)) for name, values in zip(names, columns, strict=True)]
    always = 2 * sum(not values.null_count for values in columns)
    counts = pa.repeat(pa.scalar(always, pa.int64()), len(columns[0]))
    for values in columns:
        if values.null_count:
            counts = pc.add(counts, pc.multiply(values.is_valid().cast(pa.int64()), 2))
    return Bodies(counts.cast(pa.large_string()).cast(_BYTES), counts, joined(*fields, skip_null=True))


def joined(*pieces: Any, skip_null: bool = False) -> pa.Array:
    """Join bytes and arrays row by row. The result of a NULL is NULL, or with `skip_null` NULL counts as empty."""
    scalars = [pa.scalar(piece, _BYTES) if isinstance(piece, bytes) else piece for piece in pieces]
    nulls = "skip" if skip_null else "emit_null"
    return pc.binary_join_element_wise(*scalars, pa.scalar(b"", _BYTES), null_handling=nulls)


def bulks(values: pa.Array) -> pa.Array:
    """Return each value as an argument; NULL stays NULL."""
    sizes = pc.binary_length(values).cast(pa.large_string()).cast(_BYTES)
    return joined(b"$", sizes, b"\r\n", values, b"\r\n")


def bulk(value: str | int) -> bytes:
    """Return an argument."""
    text = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _version_keys(keys: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(keys, b"[{}]")).as_py():
        return pa.array([version_key(key) for key in keys.to_pylist()], _BYTES)
    return joined(PREFIX + b"{", keys, b"}")


def version_key(key: bytes) -> bytes:
    """Return the key of the version of `key`, in the same hash slot. No two keys have one.

    Raises `ValueRefusedError` for the few keys that have none: with a closing brace, and without a hash tag.
    """
    opened = key.find(b"{")
    closed = key.find(b"}", opened + 1) if opened >= 0 else -1
    if opened >= 0 and closed > opened + 1:
        whole = opened == 0 and closed == len(key) - 1
        return (BRACED if whole else PREFIX) + key  # the same hash tag
    if b"}" in key:
        raise ValueRefusedError(
            "the version of a row cannot be stored",
            why="it contains } without a hash tag, so its version would be in another hash slot",
            do="encode braces in the key columns",
        )
    return PREFIX + b"{" + key + b"}"
