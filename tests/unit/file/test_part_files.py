"""The files of one growing part: how they are cut to what was recorded, and what is refused and left as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outfall.errors import TargetLostError, TransientError
from outfall.file.growing.part_files import FileState, PartFiles, file_name, following, segments_among
from tests.unit.support.points import meanwhile


@pytest.fixture
def files(out: Path) -> PartFiles:
    out.mkdir()
    return PartFiles(str(out), "part-0.jsonl")


def put(files: PartFiles, segment: int | None, data: bytes = b"x") -> Path:
    path = Path(files.path(segment))
    path.write_bytes(data)
    return path


def test_segments_are_numbered_from_0_after_the_file_without_a_number() -> None:
    assert [following(segment) for segment in (None, 0, 7)] == [0, 1, 8]
    names = [file_name("part-00001.jsonl.gz", segment) for segment in (None, 3, 12)]
    assert names == ["part-00001.jsonl.gz", "part-00001_0000000003.jsonl.gz", "part-00001_0000000012.jsonl.gz"]
    more = [*reversed(names), "other", "part-00002_0000000001.csv"]
    assert segments_among(more) == {"part-00001.jsonl.gz": [3, 12], "part-00002.csv": [1]}
    assert FileState(offset=0).segment is None


def test_the_later_segments_end_at_the_first_gap(files: PartFiles) -> None:
    for segment in (None, 0, 1, 3):
        put(files, segment)
    assert list(files.later(None)) == [0, 1]
    assert list(files.later(0)) == [1]
    assert list(files.later(1)) == []
    assert [files.has_later(segment) for segment in (None, 0, 1, 2)] == [True, True, False, True]


def test_segments_are_removed_from_the_end(files: PartFiles) -> None:
    for segment in range(3):
        put(files, segment)
    left: list[list[int]] = []
    with meanwhile("file: later segment removed#1", lambda: left.append(list(files.later(None)))):
        files.remove([0, 1, 2])
    assert left == [[0, 1]]
    files.remove([0])  # which is gone already
    assert list(files.later(None)) == []


def test_only_an_empty_file_is_removed_as_such(files: PartFiles) -> None:
    files.remove_empty(None)
    for data in (b"", b"x"):
        path = put(files, None, data)
        files.remove_empty(None)
        assert path.exists() == bool(data)


def test_a_part_is_cut_to_its_position_and_its_later_segments_are_removed(files: PartFiles) -> None:
    path = put(files, 0, b"abcdef")
    put(files, 1)
    assert files.cut_back(0, 4) == 6
    assert path.read_bytes() == b"abcd"
    assert not files.has_later(0)
    assert files.cut_back(0, 4) == files.cut_back(0, 4, again=True) == 4
    put(files, 1)
    files.cut_back(0, 4, [])  # as its caller knows of none
    assert files.has_later(0)


def test_a_part_that_is_shorter_than_its_position_is_lost_and_left_as_it_is(files: PartFiles) -> None:
    path = put(files, 0, b"abc")
    put(files, 1)
    with pytest.raises(TargetLostError, match="holds 3 bytes, but 4 were recorded"):
        files.cut_back(0, 4)
    assert path.read_bytes() == b"abc"
    assert files.has_later(0)
    with pytest.raises(TargetLostError):
        files.cut_back(5, 1)


def cut(files: PartFiles, offset: int) -> bool:
    fd = os.open(files.path(None), os.O_RDWR)
    try:
        return files.cut(fd, None, offset)
    finally:
        os.close(fd)


def test_an_open_file_is_cut_only_to_what_it_has(files: PartFiles) -> None:
    path = put(files, None, b"abcdef")
    assert not cut(files, 6)
    assert cut(files, 2)
    assert path.read_bytes() == b"ab"
    with pytest.raises(TargetLostError, match="holds 2 bytes, but 5 were recorded"):
        cut(files, 5)
    assert path.read_bytes() == b"ab"


@pytest.mark.parametrize("kept", [0, 3])
def test_a_file_that_is_truncated_while_it_is_cut_does_not_get_bytes_that_nobody_wrote(
    files: PartFiles, kept: int
) -> None:
    path = put(files, None, b"a" * 9000 + b"rest")
    with (
        meanwhile("file: cutting", lambda: os.truncate(path, kept)),
        pytest.raises(TargetLostError, match=f"holds {kept} bytes, but 9000 were recorded"),
    ):
        cut(files, 9000)
    assert path.read_bytes() == b"a" * kept


@pytest.mark.parametrize(
    ("size", "kind", "text"),
    [
        (5, None, ""),
        (4, TargetLostError, "holds 4 bytes, but 5 bytes of it were written"),
        (6, TransientError, "holds 6 bytes, but 5 were written"),
    ],
)
def test_the_end_of_an_open_file_is_where_its_writer_is(
    files: PartFiles, size: int, kind: type[Exception] | None, text: str
) -> None:
    path = put(files, None, b"x" * size)
    with path.open("rb") as opened:
        if kind is None:
            files.check_end(opened.fileno(), None, 5)
        else:
            with pytest.raises(kind, match=text):
                files.check_end(opened.fileno(), None, 5)


def test_an_open_file_that_was_replaced_or_removed_is_lost(files: PartFiles) -> None:
    path = put(files, None, b"12345")
    with path.open("rb") as opened:
        path.rename(path.with_name("rotated"))
        with pytest.raises(TargetLostError, match="is missing"):
            files.check_end(opened.fileno(), None, 5)
        put(files, None, b"12345")
        with pytest.raises(TargetLostError, match="was replaced by another file"):
            files.check_end(opened.fileno(), None, 5)


def test_a_file_is_opened_with_all_that_was_recorded_and_a_refused_one_is_closed(files: PartFiles) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TargetLostError, match="is missing, but 1 bytes of it were recorded"):
        files.open(None, 1)
    os.close(files.open(None, 0))  # which creates it
    path = put(files, None, b"abc")
    with pytest.raises(TargetLostError, match="holds 3 bytes, but 4 were recorded"):
        files.open(None, 4)
    fd = files.open(None, 3)
    assert len(os.listdir("/proc/self/fd")) == opened + 1
    os.truncate(path, 0)
    os.write(fd, b"d")
    os.close(fd)
    assert path.read_bytes() == b"d"  # without a hole
