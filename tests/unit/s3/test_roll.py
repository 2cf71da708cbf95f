"""Large objects from small epochs: what waits and where, what objects are made of, and that each row comes once."""

from __future__ import annotations

import io
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext, SweepContext, WriterInitContext
from outfall.errors import FencedError, TargetAheadError, TargetLostError
from outfall.protocol.step import EpochOptions
from outfall.recovery import history
from outfall.s3 import S3Sink
from outfall.s3.rolling.buffered_object import MERGED, copied, merged
from outfall.s3.rolling.pieces import WriterState
from outfall.s3.staged import StagedObject
from outfall.testing import FakeClock, LocalDriver, crash_at
from outfall.wrappers import FanOutSink
from tests.unit.s3.test_target import copied as copied_log
from tests.unit.support.fake_s3 import OURS, FakeS3

KIB = 1 << 10
"""Stands for a mebibyte: parts of 5 KiB are the smallest here, so that large objects are made in no time."""


@pytest.fixture
def recovery() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.s3.rolling.writer.SMALLEST_PART", 5 * KIB)


class SmallParts(FakeS3):
    """Takes parts from 5 KiB on, and so do its sinks."""

    def __init__(self) -> None:
        super().__init__(smallest=5 * KIB)

    def sink(self, prefix: str = "out", **options: Any) -> S3Sink:
        sink = super().sink(prefix, **options)
        sink.options = sink.options.model_copy(update={"part_size": 5 * KIB})
        return sink


def driver(fake: FakeS3, recovery: str, workers: int = 1, **options: Any) -> LocalDriver:
    """A driver that remembers nothing, as after a restart."""
    return LocalDriver(fake.sink(**options), recovery, options=EpochOptions(worker_count=workers))


def ids(fake: FakeS3) -> list[int]:
    return sorted(json.loads(line)["id"] for body in fake.data().values() for line in body.splitlines())


def large(number: int, size: int) -> dict[str, Any]:
    return {"id": number, "text": "x" * size}


class Epochs:
    """One writer's epochs without a driver, and quick: what is handed over is published, and what is dead deleted."""

    def __init__(self, fake: FakeS3, **options: Any) -> None:
        self.fake = fake
        self.sink = fake.sink(**options)
        self.states: Sequence[WriterState] = ()
        self.epoch = 0
        fake.mark()

    def run(self, *batches: pa.RecordBatch, end: bool = False) -> list[StagedObject]:
        generation = 3 * self.epoch + 1
        context = WriterInitContext("sink", OURS, generation, self.epoch, part=None, attempt=self.epoch)
        sink = self.sink.bind(context)
        part: Any = sink.restore_writer(context, self.states) if self.states else sink.build("sink", 0, 1)
        for batch in batches:
            part.write_record_batch(batch)
        part.flush(end_of_input=end)
        staged: list[StagedObject] = part.prepare_commit()
        serializer = sink.writer_state_serializer()
        states = [serializer.serialize(state) for state in part.snapshot_state(self.epoch)]
        self.state_size = sum(map(len, states))
        self.states = [serializer.deserialize(1, state) for state in states]
        part.close()
        if staged:
            requests = [CommitRequest(each) for each in staged]
            sink.create_committer(CommitterInitContext("sink", OURS, generation, self.epoch)).commit(requests)
            assert {request.outcome.kind for request in requests} == {"committed"}
        self.sink.sweep(SweepContext("sink", OURS, generation, states=dict, writer_states=lambda: self.states))
        self.epoch += 1
        return staged

    @property
    def rows_held(self) -> int:
        return sum(state.held().rows for state in self.states)


def text(size: int, byte: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"value": [byte * (size - 1)]})


# --- plans


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


# --- objects


def test_a_thousand_small_epochs_make_a_few_large_objects_and_a_state_that_stays_small() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_bytes="12 KiB", inline_size=0)
    sizes, pieces, staged = [], [], []
    for _ in range(1000):
        staged += epochs.run(text(30))
        sizes.append(epochs.state_size)
        pieces.append(len(fake.pieces()))
    assert [each.rows for each in staged] == [410, 410]
    assert all(12 * KIB <= each.size < 12 * KIB + 30 for each in staged)
    assert epochs.rows_held == 180
    assert max(sizes) < 8_000
    # Beside those that stand in the state one that the last epoch has put and another may still read.
    assert max(pieces) <= 3 * (MERGED - 1)
    assert len(fake.requests("upload_part_copy")) == 4
    put = sum(len(each["Body"]) for each in fake.requests("put_object") if "/pieces/" in each["Key"])
    assert put < 3.2 * 30_000
    epochs.run(end=True)
    assert sum(map(len, fake.data().values())) == 30_000
    assert (epochs.rows_held, fake.pieces(), fake.uploads) == (0, {}, {})


