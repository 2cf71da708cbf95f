"""Compression in whole members: a compressed file may end after any of them, and grow by more."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pyarrow as pa

from outfall.formats.options import Compression

SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""What readers, Spark's among them, know the compression of a file of text by."""

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_GZIP_WINDOW = 31


def member(codec: Compression, buffers: Sequence[pa.Buffer]) -> list[pa.Buffer]:
    """Compress bytes into one gzip member or zstd frame, at the level that Spark takes by default.

    Members in a row are one file for every reader, so nothing has to be kept from one call to the next.
    """
    if codec == "none":
        return list(buffers)
    data = b"".join(buffers)
    if codec == "gzip":
        return [pa.py_buffer(zlib.compress(data, _GZIP_LEVEL, _GZIP_WINDOW))]
    return [pa.Codec(codec, compression_level=_ZSTD_LEVEL).compress(data)]


def last_byte(path: str, codec: Compression) -> bytes:
    """Return the last byte of what a file of text holds, decompressed.

    Raises:
        OSError: a compressed file is not whole.
    """
    if codec == "none":
        with open(path, "rb") as file:
            file.seek(-1, 2)
            return file.read(1)
    last = b""
    with pa.CompressedInputStream(path, codec) as stream:
        while piece := stream.read(1 << 20):
            last = piece[-1:]
    return last
