"""`outfall move`: a target that moved keeps its checkpoint, another one is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from outfall.capabilities import TargetContext
from outfall.errors import ConfigurationError, ForeignRecordsError, TargetLostError
from outfall.file import FileSink
from outfall.redis import RedisSink
from outfall.testing import LocalDriver, crash_at
from outfall.wrappers import ExactlyOnceSink, FanOutSink
from tests.one_each import thorough
from tests.unit.support.command import FileStep, done, failed, importable, parsed, rows, tree
from tests.unit.support.setups import Staging
from tests.unit.support.warehouse import StagingSink
from tests.unit.versioned.test_draws import MemoryStore


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class MovableStep(FileStep):
    """Files of a step in a directory that can be moved."""

    def __init__(self, place: Path, **options: Any) -> None:
        super().__init__(place)
        self.options = options
        self._name_sink()

    def _name_sink(self) -> None:
        given = {"path": str(self.path), **self.options}
        self.words = ["--sink", "file", *(word for name in given for word in ("-o", f"{name}={given[name]}"))]

    def driver(self) -> LocalDriver:
        return LocalDriver(FileSink(str(self.path), **self.options), self.recovery)

    def write(self, *epochs: int) -> None:
        for epoch in epochs:
            tasks: Any = rows(epoch)
            if "parts" in self.options:
                tasks = [[(str(row["id"]), row) for row in task] for task in tasks]
            self.driver().run_epoch(epoch, tasks)

    def move_directory(self) -> None:
        former, self.path = self.path, self.path.with_name("elsewhere")
        shutil.move(former, self.path)
        self._name_sink()

    def rows_in_files(self) -> list[tuple[int, int]]:
        lines = [line for path in self.path.glob("*.jsonl") for line in path.read_text().splitlines()]
        return sorted((row["epoch"], row["id"]) for row in map(json.loads, lines))


@pytest.mark.parametrize("options", [{}, {"parts": 2}], ids=str)
def test_a_symbolic_link_at_the_old_path_keeps_the_checkpoint(tmp_path: Path, options: dict[str, Any]) -> None:
    step = MovableStep(tmp_path, **options)
    step.write(0)
    old = step.path
    step.move_directory()
    with pytest.raises(ForeignRecordsError, match=f"or leave a symbolic link at {old};"):
        step.write(1)
    there, step.path = step.path, old
    with pytest.raises(TargetLostError, match=r"if it was moved or renamed, .* run outfall move"):
        step.write(1)
    shutil.rmtree(old, ignore_errors=True)
    old.symlink_to(there)
    step.write(1)
    assert {epoch for epoch, _ in step.rows_in_files()} == {0, 1}


@pytest.mark.parametrize("options", [{}, thorough({"parts": 2}), thorough({"roll_bytes": 100})], ids=str)
@pytest.mark.parametrize("crash", [None, thorough("after collect"), "after PREPARED", thorough("after commit")])
def test_a_directory_that_moved_keeps_its_checkpoint(
    tmp_path: Path, options: dict[str, Any], crash: str | None
) -> None:
    step = MovableStep(tmp_path, **options)
    step.write(0, 1)
    if crash is not None:
        with crash_at(crash):
            step.write(2)
    step.move_directory()
    with pytest.raises(ForeignRecordsError, match="target itself has moved, stop the query and run outfall move"):
        step.write(2)
    before = tree(tmp_path)
    text = failed("move", step.recovery, "sink", *step.words)
    assert f"from file:{tmp_path}/out-sink to file:{step.path}" in text
    assert "the step's record is there: generation " in text
    assert "add --yes" in text
    assert tree(tmp_path) == before
    assert parsed("move", step.recovery, "sink", *step.words, "--yes")["moved"]
    assert "nothing to move" in done("move", step.recovery, "sink", *step.words)
    step.write(2, 3)
    assert step.rows_in_files() == step.expected(0, 1, 2, 3)


def test_another_directory_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    step, other = MovableStep(tmp_path), FileStep(tmp_path, "other")
    step.write(0)
    other.recovery = str(tmp_path / "its")
    other.write(0)
    shutil.copytree(step.path, old := tmp_path / "old")
    step.write(1)
    before = tree(tmp_path)
    for place, text in (
        (other.path, "has no record of this step"),
        (tmp_path / "nothing", "has no record of this step"),
        (old, "is behind the recovery data"),
    ):
        for yes in ((), ("--yes",)):
            assert text in failed("move", step.recovery, "sink", "--sink", "file", "-o", f"path={place}", *yes)
    assert tree(tmp_path) == before


def test_each_sink_of_a_fan_out_is_moved_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fan_out(place: str) -> FanOutSink:
        return FanOutSink(a=FileSink(str(tmp_path / "a")), b=FileSink(str(tmp_path / place)))

    recovery = str(tmp_path / "rec")
    LocalDriver(fan_out("b"), recovery).run_epoch(0, rows(0))
    shutil.move(tmp_path / "b", tmp_path / "c")
    with pytest.raises(ForeignRecordsError, match="run outfall move"):
        LocalDriver(fan_out("c"), recovery).run_epoch(1, rows(1))
    named = importable(monkeypatch, fan_out("c"))
    text = done("move", recovery, "sink", "--sink", named, "--yes")
    assert f"b: from file:{tmp_path}/b to file:{tmp_path}/c" in text
    assert "a: " not in text
    LocalDriver(fan_out("c"), recovery).run_epoch(1, rows(1))
    found = [line for path in (tmp_path / "c").glob("part-*") for line in path.read_text().splitlines()]
    assert len(found) == 8


def test_without_a_record_the_user_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []

    class Elsewhere(StagingSink):
        def target(self) -> str:
            return "elsewhere"

        def move_target(self, context: TargetContext[Any], recorded: str) -> None:
            renamed.append(recorded)

    Elsewhere.__qualname__, Elsewhere.__module__ = "StagingSink", StagingSink.__module__
    setup, recovery = Staging(), str(tmp_path / "rec")
    LocalDriver(setup.sink(), recovery).run_epoch(0, [["a"]])
    named = importable(monkeypatch, Elsewhere(setup.warehouse))
    assert "nothing proves that this is the same target" in failed("move", recovery, "sink", "--sink", named)
    assert renamed == []
    done("move", recovery, "sink", "--sink", named, "--yes")
    assert renamed == ["warehouse"]
    LocalDriver(Elsewhere(setup.warehouse), recovery).run_epoch(1, [["b"]])


def test_a_step_without_records_of_another_sink_or_with_other_parts_is_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = MovableStep(tmp_path)
    assert "nothing is recorded" in failed("move", step.recovery, "sink", *step.words, "--yes")

    def once(parts: int) -> ExactlyOnceSink:
        return ExactlyOnceSink(FileSink(str(step.path)), offset="id", source_partition="epoch", parts=parts)

    driver = LocalDriver(once(2), step.recovery)
    driver.run_epoch(0, [[(str(row["id"]), row) for row in rows(0)[0]]])
    assert "of the sink exactly-once" in failed("move", step.recovery, "sink", *step.words, "--yes")
    named = importable(monkeypatch, once(3))
    assert "3 parts now, and 2 parts are recorded" in failed("move", step.recovery, "sink", "--sink", named, "--yes")


def test_a_record_with_an_address_in_its_name_is_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr("outfall.redis.sink.RedisRequestSink.records", lambda self: store)
    old, new = (RedisSink(f"redis://{host}/0", "k:{id}", layout="json") for host in ("a", "b"))
    begun = {1: "t"}
    context = TargetContext[None]("sink", "i", 0, None, False, {}, 1, 1, token="t", begun=begun)
    old.open_target(context)
    (former,) = (name for name in store.texts if name.startswith("step:"))
    found = new.find_moved(context, old.target())
    assert found is not None
    assert (found.generation, found.token) == (1, "t")
    assert former in store.texts
    for _ in range(2):
        new.move_target(context, old.target())
        assert new.find_moved(context, old.target()) == found
        (now,) = (name for name in store.texts if name.startswith("step:"))
        assert now != former
    other = RedisSink("redis://b/0", "l:{id}", layout="json")
    with pytest.raises(ConfigurationError, match=r"'l:\{id\}' now, and 'k:\{id\}' is recorded"):
        other.find_moved(context, old.target())