def test_little_waits_in_the_state_and_needs_no_request() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_rows=100, inline_size="4 KiB")
    for _ in range(99):
        assert epochs.run(text(10)) == []
    assert fake.pieces() == {}
    (staged,) = epochs.run(text(10))
    assert (staged.rows, staged.size) == (100, 1000)


def test_whole_parts_are_copied_and_the_rest_is_read() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_bytes="30 KiB", inline_size=0)
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
    epochs = Epochs(fake, format="text", roll_bytes="11 KiB", inline_size=0)
    staged = epochs.run(*(text(3 * KIB) for _ in range(9)))
    assert [each.size for each in staged] == [12 * KIB, 12 * KIB]
    assert epochs.rows_held == 1


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
    epochs = Epochs(fake, format="text", roll_rows=10, partition_by="k", inline_size=0, max_concurrency=1)
    keys = [f"{number:04d}" for number in range(600)]
    epochs.run(pa.record_batch({"k": keys, "value": ["v" * 20] * 600}))
    assert len(fake.pieces()) == 600
    staged = epochs.run(end=True)
    assert len(staged) == len(fake.data()) == 600
    assert {len(body) for body in fake.data().values()} == {21}


# --- formats


def table(number: int) -> pa.RecordBatch:
    day = pa.array([number], pa.int32()).cast(pa.date32())
    span = pa.array([timedelta(microseconds=number)], pa.duration("us"))
    return pa.record_batch({"n": [number], "day": day, "s": [f"ä {number}"], "span": span, "l": [[number]]})


def parquet_rows(body: bytes) -> list[Any]:
    rows: list[Any] = pq.read_table(io.BytesIO(body)).to_pylist()
    return rows


@pytest.mark.parametrize("inline_size", [0, "64 KiB"])
def test_parquet_waits_as_arrow_streams_and_is_written_as_one_file(inline_size: Any) -> None:
    fake, plain = SmallParts(), SmallParts()
    epochs = Epochs(fake, format="parquet", roll_rows=40, inline_size=inline_size)
    for number in range(40):
        epochs.run(table(number))
    Epochs(plain, format="parquet").run(*map(table, range(40)))
    (body,), (expected,) = fake.data().values(), plain.data().values()
    assert parquet_rows(body) == parquet_rows(expected)
    assert pq.read_schema(io.BytesIO(body)) == pq.read_schema(io.BytesIO(expected))
    assert pq.ParquetFile(io.BytesIO(body)).num_row_groups == 1


def test_parquet_of_several_pieces_as_large_as_parts_is_read_a_piece_at_a_time() -> None:
    import random

    fake = SmallParts()
    epochs = Epochs(fake, format="parquet", roll_bytes="12 KiB", inline_size=0)
    chance = random.Random(1)
    rows = [pa.record_batch({"b": [chance.randbytes(900) for _ in range(2)]}) for _ in range(9)]
    for batch in rows:
        epochs.run(batch)
    epochs.run(end=True)
    found = Counter(row["b"] for body in fake.data().values() for row in parquet_rows(body))
    assert found == Counter(value for batch in rows for value in batch["b"].to_pylist())
    assert len(fake.data()) == 2


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("inline_size", [0, "64 KiB"])
def test_csv_has_one_header_and_members_in_a_row(compression: Any, inline_size: Any) -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="csv", header=True, compression=compression, roll_rows=20, inline_size=inline_size)
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


def test_what_waits_keeps_its_format_when_the_options_change() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_rows=20, inline_size=0)
    epochs.run(text(10))
    epochs.sink = fake.sink(format="text", compression="gzip", roll_rows=20)
    assert [each.key.rpartition(".")[2] for each in epochs.run(text(10))] == ["txt"]
    assert [each.key.rpartition(".")[2] for each in epochs.run(end=True)] == ["gz"]


def test_without_bounds_what_waited_is_delivered_by_the_next_epoch() -> None:
    fake = SmallParts()
    epochs = Epochs(fake, format="text", roll_rows=20, inline_size=0)
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


# --- the protocol


