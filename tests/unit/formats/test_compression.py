"""Compression: members that other programs read, and files that end after any of them."""

from __future__ import annotations

import gzip
import subprocess
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.formats import FormatOptions, last_byte, member, suffix
from tests.programs import program

CODECS: list[Any] = ["gzip", "zstd"]


def made(codec: Any, *pieces: bytes) -> bytes:
    return b"".join(member(codec, [pa.py_buffer(piece) for piece in pieces]))


def read(codec: str, data: bytes) -> bytes:
    if codec == "gzip":
        return gzip.decompress(data)
    return bytes(pa.CompressedInputStream(pa.BufferReader(data), codec).read())


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=3), min_size=1, max_size=5))
def test_a_file_that_is_cut_after_any_member_is_whole(codec: Any, epochs: list[list[bytes]]) -> None:
    members = [made(codec, *pieces) for pieces in epochs]
    whole = b"".join(members)
    for count, end in enumerate(accumulate(map(len, members)), start=1):
        assert read(codec, whole[:end]) == b"".join(b"".join(pieces) for pieces in epochs[:count])


@pytest.mark.parametrize("codec", CODECS)
def test_the_common_programs_accept_members_in_a_row(codec: Any, tmp_path: Path) -> None:
    path = tmp_path / f"f{suffix(FormatOptions(format='csv', compression=codec))}"
    path.write_bytes(made(codec, b"a\n") + made(codec, b"b\n" * 100_000) + made(codec, b"c\n"))
    reader = program("zstd") if codec == "zstd" else "gzip"
    subprocess.run([reader, "-t", "-q", path], check=True)
    assert subprocess.run([reader, "-dc", path], check=True, capture_output=True).stdout == read(
        codec, path.read_bytes()
    )


def test_nothing_is_copied_without_compression() -> None:
    buffers = [pa.py_buffer(b"a"), pa.py_buffer(b"b")]
    assert member("none", buffers) == buffers


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_bytes_are_compressed_to_the_same_bytes(codec: Any) -> None:
    assert made(codec, b"ab", b"c") == made(codec, b"abc")


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_the_last_byte_is_that_of_the_last_member(codec: Any, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(made(codec, b"a\n" * 100_000) + made(codec, b"b\nc"))
    assert last_byte(str(path), codec) == b"c"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lost", [1, 5])
def test_a_file_that_ends_within_a_member_has_no_last_byte(codec: Any, lost: int, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes((made(codec, b"a\n") + made(codec, b"b\n"))[:-lost])
    with pytest.raises(OSError, match=r".+"):
        last_byte(str(path), codec)


@pytest.mark.parametrize(
    ("options", "end"),
    [({"format": "csv"}, ".csv"), ({"format": "csv", "compression": "gzip"}, ".csv.gz"),
     ({"compression": "zstd"}, ".jsonl.zst"), ({"format": "text", "compression": "none"}, ".txt"),
     ({"format": "text", "compression": "gzip"}, ".txt.gz")],
)  # fmt: skip
def test_names_end_as_readers_expect(options: dict[str, Any], end: str) -> None:
    assert suffix(FormatOptions(**options)) == end
