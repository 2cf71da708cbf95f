"""Large objects from small epochs, in the protocol: each row comes once, and what waits is delivered."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

from outfall.errors import FencedError, TargetAheadError, TargetLostError
from outfall.protocol.step import EpochOptions
from outfall.recovery import history
from outfall.s3.clean_up import dead_pieces
from outfall.testing import LocalDriver, crash_at
from outfall.wrappers import FanOutSink
from tests.unit.s3.test_target import copied as copied_log
from tests.unit.support.fake_s3 import OURS
from tests.unit.support.rolling import KIB, SmallParts, driver, ids, large


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.s3.rolling.writer.SMALLEST_PART", 5 * KIB)


@pytest.fixture
def recovery() -> str:
    return f"memory://{uuid.uuid4().hex}"


STEPS = [
    "s3: putting piece", "s3: copying part#2", "s3: composed", "task: after snapshot", "before PREPARED",
    "after PREPARED", "s3: completed", "after COMPLETED", "s3: deleting pieces",
]  # fmt: skip
MORE_STEPS = [
    "s3: piece under way", "s3: piece read", "s3: composing", "s3: copying part", "s3: part under way",
    "s3: object ended", "s3: pieces put", "s3: staged", "task: after prepare_commit", "after COMMITTING",
    "s3: record advanced", "s3: completing", "s3: manifest written", "before COMPLETED", "after clean-up",
]  # fmt: skip


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_bytes_count_in_the_epoch_that_encodes_them(recovery: str, format: str) -> None:
    fake = SmallParts()
    for number in range(2):
        driver(fake, recovery, format=format, roll_rows=2).run_epoch(number, [[large(number, KIB)]])
    driver(fake, recovery, format=format, roll_rows=2).run_epoch(2, [[]])
    (_, first), (_, second), (_, empty) = ((epoch.rows, epoch.bytes) for epoch in history(recovery))
    assert 0 < first == second < 2 * KIB
    assert empty == 0


@pytest.mark.parametrize("step", [*STEPS, *(pytest.param(step, marks=pytest.mark.thorough) for step in MORE_STEPS)])
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
    assert [summary.buffered_rows for summary in history(recovery)] == [2, 4, 6]
    assert ids(fake) == []
    with caplog.at_level("INFO"):
        driver(fake, recovery, 2, roll_rows=10).drain()
    assert "buffered rows 6" in caplog.text
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
    with pytest.raises(FencedError, match="a newer driver has taken over the step"):
        first.run_task(stale, 1, 0, rows, attempt=9)
    second.run_epoch(2, [[{"id": 4}]])
    second.drain()
    assert (ids(fake), fake.uploads, fake.pieces()) == ([0, 1, 2, 3, 4], {}, {})


def test_a_piece_that_somebody_deleted_is_told(recovery: str) -> None:
    fake = SmallParts()
    driver(fake, recovery, roll_rows=4).run_epoch(0, [[{"id": 0}]])
    (name,) = fake.pieces()
    del fake.objects[f"out/_outfall/pieces/{name}"]
    with pytest.raises(TargetLostError, match="buffered rows of a large object"):
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


def test_a_clean_up_leaves_what_is_held_what_is_newer_and_what_is_not_ours(recovery: str) -> None:
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


def test_pieces_of_the_generation_that_is_named_are_spared() -> None:
    fake = SmallParts()
    keys = [f"out/_outfall/pieces/{OURS}/0000000000-00000-g{number}-a0-00000000000000aa" for number in (2, 3, 4)]
    for key in keys:
        fake.put(key)
    assert dead_pieces(fake.sink().store, OURS, 3, set()) == keys[:1]


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
def test_pieces_of_a_sink_among_others_are_known_to_the_clean_up(
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
