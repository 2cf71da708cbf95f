"""Large objects from small epochs: what waits and where, and what objects are made of."""

from __future__ import annotations

import io
import random
import zlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from outfall.formats import FormatOptions
from outfall.s3.rolling.buffered_object import MERGED, Form, copied, merged
from outfall.testing import FakeClock
from tests.one_each import thorough
from tests.unit.support.fake_s3 import FakeS3
from tests.unit.support.rolling import KIB, Epochs, SmallParts, text


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.s3.rolling.writer.SMALLEST_PART", 5 * KIB)


@pytest.mark.parametrize(
    ("sizes", "plan"),
    [
        ([], []),
        ([8, 8, 3], [True, True, False]),
        ([3, 8, 8], [False, False, False]),
        ([6, 8, 1], [False, True, False]),
        ([7, 3, 8], [False, False, False]),
        ([9, 1, 4, 8], [True, False, False, True]),
    ],
)
def test_a_piece_is_copied_when_all_parts_before_it_are_large_enough(sizes: list[int], plan: list[bool]) -> None:
    assert copied(sizes, 8, 5) == plan


def test_pieces_are_merged_as_a_counter_carries() -> None:
    levels: list[int] = []
    written = 0
    for _ in range(MERGED**3 - 1):
        count, level = merged(levels)
        levels = [*levels[: len(levels) - count], level]
        written += MERGED**level
        assert len(levels) <= 3 * (MERGED - 1)
        assert levels == sorted(levels, reverse=True)
    assert levels == [2] * 15 + [1] * 15 + [0] * 15
    assert written < 3 * MERGED**3


@pytest.mark.thorough
def test_a_thousand_small_epochs_make_a_few_large_objects_and_a_state_that_stays_small() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_bytes="12 KiB", inline_bytes=0)
    sizes, pieces, staged = [], [], []
    for _ in range(1000):
        staged += epochs.run(text(30))
        sizes.append(epochs.state_size)
        pieces.append(len(fake.pieces()))
    assert [each.rows for each in staged] == [410, 410]
    assert all(12 * KIB <= each.size < 12 * KIB + 30 for each in staged)
    assert epochs.buffered_rows == 180
    assert max(sizes) < 8_000
    # Beside those that stand in the state one that the last epoch has put and another may still read.
    assert max(pieces) <= 3 * (MERGED - 1)
    assert len(fake.requests("upload_part_copy")) == 4
    put = sum(len(each["Body"]) for each in fake.requests("put_object") if "/pieces/" in each["Key"])
    assert put < 3.2 * 30_000
    epochs.run(end=True)
    assert sum(map(len, fake.data().values())) == 30_000
    assert (epochs.buffered_rows, fake.pieces(), fake.uploads) == (0, {}, {})


def test_little_waits_in_the_state_and_needs_no_request() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_rows=100, inline_bytes="4 KiB")
    for _ in range(99):
        assert epochs.run(text(10)) == []
    assert fake.pieces() == {}
    (staged,) = epochs.run(text(10))
    assert (staged.rows, staged.size) == (100, 1000)


def test_whole_parts_are_copied_and_the_rest_is_read() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_bytes="30 KiB", inline_bytes=0)
    expected = b""
    for number, size in enumerate([12 * KIB, 100, 6 * KIB, 5 * KIB, 8 * KIB]):
        batch = text(size, chr(97 + number))
        expected += batch["value"][0].as_py().encode() + b"\n"
        staged = epochs.run(batch)
    assert list(fake.data().values()) == [expected]
    assert len(fake.requests("upload_part_copy")) == 4
    assert [part.number for part in staged[0].parts] == list(range(1, 8))
    (upload,) = fake.requests("complete_multipart_upload")
    assert upload["MpuObjectSize"] == len(expected)


def test_an_epoch_larger_than_the_bound_makes_objects_by_itself() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_bytes="11 KiB", inline_bytes=0)
    staged = epochs.run(*(text(3 * KIB) for _ in range(9)))
    assert [each.size for each in staged] == [12 * KIB, 12 * KIB]
    assert epochs.buffered_rows == 1


def repetitive(first: int, rows: int) -> pa.RecordBatch:
    """Make rows of which any part compresses alike, unlike ascending numbers: the file before estimates a size."""
    numbers = range(first, first + rows)
    ids = [zlib.crc32(b"%d" % number) for number in numbers]
    return pa.record_batch({"id": ids, "text": [f"abcdefgh{number % 7}-" * 8 for number in numbers]})


@pytest.mark.parametrize("per_epoch", [thorough(50), 5_000])
@pytest.mark.parametrize(
    ("format", "compression"),
    [("jsonl", "gzip"), ("csv", "zstd"), ("parquet", "none"), ("parquet", "snappy"), ("parquet", "zstd")],
)
def test_an_object_is_as_large_as_roll_bytes_also_if_its_rows_compress_well(
    format: str, compression: str, per_epoch: int
) -> None:
    fake, small = FakeS3(), 100
    epochs = Epochs(fake, format=format, compression=compression, roll_bytes="16 KiB", inline_bytes=0)
    sizes: list[int] = []
    for first in range(0, 20_000, per_epoch):
        parts = range(first, first + per_epoch, small)
        sizes += [each.size for each in epochs.run(*(repetitive(part, min(small, per_epoch)) for part in parts))]
    assert len(sizes) >= 2
    assert all(0.8 * 16 * KIB <= size <= 1.5 * 16 * KIB for size in sizes), sizes