STEPS = [
    "s3: putting piece", "s3: piece under way", "s3: piece read", "s3: composing", "s3: copying part",
    "s3: copying part#2", "s3: part under way", "s3: object ended", "s3: composed", "s3: pieces put", "s3: staged",
    "task: after prepare_commit", "task: after snapshot", "before PREPARED", "after PREPARED", "after COMMITTING",
    "s3: marker advanced", "s3: completing", "s3: completed", "s3: manifest written", "before COMPLETED",
    "after COMPLETED", "s3: deleting pieces", "after sweep",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_composing_leaves_each_row_once(recovery: str, step: str) -> None:
    fake = SmallParts()
    options: dict[str, Any] = {"roll_bytes": "13 KiB"}
    driver(fake, recovery, **options).run_epoch(0, [[large(0, 7 * KIB)]])
    driver(fake, recovery, **options).run_epoch(1, [[large(1, 4 * KIB), {"id": 2}]])
    assert fake.data() == {}
    last = [[large(3, 2 * KIB), {"id": 4}]]
    with crash_at(step) as seen:
        driver(fake, recovery, **options).run_epoch(2, last)
    if step not in ("s3: piece under way", "s3: putting piece", "s3: pieces put"):
        assert step.partition("#")[0] in seen
    driver(fake, recovery, **options).run_epoch(2, last)
    driver(fake, recovery, **options).run_epoch(3, [[{"id": 5}]])
    assert len(fake.data()) == 1
    driver(fake, recovery, **options).drain()
    assert ids(fake) == list(range(6))
    assert (fake.pieces(), fake.uploads) == ({}, {})


def test_what_waits_is_counted_and_drained(recovery: str, caplog: pytest.LogCaptureFixture) -> None:
    fake = SmallParts()
    for epoch in range(3):
        driver(fake, recovery, 2, roll_rows=10).run_epoch(epoch, [[{"id": 2 * epoch}], [{"id": 2 * epoch + 1}]])
    assert [summary.rows_held for summary in history(recovery)] == [2, 4, 6]
    assert ids(fake) == []
    with caplog.at_level("INFO"):
        driver(fake, recovery, 2, roll_rows=10).drain()
    assert "rows held 6" in caplog.text
    assert (ids(fake), len(fake.data()), fake.pieces()) == (list(range(6)), 2, {})
    assert driver(fake, recovery, 2, roll_rows=10).drain() is None


def test_the_end_of_a_batch_job_delivers_everything(recovery: str) -> None:
    fake = SmallParts()
    sink = fake.sink(roll_rows=10)
    LocalDriver(sink, recovery, options=EpochOptions(worker_count=1, end_of_input=True)).run_epoch(0, [[{"id": 1}]])
    assert ids(fake) == [1]


@pytest.mark.parametrize("header", [False, True])
def test_fewer_and_more_workers_take_what_others_left(recovery: str, header: bool) -> None:
    fake = SmallParts()
    options: dict[str, Any] = {"roll_rows": 100, "partition_by": "k", "format": "csv", "header": header}
    number = 0
    for epoch, workers in enumerate([3, 1, 4, 2]):
        tasks = [[{"k": f"{n % 2}", "n": n} for n in range(number + 5 * w, number + 5 * w + 5)] for w in range(workers)]
        number += 5 * workers
        driver(fake, recovery, workers, **options).run_epoch(epoch, tasks)
    driver(fake, recovery, 2, **options).drain()
    lines = [line for body in fake.data().values() for line in body.decode().splitlines()]
    assert sorted(int(line) for line in lines if line != "n") == list(range(50))
    assert lines.count("n") == (len(fake.data()) if header else 0)
    assert fake.pieces() == {}


def test_each_worker_gets_its_own_state_back(recovery: str) -> None:
    """Also the one that holds nothing: an object of three workers' rows would be three."""
    fake = SmallParts()
    for epoch in range(6):
        tasks: list[Iterable[Any]] = [[{"id": epoch}], [], []]
        driver(fake, recovery, 3, roll_rows=6).run_epoch(epoch, tasks)
    assert [body.count(b"\n") for body in fake.data().values()] == [6]


def test_a_zombie_that_composes_late_publishes_nothing(recovery: str) -> None:
    fake = SmallParts()
    first = driver(fake, recovery, roll_rows=4)
    first.run_epoch(0, [[{"id": 0}, {"id": 1}]])
    rows: list[Any] = [(None, [{"id": 2}, {"id": 3}])]
    stale = first.coordinator().begin(1)
    first.run_task(stale, 1, 0, rows)
    second = driver(fake, recovery, roll_rows=4)
    second.run_epoch(1, [[{"id": 2}, {"id": 3}]])
    with pytest.raises(FencedError, match="a newer driver has taken the step over"):
        first.run_task(stale, 1, 0, rows, attempt=9)
    second.run_epoch(2, [[{"id": 4}]])
    second.drain()
    assert (ids(fake), fake.uploads, fake.pieces()) == ([0, 1, 2, 3, 4], {}, {})


def test_a_piece_that_somebody_deleted_is_told(recovery: str) -> None:
    fake = SmallParts()
    driver(fake, recovery, roll_rows=4).run_epoch(0, [[{"id": 0}]])
    (name,) = fake.pieces()
    del fake.objects[f"out/_outfall/pieces/{name}"]
    with pytest.raises(TargetLostError, match="rows that wait for a large object"):
        driver(fake, recovery, roll_rows=4).drain()


def test_recovery_data_from_before_is_refused_though_nothing_was_published_since(recovery: str) -> None:
    """Its pieces may have become part of others."""
    fake = SmallParts()
    driver(fake, recovery, roll_rows=400).run_epoch(0, [[{"id": 0}]])
    old = copied_log(recovery)
    driver(fake, recovery, roll_rows=400).run_epoch(1, [[{"id": 1}]])
    with pytest.raises(TargetAheadError):
        driver(fake, old, roll_rows=400).run_epoch(1, [[{"id": 1}]])
    driver(fake, recovery, roll_rows=400).drain()
    assert ids(fake) == [0, 1]


def test_a_sweep_leaves_what_is_held_what_is_newer_and_what_is_not_ours(recovery: str) -> None:
    fake = SmallParts()
    with crash_at("before PREPARED"):
        driver(fake, recovery, roll_rows=9).run_epoch(0, [[{"id": 0}]])
    (dead,) = fake.pieces()
    incarnation = dead.partition("/")[0]
    others = [
        "00000000000000bb/0000000000-00000-g1-a0-00000000000000aa",
        f"{incarnation}/0000000000-00000-g999-a0-00000000000000aa",
        f"{incarnation}/notes.txt",
    ]
    for name in others:
        fake.put(f"out/_outfall/pieces/{name}")
    for epoch in range(3):
        driver(fake, recovery, roll_rows=9).run_epoch(epoch, [[{"id": epoch}]])
    assert set(others) < set(fake.pieces())
    assert dead not in fake.pieces()
    assert len(fake.pieces()) == len(others) + 3


def test_a_batch_job_leaves_no_piece(recovery: str) -> None:
    """Neither those of which its object was made nor those of an attempt that lost."""
    fake = SmallParts()
    options = EpochOptions(worker_count=1, end_of_input=True, final=True)
    local = LocalDriver(fake.sink(roll_bytes=12 * KIB), recovery, options=options)
    rows: list[Any] = [(None, [large(number, 3 * KIB) for number in range(6)])]
    with closing(local.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        local.run_task(ticket, 0, 0, rows)
        coordinator.finish(ticket, [local.run_task(ticket, 0, 0, rows, retries=1)])
    assert fake.requests("put_object")
    assert ids(fake) == list(range(6))
    assert (fake.pieces(), fake.uploads) == ({}, {})


def test_a_batch_job_leaves_the_pieces_that_still_wait(recovery: str) -> None:
    fake = SmallParts()
    options = EpochOptions(worker_count=1, final=True)
    LocalDriver(fake.sink(roll_rows=9), recovery, options=options).run_epoch(0, [[{"id": 0}]])
    assert len(fake.pieces()) == 1
    driver(fake, recovery, roll_rows=9).drain()
    assert ids(fake) == [0]


@pytest.mark.parametrize("parts", [None, 2])
def test_pieces_of_a_sink_among_others_are_known_to_the_sweep(
    recovery: str, parts: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from outfall.file import FileSink

    fake, lines = SmallParts(), tmp_path_factory.mktemp("lines")
    for epoch in range(5):
        sink = FanOutSink(large=fake.sink(roll_rows=100), lines=FileSink(str(lines), parts=parts))
        rows: list[Any] = [{"id": 2 * epoch}, {"id": 2 * epoch + 1}]
        tasks = [rows] if parts is None else [[(str(row["id"]), row) for row in rows]]
        own = EpochOptions(worker_count=1) if parts is None else EpochOptions()
        LocalDriver(sink, recovery, options=own).run_epoch(epoch, tasks)
    LocalDriver(sink, recovery, options=own).drain()
    assert ids(fake) == list(range(10))
    assert fake.pieces() == {}


def test_overwriting_deletes_the_pieces_of_others(recovery: str) -> None:
    fake = SmallParts()
    driver(fake, recovery, roll_rows=9).run_epoch(0, [[{"id": 0}]])
    other = f"memory://{uuid.uuid4().hex}"
    driver(fake, other, on_existing="overwrite", roll_rows=9).run_epoch(0, [[{"id": 7}]])
    assert len(fake.pieces()) == 1
    driver(fake, other, roll_rows=9).drain()
    assert ids(fake) == [7]
