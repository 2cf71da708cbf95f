"""`outfall gc`: what is listed, what is removed, and what is spared."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from outfall.capabilities import CleanUpContext
from outfall.errors import FencedError
from outfall.file import FileSink
from outfall.protocol.heartbeat import STALE, Heartbeat
from outfall.protocol.step import EpochOptions
from outfall.recovery import copy_step, recovery_config
from outfall.recovery.log import heartbeat_name
from outfall.s3 import S3Sink
from outfall.testing import LocalDriver, crash_at
from outfall.wrappers import FanOutSink
from tests.unit.support.command import FileStep, done, failed, importable, parsed, rows, run, tree
from tests.unit.support.fake_s3 import BUCKET, FakeS3
from tests.unit.support.setups import Staging


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def step(tmp_path: Path) -> FileStep:
    """An epoch that is there, and two files of a lost attempt at the next."""
    step = FileStep(tmp_path)
    step.write(0)
    with crash_at("after collect"):
        step.write(1)
    assert len(step.staged()) == 2
    return step


def old_file(step: FileStep, incarnation: str | None = None) -> str:
    """What a zombie of the first generation stages."""
    (like,) = (name for name in step.staged()[:1])
    parts = like.split("-")
    parts[4] = incarnation or parts[4]
    name = "-".join([*parts[:5], "g1", "a99.jsonl"])
    shutil.copy(step.path / "_outfall" / "staging" / like, step.path / "_outfall" / "staging" / name)
    return name


def test_only_older_generations_are_listed_and_removed(step: FileStep, tmp_path: Path) -> None:
    newest = step.staged()
    old, foreign = old_file(step), old_file(step, "f" * 16)
    before = tree(tmp_path)
    assert parsed("gc", step.recovery, "sink", *step.sink)["leftovers"] == [f"{step.path}/_outfall/staging/{old}"]
    assert "nothing was removed; add --yes" in done("gc", step.recovery, *step.sink), "the only step"
    assert tree(tmp_path) == before
    assert done("gc", step.recovery, "sink", *step.sink, "--yes") == "1 removed\n"
    assert step.staged() == sorted([*newest, foreign])


def test_heartbeats_of_processes_that_died_are_removed(step: FileStep) -> None:
    now = datetime.now(UTC)
    beats = [
        Heartbeat(
            who=who, generation=2, epoch=1, phase="tasks", since=at, at=at, attempts=1, place="p", doing="d", reason="r"
        )
        for who, at in (("task 0", now - timedelta(seconds=STALE)), ("task 1", now))
    ]
    with closing(recovery_config(step.recovery).open("sink")) as log:
        for beat in beats:
            log.set_heartbeat(heartbeat_name(beat.who, 2), beat.model_dump_json().encode())
        done("gc", step.recovery, "sink", *step.sink)
        assert len(log.heartbeats()) == 2
        done("gc", step.recovery, "sink", *step.sink, "--yes")
        assert [Heartbeat.model_validate_json(data).who for data in log.heartbeats()] == ["task 1"]


def begun(step: FileStep) -> Callable[[], object]:
    """Write an epoch, and the rows of a second one; returns what finishes that."""
    step.write(0)
    driver = step.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(1)
    answers = driver.run_tasks(ticket, 1, rows(1))
    return lambda: coordinator.finish(ticket, answers)


def test_a_query_that_runs_is_not_disturbed(tmp_path: Path) -> None:
    step = FileStep(tmp_path)
    finish = begun(step)
    old_file(step)
    assert parsed("gc", step.recovery, "sink", *step.sink, "--yes") == {"removed": 1}
    finish()
    assert step.found() == step.expected(0, 1)


def test_a_takeover_lists_what_it_then_removes(step: FileStep, tmp_path: Path) -> None:
    before = tree(tmp_path)
    listed = parsed("gc", step.recovery, "sink", *step.sink, "--take-over")["leftovers"]
    assert [path.rpartition("/")[2] for path in listed] == step.staged()
    assert tree(tmp_path) == before
    assert done("gc", step.recovery, "sink", *step.sink, "--take-over", "--yes") == "2 removed\n"
    assert step.staged() == []
    assert step.found() == step.expected(0)
    step.write(1)
    assert step.found() == step.expected(0, 1)


def test_after_a_takeover_a_batch_that_comes_again_is_skipped(step: FileStep) -> None:
    done("gc", step.recovery, "sink", *step.sink, "--take-over", "--yes")
    assert step.driver().run_epoch(0, rows(0)).skipped
    step.write(1)
    assert step.found() == step.expected(0, 1)


def test_a_takeover_fences_a_query_that_runs(tmp_path: Path) -> None:
    step = FileStep(tmp_path)
    finish = begun(step)
    done("gc", step.recovery, "sink", *step.sink, "--take-over", "--yes")
    with pytest.raises(FencedError):
        finish()
    assert step.found() == step.expected(0)


def test_what_is_recorded_is_published_and_never_listed(tmp_path: Path) -> None:
    step = FileStep(tmp_path)
    with crash_at("after PREPARED"):
        step.write(0)
    for more in ((), ("--take-over",)):
        found = run("gc", step.recovery, "sink", *step.sink, *more)
        assert (found.exit_code, "staging" in found.output) == (0, False)
    assert "epoch 0 is recorded and would be published" in found.output
    done("gc", step.recovery, "sink", *step.sink, "--yes")
    assert len(step.staged()) == 2
    done("gc", step.recovery, "sink", *step.sink, "--yes", "--take-over")
    assert (step.found(), step.staged()) == (step.expected(0), [])


def test_what_is_not_this_steps_is_refused(step: FileStep, tmp_path: Path) -> None:
    before = tree(tmp_path)
    other = ("--sink", "file", "-o", f"path={tmp_path}/other")
    for more in ((), ("--take-over",), ("--yes",), ("--yes", "--take-over")):
        assert "of the target" in failed("gc", step.recovery, "sink", *other, *more)
        assert "nothing is recorded" in failed("gc", step.recovery, "unknown", *step.sink, *more)
    assert tree(tmp_path) == before
    copy_step(step.recovery, str(tmp_path / "moved"))
    assert "was moved" in failed("gc", step.recovery, "sink", *step.sink, "--yes")


def test_a_sink_that_cannot_list_says_so_and_cleans_up_with_yes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setup = Staging(str(tmp_path))
    setup.run(setup.driver(), 0)
    with crash_at("after collect"):
        setup.run(setup.driver(), 1)
    place = importable(monkeypatch, setup.sink())
    assert "has no find_leftovers()" in failed("gc", setup.recovery, "sink", "--sink", place)
    staged = len(setup.warehouse.staged)
    assert staged
    done("gc", setup.recovery, "sink", "--sink", place, "--yes", "--take-over")
    assert not setup.warehouse.staged


def test_uploads_of_lost_attempts_are_listed_and_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, recovery = FakeS3(), str(tmp_path / "rec")
    sink = S3Sink(BUCKET, "p", session_factory=bucket, inline_bytes=0)
    LocalDriver(sink, recovery).run_epoch(0, rows(0))
    with crash_at("after collect"):
        LocalDriver(sink, recovery).run_epoch(1, rows(1))
    given = ("gc", recovery, "sink", "--sink", importable(monkeypatch, sink))
    assert parsed(*given)["leftovers"] == []
    listed = parsed(*given, "--take-over")["leftovers"]
    assert len(listed) == len(bucket.uploads) == 2
    assert all(f"s3://{BUCKET}/p/" in line for line in listed)
    assert done(*given, "--take-over", "--yes") == "2 removed\n"
    assert not bucket.uploads


class RolledStep:
    """A step of an S3 sink that holds rows back in pieces: alone, or with a sink beside it that has parts or none."""

    def __init__(self, tmp_path: Path, shape: str) -> None:
        self.bucket = FakeS3()
        self.recovery = str(tmp_path / "rec")
        self._shape = shape
        self._path = str(tmp_path / "file")

    def sink(self) -> Any:
        sink = S3Sink(BUCKET, "p", session_factory=self.bucket, roll_rows=40, inline_bytes=0)
        if self._shape == "alone":
            return sink
        return FanOutSink(s3=sink, file=FileSink(self._path, parts=1 if self._shape == "beside parts" else None))

    def write(self, *epochs: int) -> None:
        for epoch in epochs:
            rows: list[Any] = [{"id": 10 * epoch + number} for number in range(10)]
            if self._shape == "beside parts":
                rows = [(str(row["id"]), row) for row in rows]
            LocalDriver(self.sink(), self.recovery, options=EpochOptions(worker_count=1)).run_epoch(epoch, [rows])

    @property
    def ids(self) -> list[int]:
        return sorted(json.loads(line)["id"] for body in self.bucket.data().values() for line in body.splitlines())

    @property
    def pieces(self) -> set[str]:
        return {key for key in self.bucket.objects if "/pieces/" in key}


@pytest.fixture(params=["alone", "beside no parts", "beside parts"])
def rolled(request: pytest.FixtureRequest, tmp_path: Path) -> RolledStep:
    return RolledStep(tmp_path, request.param)


@pytest.mark.parametrize("more", [(), ("--take-over",)])
def test_pieces_that_a_state_names_are_spared(
    rolled: RolledStep, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled.write(0, 1, 2)
    held = rolled.pieces
    assert held
    stray = f"{min(held).rpartition('/')[0]}/0000000000-00000-g1-a9-0000000000000000"
    rolled.bucket.objects[stray] = rolled.bucket.objects[min(held)]
    given = ("gc", rolled.recovery, "sink", "--sink", importable(monkeypatch, rolled.sink()), *more)
    assert [line.rpartition("/")[2] for line in parsed(*given)["leftovers"]] == [stray.rpartition("/")[2]]
    assert done(*given, "--yes") == "1 removed\n"
    assert rolled.pieces == held
    rolled.write(3)
    assert rolled.ids == list(range(40))


@pytest.mark.parametrize("more", [(), ("--take-over",)])
def test_pieces_that_a_recorded_epoch_publishes_are_spared(
    rolled: RolledStep, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled.write(0, 1, 2)
    with crash_at("after PREPARED"):
        rolled.write(3)
    given = ("gc", rolled.recovery, "sink", "--sink", importable(monkeypatch, rolled.sink()), *more)
    assert parsed(*given)["leftovers"] == []
    done(*given, "--yes")
    rolled.write(3)
    assert rolled.ids == list(range(40))


def test_a_sink_without_leftovers_says_so(tmp_path: Path) -> None:
    recovery = str(tmp_path / "rec")
    sink = ("--sink", "http", "-o", "url=https://example.org/in")
    assert "leave no data in the target" in failed("gc", recovery, "sink", *sink)


def test_of_several_sinks_all_leftovers_are_listed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FanOutSink(a=FileSink(str(tmp_path / "a")), b=FileSink(str(tmp_path / "b")))
    recovery = str(tmp_path / "rec")
    with crash_at("after collect"):
        LocalDriver(sink, recovery).run_epoch(0, rows(0))
    options = [f"{name}.{key}" for name in "ab" for key in ("sink=file", f"path={tmp_path / name}")]
    given = ["--sink", "fanout", *(word for option in options for word in ("-o", option))]
    listed = parsed("gc", recovery, "sink", *given, "--take-over")["leftovers"]
    assert [line[:3] for line in listed] == ["a: ", "a: ", "b: ", "b: "]
    setup = Staging()
    mixed = FanOutSink(files=FileSink(str(tmp_path / "c")), silent=setup.sink())
    assert mixed.find_leftovers(CleanUpContext("sink", "", 0, states=dict, writer_states=list)) is None, (
        "what one of them tells would look whole"
    )