def test_the_size_of_a_parquet_file_is_measured_once_and_then_estimated() -> None:
    fake = FakeS3()
    epochs = Epochs(fake, format="parquet", roll_bytes="16 KiB", inline_bytes=0)
    chance = random.Random(1)
    reads, waiting = [], 0
    for _ in range(40):
        fake.calls.clear()
        staged = epochs.run(pa.record_batch({"b": [chance.randbytes(1000) for _ in range(2)]}))
        read = sum("/pieces/" in each["Key"] for each in fake.requests("get_object"))
        reads.append(read - (waiting if staged else 0))
        waiting = 0 if staged else waiting + 1
    # All pieces of the first object once more than it takes to compose it, and nothing else.
    assert len(fake.data()) >= 4
    assert sorted(reads) == [0] * 39 + [max(reads)]
    assert max(reads) >= 6


def test_a_small_parquet_file_says_nothing_about_the_size_of_large_ones() -> None:
    epochs = Epochs(FakeS3(), format="parquet", roll_bytes="16 KiB", roll_interval="10 minutes", inline_bytes=0)
    clock = FakeClock()
    epochs.sink.clock = clock.time
    epochs.run(repetitive(0, 2))
    clock.sleep(600)
    assert [each.rows for each in epochs.run()] == [2]
    assert [state.ratio for state in epochs.states] == [None]


def test_the_rows_of_two_writers_count_together_after_one_of_them_takes_over() -> None:
    fake = FakeS3()
    epochs, other = (Epochs(fake, format="parquet", roll_bytes="1 MiB", inline_bytes=0) for _ in range(2))
    epochs.run(repetitive(0, 100))
    other.run(repetitive(100, 200))
    alone = [state.objects[0].unencoded for state in (*epochs.states, *other.states)]
    epochs.states = [*epochs.states, *other.states]
    epochs.run()
    assert [each.unencoded for state in epochs.states for each in state.objects] == [sum(alone)]


def test_no_object_has_more_rows_than_roll_rows_says() -> None:
    epochs = Epochs(SmallParts(), format="text", roll_rows=7)
    assert [each.rows for each in epochs.run(pa.record_batch({"value": ["a"] * 30}))] == [7, 7, 7, 7]
    assert [each.rows for each in epochs.run(pa.record_batch({"value": ["a"] * 5}))] == [7]
    assert [each.rows for each in epochs.run(end=True)] == []


def test_what_is_old_enough_is_composed_also_without_new_rows() -> None:
    epochs = Epochs(SmallParts(), format="text", roll_interval="10 minutes", partition_by="k")
    clock = FakeClock()
    epochs.sink.clock = clock.time
    batch = pa.record_batch({"k": ["a", "b"], "value": ["1", "2"]})
    epochs.run(batch)
    clock.sleep(599)
    assert epochs.run(batch.slice(1)) == []
    (state,) = epochs.states
    oldest = state.held().oldest
    assert oldest is not None
    assert clock.time() - oldest.timestamp() == pytest.approx(599)
    clock.sleep(1)
    assert [(each.key.split("/")[1], each.rows) for each in epochs.run()] == [("k=a", 1), ("k=b", 2)]


def test_many_bucket_paths_are_put_as_pieces_rather_than_held_in_memory() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_rows=10, partition_by="k", inline_bytes="64 KiB", max_concurrency=1)
    keys = [f"{number:04d}" for number in range(100)]
    epochs.run(pa.record_batch({"k": keys, "value": ["v" * 20] * 100}))
    assert len(fake.pieces()) == 100
    staged = epochs.run(end=True)
    assert len(staged) == len(fake.data()) == 100
    assert {len(body) for body in fake.data().values()} == {21}


def table(number: int) -> pa.RecordBatch:
    day = pa.array([number], pa.int32()).cast(pa.date32())
    span = pa.array([timedelta(microseconds=number)], pa.duration("us"))
    return pa.record_batch({"n": [number], "day": day, "s": [f"ä {number}"], "span": span, "l": [[number]]})


def parquet_rows(body: bytes) -> list[Any]:
    rows: list[Any] = pq.read_table(io.BytesIO(body)).to_pylist()
    return rows


@pytest.mark.parametrize("inline_bytes", [0, "64 KiB"])
def test_parquet_waits_as_arrow_streams_and_is_written_as_one_file(inline_bytes: Any) -> None:
    fake, plain = SmallParts(), SmallParts()
    epochs = Epochs(fake, format="parquet", roll_rows=40, inline_bytes=inline_bytes)
    for number in range(40):
        epochs.run(table(number))
    Epochs(plain, format="parquet").run(*map(table, range(40)))
    (body,), (expected,) = fake.data().values(), plain.data().values()
    assert parquet_rows(body) == parquet_rows(expected)
    assert pq.read_schema(io.BytesIO(body)) == pq.read_schema(io.BytesIO(expected))
    assert pq.ParquetFile(io.BytesIO(body)).num_row_groups == 1


