"""What several writers left, taken over by fewer or more of them, and with other sizes of parts."""

from __future__ import annotations

import gzip
import io
import json
import random
import uuid
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from tests.unit.support.fake_s3 import FakeS3

KIB = 1 << 10
"""Stands for a mebibyte: parts of 5 KiB are the smallest here, so that large objects are made in no time."""
FORMATS: dict[str, dict[str, Any]] = {
    "jsonl": {"format": "jsonl"},
    "gzip": {"format": "jsonl", "compression": "gzip"},
    "parquet": {"format": "parquet"},
}


@pytest.fixture(scope="module", autouse=True)
def _small_parts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outfall.s3.rolling.writer.SMALLEST_PART", 5 * KIB)
        yield


class Gathering:
    """A step whose drivers remember nothing, each with workers and sizes of its own. Rows do not compress."""

    def __init__(self, **options: Any) -> None:
        self.fake = FakeS3(smallest=5 * KIB)
        self.sent: list[int] = []
        self._options = {"roll_bytes": "10 MiB", **options}
        self._recovery = f"memory://{uuid.uuid4().hex}"
        self._epoch = 0
        self._chance = random.Random(1)

    def run(self, *sizes: list[int], part_bytes: int = 5 * KIB, **options: Any) -> None:
        """One epoch, with a worker for each list of sizes of its rows."""
        self._driver(len(sizes), part_bytes, options).run_epoch(
            self._epoch, [list(map(self._row, own)) for own in sizes]
        )
        self._epoch += 1

    def drain(self, workers: int = 1) -> None:
        self._driver(workers, 5 * KIB, {}).drain()

    def read(self) -> list[int]:
        """The rows of all objects, each object read by itself."""
        return sorted(number for body in self.fake.data().values() for number in self._numbers(body))

    @property
    def waiting(self) -> int:
        return sum(self.fake.pieces().values())

    def _driver(self, workers: int, part_bytes: int, options: dict[str, Any]) -> LocalDriver:
        sink = self.fake.sink(**(self._options | options))
        sink.options = sink.options.model_copy(update={"part_bytes": part_bytes})
        return LocalDriver(sink, self._recovery, options=EpochOptions(worker_count=workers))

    def _row(self, size: int) -> dict[str, Any]:
        self.sent.append(len(self.sent))
        return {"id": self.sent[-1], "text": self._chance.randbytes(size // 2).hex()}

    def _numbers(self, body: bytes) -> list[int]:
        if self._options.get("format") == "parquet":
            found: list[int] = pq.read_table(io.BytesIO(body))["id"].to_pylist()
            return found
        plain = gzip.decompress(body) if self._options.get("compression") == "gzip" else body
        return [json.loads(line)["id"] for line in plain.splitlines()]


@pytest.mark.parametrize("inline_bytes", [0, pytest.param(4 * KIB, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_fewer_and_more_workers_take_over_whole_parts_with_what_follows_them(
    options: dict[str, Any], inline_bytes: int
) -> None:
    gathering = Gathering(inline_bytes=inline_bytes, **options)
    for workers in (3, 2, 1, 3, 1):
        gathering.run(*([700] * 40 for _ in range(workers)))
        gathering.run(*([300] for _ in range(workers)))
    gathering.drain()
    assert gathering.read() == gathering.sent
    assert gathering.fake.pieces() == {}


EPOCHS = st.tuples(
    st.lists(st.lists(st.sampled_from([10, 900, 3_000]), max_size=12), min_size=1, max_size=4),
    st.sampled_from([5 * KIB, 6 * KIB, 11 * KIB]),
    st.sampled_from([{}, {}, {"roll_rows": 30}, {"roll_bytes": "40 KiB"}, {"roll_bytes": None}]),
)


@pytest.mark.thorough
@settings(max_examples=30)
@given(
    options=st.sampled_from(list(FORMATS.values())),
    inline_bytes=st.sampled_from([0, 2 * KIB]),
    epochs=st.lists(EPOCHS, min_size=2, max_size=5),
)
def test_each_row_is_read_once_whatever_workers_parts_and_bounds_come_and_go(
    options: dict[str, Any], inline_bytes: int, epochs: list[tuple[list[list[int]], int, dict[str, Any]]]
) -> None:
    gathering = Gathering(inline_bytes=inline_bytes, **options)
    for sizes, part_bytes, bounds in epochs:
        gathering.run(*sizes, part_bytes=part_bytes, **bounds)
    gathering.drain()
    assert gathering.read() == gathering.sent
    assert (gathering.fake.pieces(), gathering.fake.uploads) == ({}, {})


def test_small_pieces_of_many_workers_become_one_object() -> None:
    gathering = Gathering()
    gathering.run(*([300] for _ in range(20)))
    gathering.run([300])
    assert gathering.fake.data() == {}
    gathering.drain()
    assert len(gathering.fake.data()) == 1
    assert gathering.read() == gathering.sent


def test_whole_parts_of_one_worker_and_small_pieces_of_others_become_one_object() -> None:
    gathering = Gathering()
    gathering.run([300], [700] * 40, [300])
    gathering.run([300])
    gathering.drain()
    assert len(gathering.fake.data()) == 1
    assert gathering.read() == gathering.sent


def test_no_object_of_several_workers_has_more_rows_than_roll_rows_says() -> None:
    gathering = Gathering(roll_bytes=None, roll_rows=10)
    gathering.run([50] * 6, [50] * 6)
    gathering.run([50])
    gathering.drain()
    assert sorted(Counter(body.count(b"\n") for body in gathering.fake.data().values()).elements()) == [6, 7]
    assert gathering.read() == gathering.sent


# --- memory


def most_read_back(calls: list[tuple[str, dict[str, Any]]], sizes: dict[str, int]) -> int:
    """The most bytes of pieces that were in memory at once: read, and not put as a part again."""
    held = most = 0
    for request, arguments in calls:
        name = arguments.get("Key", "").partition("_outfall/pieces/")[2]
        if name and request == "get_object":
            held += sizes[name]
            most = max(most, held)
        elif name and request == "put_object":
            held = max(0, held - len(arguments["Body"]))
    return most


def test_small_pieces_of_many_workers_are_put_together_a_part_at_a_time() -> None:
    gathering = Gathering()
    gathering.run(*([1_000] * 4 for _ in range(40)))
    sizes, waiting = gathering.fake.pieces(), gathering.waiting
    assert waiting > 30 * 5 * KIB
    gathering.fake.calls.clear()
    gathering.run([10])
    assert most_read_back(gathering.fake.calls, sizes) < 2 * 5 * KIB
    assert gathering.waiting >= waiting
    gathering.drain()
    assert gathering.read() == gathering.sent


def test_whole_parts_stay_as_they_are_when_parts_become_larger() -> None:
    gathering = Gathering()
    for _ in range(4):
        gathering.run([1_000] * 30)
    gathering.fake.calls.clear()
    gathering.run([10], part_bytes=6 * KIB)
    read = [each for each in gathering.fake.requests("get_object") if "/pieces/" in each["Key"]]
    assert read == []
    gathering.run([1_000] * 30, part_bytes=6 * KIB)
    gathering.drain()
    assert len(gathering.fake.data()) == 1
    assert gathering.read() == gathering.sent
