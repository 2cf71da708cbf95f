"""Committables of more than 64 KiB lie beside the log, as states do."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outfall.cli.commands.show import read_epoch
from outfall.errors import RecordError
from outfall.recovery import RecoveryConfig, SqliteRecoveryConfig, copy_step, recovery_config
from outfall.recovery.entries import LARGE
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from tests.unit.support.golden import Carrier
from tests.unit.support.journals import entries, entry_files
from tests.unit.support.kafka_partition import MemoryKafka
from tests.unit.support.points import meanwhile

BIG = "x" * (LARGE + 1)


class CarrierJob:
    """A step whose committables are its rows."""

    def __init__(self, recovery: RecoveryConfig) -> None:
        self.recovery = recovery
        self.published: list[Any] = []

    def run(self, epoch: int, *rows: Any) -> bool:
        driver = LocalDriver(Carrier("target", self.published), self.recovery)
        return driver.run_epoch(epoch, [list(rows)]).skipped

    def die(self, point: str, epoch: int, *rows: Any) -> None:
        with crash_at(point):
            self.run(epoch, *rows)


STORES: dict[str, Callable[[Path], RecoveryConfig]] = {
    "files": lambda path: recovery_config(str(path)),
    "objects": lambda path: recovery_config(f"memory://{path}"),
    "sqlite": lambda path: SqliteRecoveryConfig(str(path / "db")),
    "kafka": lambda path: MemoryKafka(),
    "memory": lambda path: MemoryRecoveryConfig(),
}


@pytest.fixture(params=STORES)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> CarrierJob:
    return CarrierJob(STORES[request.param](tmp_path))


def recorded(job: CarrierJob) -> list[dict[str, Any]]:
    """The values of the committables of the newest PREPARED, as its entry holds them."""
    prepared = [entry for entry in entries(job.recovery) if entry["kind"] == "prepared"][-1]
    return [item["value"] for item in prepared["committables"]]


def beside(path: Path) -> list[Path]:
    return list(path.glob("outfall/sink/states/*"))


def test_a_large_one_is_finished_by_a_later_driver_from_beside_the_log(job: CarrierJob) -> None:
    job.run(0, "a")
    job.die("after PREPARED", 1, BIG)
    (value,) = recorded(job)
    assert value["blob"]["length"] > LARGE
    assert value["text"] is None
    assert job.run(1, "other rows")
    assert job.published == ["a", BIG]


@pytest.mark.parametrize(("size", "found"), [(LARGE - len('[""]'), 0), (LARGE - len('[""]') + 1, 1)])
def test_only_those_above_64_kib_lie_there(tmp_path: Path, size: int, found: int) -> None:
    CarrierJob(recovery_config(str(tmp_path))).run(0, "x" * size)
    assert len(beside(tmp_path)) == found


def test_the_entry_stays_small(tmp_path: Path) -> None:
    CarrierJob(recovery_config(str(tmp_path))).run(0, BIG * 100)
    assert max(file.stat().st_size for file in entry_files(tmp_path)) < 5_000


def test_those_that_no_longer_count_are_removed(tmp_path: Path) -> None:
    job = CarrierJob(recovery_config(str(tmp_path)))
    for epoch in range(4):
        job.die("before PREPARED", epoch, BIG)
        job.run(epoch, BIG)
    assert len(beside(tmp_path)) == 1, "the last epoch's, which `show` shows"
    job.run(4, "small")
    assert beside(tmp_path) == []


def test_one_that_is_recorded_and_not_completed_outlives_the_late_clean_up_of_an_older_driver(tmp_path: Path) -> None:
    job = CarrierJob(recovery_config(str(tmp_path)))
    with meanwhile("after COMPLETED", partial(job.die, "after PREPARED", 1, BIG)):
        job.run(0, "a")
    assert job.run(1, "other rows")
    assert job.published == ["a", BIG]


@pytest.mark.parametrize("lost", [True, False])
def test_a_missing_or_damaged_one_is_refused(tmp_path: Path, lost: bool) -> None:
    job = CarrierJob(recovery_config(str(tmp_path)))
    job.die("after PREPARED", 0, BIG)
    (file,) = beside(tmp_path)
    file.chmod(0o600)
    if lost:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b"x", b"y", 1))
    with pytest.raises(RecordError, match="restore the recovery data from a copy"):
        job.run(0, BIG)
    assert job.published == []


def test_an_older_entry_that_holds_a_large_one_itself_is_read(tmp_path: Path) -> None:
    job = CarrierJob(recovery_config(str(tmp_path)))
    job.die("after PREPARED", 0, BIG)
    *_, newest = entry_files(tmp_path)
    (file,) = beside(tmp_path)
    entry = json.loads(newest.read_text())
    entry["committables"][0]["value"] |= {"text": file.read_text(), "blob": None}
    newest.chmod(0o600)
    newest.write_text(json.dumps(entry))
    file.unlink()
    assert job.run(0, "other rows")
    assert job.published == [BIG]


def test_a_step_that_is_copied_takes_it_along(job: CarrierJob) -> None:
    job.run(0, "a")
    job.die("after PREPARED", 1, BIG)
    other = CarrierJob(MemoryRecoveryConfig())
    other.published = job.published
    copy_step(job.recovery, other.recovery)
    assert other.run(1, "other rows")
    assert other.published == ["a", BIG]


def test_it_is_shown_as_a_small_one_is(job: CarrierJob) -> None:
    job.run(0, BIG)
    prepared = next(entry for entry in read_epoch(job.recovery, "sink").entries if entry["kind"] == "prepared")
    assert prepared["committables"][0]["value"]["value"] == [BIG]