def test_parquet_of_several_pieces_as_large_as_parts_is_read_a_piece_at_a_time() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="parquet", roll_bytes="12 KiB", inline_bytes=0)
    chance = random.Random(1)
    rows = [pa.record_batch({"b": [chance.randbytes(900) for _ in range(2)]}) for _ in range(9)]
    for batch in rows:
        epochs.run(batch)
    epochs.run(end=True)
    found = Counter(row["b"] for body in fake.data().values() for row in parquet_rows(body))
    assert found == Counter(value for batch in rows for value in batch["b"].to_pylist())
    assert len(fake.data()) == 2


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("inline_bytes", [0, "64 KiB"])
def test_csv_has_one_header_and_members_in_a_row(compression: Any, inline_bytes: Any) -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="csv", header=True, compression=compression, roll_rows=20, inline_bytes=inline_bytes)
    for number in range(40):
        epochs.run(pa.record_batch({"n": [number], "s": [f"v{number}"]}))
    bodies = list(fake.data().values())
    assert len(bodies) == 2
    rows = []
    for body in bodies:
        source = pa.input_stream(io.BytesIO(body), compression=None if compression == "none" else compression)
        rows += pcsv.read_csv(source).to_pylist()
    assert rows == [{"n": number, "s": f"v{number}"} for number in range(40)]


def test_other_columns_begin_another_object_where_a_file_has_one_set_of_them() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="csv", header=True, roll_rows=20)
    epochs.run(pa.record_batch({"a": [1]}))
    assert [each.rows for each in epochs.run(pa.record_batch({"a": [2]}), pa.record_batch({"b": [3]}))] == [2]
    epochs.run(end=True)
    assert list(fake.data().values()) == [b"a\n1\n2\n", b"b\n3\n"]


@pytest.mark.parametrize(
    ("before", "after", "buffered", "ending"),
    [
        ({"format": "text"}, {"format": "text", "compression": "gzip"}, ".txt", ".txt"),
        ({"format": "jsonl"}, {"format": "parquet"}, ".jsonl", ".jsonl"),
        ({"format": "parquet"}, {"format": "jsonl"}, ".snappy.parquet", ".jsonl"),
        ({"format": "parquet"}, {"format": "parquet", "compression": "zstd"}, ".snappy.parquet", ".zstd.parquet"),
    ],
)
def test_buffered_text_keeps_its_format_when_the_options_change_and_parquet_takes_the_new_one(
    before: dict[str, Any], after: dict[str, Any], buffered: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake = SmallParts()
    epochs = Epochs(fake, roll_rows=20, inline_bytes=0, **before)
    epochs.run(text(10))
    epochs.sink = fake.sink(roll_rows=20, **after)
    (staged,) = epochs.run(end=True)
    assert staged.key.endswith(ending)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "outfall.s3.rolling.writer"]
    assert f"epoch 1 wrote 1 rows into a *{ending} object. They were buffered for a *{buffered} object" in warning


def test_other_options_begin_another_object(caplog: pytest.LogCaptureFixture) -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_rows=20, inline_bytes=0)
    epochs.run(text(10))
    epochs.sink = fake.sink(format="text", compression="gzip", roll_rows=20)
    assert [each.key.rpartition(".")[2] for each in epochs.run(text(10))] == ["txt"]
    caplog.clear()
    assert [each.key.rpartition(".")[2] for each in epochs.run(end=True)] == ["gz"]
    assert caplog.records == []


def test_without_bounds_what_waited_is_delivered_by_the_next_epoch() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_rows=20, inline_bytes=0)
    epochs.run(text(10))
    epochs.sink = fake.sink(format="text")
    assert not epochs.sink.keeps_writer_state()
    assert [each.rows for each in epochs.run(text(10))] == [2]
    assert epochs.states == []
    epochs.run(text(10))
    assert fake.pieces() == {}


def test_copies_name_the_customers_key_for_both_objects() -> None:
    fake = SmallParts()
    key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
    epochs = Epochs(fake, format="text", roll_bytes="6 KiB", sse_customer_key=key)
    epochs.run(text(5 * KIB))
    epochs.run(text(KIB))
    (copy,) = fake.requests("upload_part_copy")
    assert copy["SSECustomerKey"] == copy["CopySourceSSECustomerKey"] == key
    assert copy["CopySourceSSECustomerKeyMD5"] == copy["SSECustomerKeyMD5"]


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "b5579bafffe70ffedf94f7b9060bf5e5"),
        ({"format": "csv", "header": True}, "6fc68637ffe1166e078ab8b765a806cd"),
        ({"format": "parquet"}, "2920e815d6f7f588efd10a68728b465f"),
        ({"format": "text", "compression": "zstd"}, "e7ae5d3dfecb1a70472a681275d957c3"),
    ],
)
def test_what_earlier_releases_buffered_is_continued(options: dict[str, Any], digest: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert Form.of(FormatOptions(**options), schema).digest == digest
