"""An order-independent hash of rows, to compare the rows of two attempts.

The hash is the sum, modulo 2^64, of a hash of each row (Clarke and others, "Incremental multiset hash functions and
their application to memory integrity checking", ASIACRYPT 2003: MSet-Add-Hash). The hash of a row combines its column
names and values. NULL, the empty string, 0 and a value in another column all differ. The Arrow storage of a value
(dictionary, large types, batches), the order of columns and the order of map entries have no influence.

Mixing is the finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014), on NumPy arrays. The hash detects accidental differences, not deliberate collisions.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]

_LONG = 256
"""Bytes. Longer values are hashed one by one with BLAKE2b, which is not slower for them."""
_STEP = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x6E756C6C6E756C6C)
_NAN = np.uint64(0x7FF8000000000000)
_AT_ONCE = 16_384
"""Words that are hashed in one NumPy call: many, to amortize the call, but not more than fit into a core's cache."""
_PLACES = np.arange(1, _LONG // 8 + 1, dtype=np.uint64) * _STEP
_TAILS = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype="<u8")


class RowHash:
    """The hash and the count of the rows added so far."""

    def __init__(self) -> None:
        """Start without rows, with hash 0."""
        self.rows = 0
        self._sum = 0

    @property
    def value(self) -> int:
        """The hash as a signed 64-bit integer."""
        return self._sum - (1 << 64) if self._sum >> 63 else self._sum

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        self.rows += batch.num_rows
        self._sum = (self._sum + int(row_hashes(batch).sum(dtype=np.uint64))) & ((1 << 64) - 1)


def row_hashes(batch: pa.RecordBatch) -> Words:
    """Return a hash of each row."""
    return _combined(batch.schema.names, batch.columns, batch.num_rows)


def _combined(names: list[str], columns: list[pa.Array], rows: int) -> Words:
    total = np.zeros(rows, dtype=np.uint64)
    for name, column in zip(names, columns, strict=True):
        key = np.frombuffer(hashlib.blake2b(name.encode(), digest_size=8).digest(), "<u8")[0]
        total += _mixed(_values(column) ^ key)
    return _mixed(total)


def _values(array: pa.Array) -> Words:
    """Return 64 bits per value that distinguish it from other values of its column."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return _values(pc.run_end_decode(array))
    values = _present(array)
    if array.null_count:
        # The memory of a NULL is undefined.
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), values, _NULL)
    return values


def _present(array: pa.Array) -> Words:
    kind = array.type
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
        kind = array.type
    if pa.types.is_floating(kind):
        floats = _fixed(array, f"<f{kind.bit_width // 8}").astype("<f8")
        return np.where(np.isnan(floats), _NAN, floats.view("<u8"))
    if pa.types.is_unsigned_integer(kind):
        return _fixed(array, f"<u{kind.bit_width // 8}").astype("<u8")
    if pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and kind.bit_width <= 64):
        return _fixed(array, f"<i{kind.bit_width // 8}").astype("<i8").view("<u8")
    if pa.types.is_decimal128(kind):
        halves = _fixed(array, "<u8", 2).reshape(-1, 2)
        return _mixed(halves[:, 0] + _mixed(halves[:, 1] + _STEP))
    if pa.types.is_map(kind):
        pairs = _combined(["key", "value"], [array.keys, array.items], len(array.keys))
        return _summed(_mixed(pairs), array.offsets)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array)
    if pa.types.is_struct(kind):
        return _combined(kind.names, array.flatten(), len(array))
    # Strings, bytes, and types that are identified by a string or bytes.
    return _bytes(array if _is_bytes(kind) else array.cast(pa.binary() if _is_fixed_bytes(kind) else pa.string()))


def _fixed(array: pa.Array, dtype: str, width: int = 1) -> npt.NDArray[Any]:
    """Return the values of a fixed-size type as they are in memory."""
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.empty(0, dtype)
    return np.frombuffer(
        buffer, dtype, count=width * len(array), offset=array.offset * width * np.dtype(dtype).itemsize
    )


def _lists(array: pa.Array) -> Words:
    offsets = array.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    values = _values(array.values.slice(first, last - first))
    begins = np.repeat(offsets[:-1], np.diff(offsets))
    places = (np.arange(first, last) - begins + 1).astype(np.uint64)
    return _summed(_mixed(values + places * _STEP), array.offsets)


def _summed(values: Words, offsets: pa.Array) -> Words:
    """Return the sum of the values between each two offsets, combined with their count."""
    bounds = offsets.to_numpy().astype(np.int64)
    if len(values) > bounds[-1] - bounds[0]:
        values = values[bounds[0] : bounds[-1]]
    # The sums wrap around, but their differences are correct.
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    inside = bounds - bounds[0]
    counts = np.diff(bounds).astype(np.uint64)
    found: Words = sums[inside[1:]] - sums[inside[:-1]] + _mixed(counts + _STEP)
    return found


def _bytes(array: pa.Array) -> Words:
    """Hash values in words of eight bytes; long values one by one."""
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        offset_type = "<i4"
    else:
        array, offset_type = array.cast(pa.large_binary()), "<i8"
    if len(array) == 0:
        return np.empty(0, np.uint64)
    size = np.dtype(offset_type).itemsize
    offsets = np.frombuffer(array.buffers()[1], offset_type, len(array) + 1, array.offset * size).astype(np.int64)
    data = _padded(array.buffers()[2], int(offsets[0]), int(offsets[-1]))
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    found = _mixed(lengths.astype(np.uint64) + _STEP)
    long = np.flatnonzero(lengths > _LONG)
    for row in long.tolist():
        value = data[starts[row] : starts[row] + lengths[row]]
        found[row] = np.frombuffer(hashlib.blake2b(value.data, digest_size=8).digest(), "<u8")[0]
    _add_words(found, data, starts, np.where(lengths > _LONG, 0, lengths) if len(long) else lengths)
    return found


def _add_words(
    found: Words, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> None:
    """Add the words of every value, weighted by position, to the value's hash. The last word may be shorter."""
    rows = np.flatnonzero(lengths)
    starts, lengths = starts[rows], lengths[rows]
    # A window of eight bytes begins at every byte.
    windows: Words = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))
    if lengths.max(initial=0) <= 8:
        found[rows] += _mixed((windows[starts] & _TAILS[lengths]) + _PLACES[0])
        return
    counts = (lengths + 7) >> 3
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(rows):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _AT_ONCE)))
        some = slice(begin, end)
        last = ends[some] - before - 1
        first = last + 1 - counts[some]
        # The position of every word in its value.
        places = np.arange(last[-1] + 1) - np.repeat(first, counts[some])
        words = windows[np.repeat(starts[some], counts[some]) + (places << 3)]
        words[last] &= _TAILS[((lengths[some] - 1) & 7) + 1]
        found[rows[some]] += np.add.reduceat(_mixed(words + _PLACES[places]), first)
        begin = end


def _padded(buffer: pa.Buffer | None, first: int, last: int) -> npt.NDArray[np.uint8]:
    data = np.zeros(last - first + 8, np.uint8)
    if buffer is not None and last > first:
        data[: last - first] = np.frombuffer(buffer, np.uint8, last - first, first)
    return data


def _mixed(words: Words) -> Words:
    """Spread the bits of each word over the whole word."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _is_bytes(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_fixed_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind))
