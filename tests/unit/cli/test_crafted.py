"""Entries that nobody has written: commands name the damage, end, and keep their memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from outfall.errors import RecordError
from outfall.recovery.location import translated_errors
from outfall.recovery.spark_checkpoint import SparkCheckpoint
from tests.one_each import thorough
from tests.unit.support.command import FileStep, run


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStep:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    step = FileStep(tmp_path)
    step.write(0)
    return step


def newest(step: FileStep) -> Path:
    return max(Path(step.recovery, "outfall", "sink").glob("0*.json"))


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def read_by_commands(step: FileStep, tmp_path: Path) -> str:
    """What `status` prints; each command that reads a log ends without an unexpected error."""
    for words in (["report", "-o", tmp_path / "report.html"], ["show", "sink", "0"], ["reset", "sink", "--json"]):
        found = run(words[0], step.recovery, *words[1:])
        assert found.exit_code in (0, 1)
        assert "unexpected" not in found.output
    return run("status", step.recovery).output


@pytest.mark.parametrize(
    "changed",
    [
        {"time": "0001-01-01T00:00:00+14:00"},
        {"seconds": math.inf},
        {"totals": {"rows": 10**400}},
        thorough({"time": "9999-12-31T23:59:59-14:00"}),
        thorough({"seconds": math.nan}),
        thorough({"seconds": 1e308, "task_seconds": -1e308}),
        thorough({"counts": {"rows": 10**400}}),
        thorough({"epoch": 10**400}),
        thorough({"held_since": "0001-01-01T00:00:00+14:00"}),
    ],
    ids=str,
)
def test_values_that_cannot_be_shown_are_damage(step: FileStep, tmp_path: Path, changed: dict[str, Any]) -> None:
    entry = newest(step)
    entry.write_text(json.dumps(json.loads(entry.read_text()) | changed))
    assert "is damaged" in read_by_commands(step, tmp_path)


def test_an_epoch_of_almost_no_time_has_a_rate(step: FileStep, tmp_path: Path) -> None:
    entry = newest(step)
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"seconds": 5e-324, "counts": {"rows": 2**62}}))
    assert "completed" in read_by_commands(step, tmp_path)


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (make_sparse, "it has 1,099,511,627,776 bytes"),
        thorough(lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    ],
    ids=["pipe", "sparse", "device"],
)
def test_what_is_no_entry_is_not_read(step: FileStep, tmp_path: Path, put: Callable[[Path], object], why: str) -> None:
    entry = newest(step)
    entry.unlink()
    put(entry)
    assert why in read_by_commands(step, tmp_path)


def test_pipes_of_others_do_not_hang(step: FileStep, tmp_path: Path) -> None:
    states = newest(step).parent / "states"
    states.mkdir(exist_ok=True)
    os.mkfifo(states / "g9-driver.heartbeat")
    os.mkfifo(Path(step.recovery, "metadata"))
    assert "completed" in read_by_commands(step, tmp_path)
    assert SparkCheckpoint(step.recovery).query_id() is None


def test_what_does_not_fit_into_memory_is_named() -> None:
    with pytest.raises(RecordError, match="does not fit into memory"), translated_errors("reading", "sink", "there"):
        raise MemoryError
