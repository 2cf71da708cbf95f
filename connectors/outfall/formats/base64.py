"""Binary columns as base64, all values of a batch in one call."""

from __future__ import annotations

import binascii

import pyarrow as pa
import pyarrow.compute as pc

_BINARY = pa.large_binary()


def base64_text(array: pa.Array) -> pa.Array:
    """Encode each value as RFC 4648 base64 with padding; NULL stays NULL."""
    array = array.cast(_BINARY)
    sizes = pc.fill_null(pc.binary_length(array), 0)
    missing = pc.choose(_modulo_3(sizes), 0, 2, 1)
    padded = _padded(array, missing)
    groups = pc.divide(pc.add(sizes, missing), 3)
    # Each value now fills whole groups of three bytes, so that the text of all is the texts of each in a row.
    data = binascii.b2a_base64(padded, newline=False)
    ends = pc.cumulative_sum(pc.multiply(groups, 4))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    text = pa.Array.from_buffers(pa.large_string(), len(array), [None, offsets.buffers()[1], pa.py_buffer(data)])
    for count in (1, 2):
        # The text of the zero bytes that were added ("A") gives way to padding.
        text = pc.if_else(pc.equal(missing, count), pc.binary_replace_slice(text, -count, _END, "=" * count), text)
    return text if array.null_count == 0 else pc.if_else(array.is_valid(), text, pa.scalar(None, text.type))


_END = 2**31 - 1


def _modulo_3(sizes: pa.Array) -> pa.Array:
    return pc.subtract(sizes, pc.multiply(pc.divide(sizes, 3), 3))


def _padded(array: pa.Array, missing: pa.Array) -> pa.Buffer:
    zeros = pc.choose(missing, *(pa.scalar(b"\0" * count, _BINARY) for count in range(3)))
    joined = pc.binary_join_element_wise(array, zeros, pa.scalar(b"", _BINARY), null_handling="replace")
    ends = memoryview(joined.buffers()[1]).cast("q")
    data = joined.buffers()[2]
    first, last = ends[joined.offset], ends[joined.offset + len(joined)]
    return data.slice(first, last - first) if data is not None else pa.py_buffer(b"")
