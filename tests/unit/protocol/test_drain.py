"""Rows that a sink holds back across epochs: counted, shown, and delivered by a drain or at the end of a batch job."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import BufferedRows, SupportsBufferedRows
from outfall.errors import CapabilityError, FencedError, UnexpectedEpochError
from outfall.protocol.step import EpochOptions
from outfall.recovery import history
from outfall.testing import FakeClock, LocalDriver, crash_at
from tests.unit.support.hoarding import OLDEST, Hoarding, HoardingInParts, HoardingPartition, HoardingParts
from tests.unit.support.journals import entries
from tests.unit.support.setups import Row, Staging
from tests.unit.support.warehouse import StagingSink, Warehouse, staging_name

KINDS: list[type[Hoarding]] = [Hoarding, HoardingInParts]

ARROWS = [
    "before BEGIN",
    "after BEGIN",
    "fake: staged",
    "after collect",
    "after PREPARED",
    "after COMMITTING",
    "fake: published one",
    "before COMPLETED",
    "after COMPLETED",
]


def rows(epoch: int, *numbers: int) -> list[list[Row]]:
    return [[(epoch, "a", number) for number in numbers]]


def run(setup: Hoarding, driver: LocalDriver, batch: int, *numbers: int) -> Any:
    return driver.run_epoch(batch, setup.tasks(rows(batch, *numbers)))


def held(setup: Hoarding) -> list[int]:
    return [summary.buffered_rows for summary in history(setup.recovery)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_is_counted_said_and_drained(
    kind: type[Hoarding], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = kind(str(tmp_path))
    assert run(setup, setup.driver(), 0, 1, 2, 3).counts["rows_held"] == 3
    assert setup.found() == Counter()
    with caplog.at_level("INFO"):
        result = setup.driver().drain()
    assert f"buffered rows 3 (the oldest since {OLDEST.isoformat()})" in caplog.text
    assert result is not None
    assert (result.counts["rows_held"], result.counts["rows_drained"]) == (0, 3)
    assert re.search(
        r"step sink, epoch 1: delivered 3 buffered rows in \S+ s \(0 retries\)$", caplog.text, re.MULTILINE
    )
    assert setup.found() == Counter((0, "a", number) for number in (1, 2, 3))
    assert setup.driver().drain() is None
    assert [(s.epoch, s.batch, s.rows, s.buffered_rows, s.held_since) for s in history(setup.recovery)] == [
        (0, 0, 3, 3, OLDEST),
        (1, None, 0, 0, None),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_wait_are_counted_and_the_command_that_delivers_them_is_named(
    kind: type[Hoarding], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = kind(str(tmp_path))
    with caplog.at_level("INFO"):
        run(setup, setup.driver(), 0, 1, 2, 3)
    *_, completed, waiting = caplog.messages
    assert re.fullmatch(r"step sink, epoch 0: completed 3 rows in \S+ s \(0 retries, 3 rows buffered\)", completed)
    assert "epoch 0: 3 rows, the oldest since 2026-11-21T12:00:00+00:00, are buffered and not in the target" in waiting
    assert waiting.endswith(f"outfall drain {tmp_path} sink")
    caplog.clear()
    setup.driver().drain()
    assert "are buffered" not in caplog.text


def test_a_replay_of_a_completed_epoch_names_rows_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    setup = Hoarding()
    run(setup, setup.driver(), 0, 1)
    caplog.clear()
    assert run(setup, setup.driver(), 0, 1).skipped
    assert "epoch 0: 1 rows, the oldest since" in caplog.text


class Hesitating(HoardingPartition):
    def flush(self, end_of_input: bool) -> None:
        if end_of_input:
            super(HoardingPartition, self).write_batch([self._held.pop(0)])


class HesitatingParts(HoardingParts):
    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> HoardingPartition:
        assert self._context is not None
        return Hesitating(self.warehouse, f"{staging_name(self._context)}-{for_part}", resume_state or [])


def test_a_drain_of_several_epochs_names_no_rows_that_it_delivers_next(caplog: pytest.LogCaptureFixture) -> None:
    setup = HoardingInParts()
    first, second = (LocalDriver(HesitatingParts(setup.warehouse), setup.recovery) for _ in range(2))
    first.run_epoch(0, [[("a", [0, "a", 1]), ("a", [0, "a", 2])]])
    caplog.set_level("INFO")
    caplog.clear()
    result = second.drain()
    assert result is not None
    assert (result.epoch, result.counts["rows_drained"]) == (2, 2)
    assert [line.partition("(")[2] for line in caplog.messages if ": delivered 1 " in line] == [
        "0 retries, 1 rows buffered)", "0 retries)",
    ]  # fmt: skip
    assert "are buffered" not in caplog.text.replace("no rows are buffered", "")


@pytest.mark.parametrize("kind", KINDS)
def test_each_run_names_rows_that_wait_once_in_ten_minutes_and_warns_of_those_that_wait_too_long(
    kind: type[Hoarding], caplog: pytest.LogCaptureFixture
) -> None:
    setup, clock, found = kind(), FakeClock(), []
    clock.seconds = OLDEST.timestamp()
    first, second = (LocalDriver(setup.sink(), setup.recovery, clock=clock) for _ in range(2))
    caplog.set_level("INFO")
    times = [(first, 0), (first, 0), (second, 0), (second, 600), (second, 3000), (second, 1), (second, 1)]
    for batch, (driver, passes) in enumerate(times):
        clock.sleep(passes)
        run(setup, driver, batch, *(() if batch else (1,)))
        found.append([record.levelname for record in caplog.records if "are buffered" in record.getMessage()])
        caplog.clear()
    assert found == [["INFO"], [], ["INFO"], ["INFO"], ["INFO"], ["WARNING"], []]


ENDING = """
import sys
from outfall.protocol.draining import drain
from outfall.protocol.coordinator import EpochCoordinator
from outfall.recovery import recovery_config
from tests.unit.support.hoarding import Hoarding

setup = Hoarding(sys.argv[1])
recovery = recovery_config(sys.argv[1])
for step, run in [("waiting", "a run"), ("drained", "a run"), ("without-run", None)]:
    coordinator = EpochCoordinator(setup.sink(), step, recovery, run=run, options=setup.options())
    ticket = coordinator.begin(0)
    coordinator.finish(ticket, setup.driver().run_tasks(ticket, 0, [[[0, "a", 1]], [[0, "a", 2]]]))
drain(lambda: EpochCoordinator(setup.sink(), "drained", recovery_config(sys.argv[2])))
"""


@pytest.mark.thorough
def test_a_driver_that_ends_warns_of_rows_that_wait(tmp_path: Path) -> None:
    place, link = tmp_path / "chk", tmp_path / "link"
    link.symlink_to(place)
    command = [sys.executable, "-c", ENDING, str(place), str(link)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    (warning,) = [line for line in ended.stderr.splitlines() if "the driver ends" in line]
    assert warning.startswith("step waiting: the driver ends while 2 rows are buffered and not in the target yet.")
    assert warning.endswith(f"outfall drain {place} waiting")


@pytest.mark.parametrize("kind", KINDS)
def test_a_drain_delivers_though_the_ledger_holds_the_last_epoch(kind: type[Hoarding]) -> None:
    setup = kind()
    run(setup, setup.driver(), 0, *range(20))
    assert setup.warehouse.last == 0
    run(setup, setup.driver(), 1, 1)
    setup.driver().drain()
    assert len(setup.found()) == 21
    run(setup, setup.driver(), 2, *range(20))
    setup.driver().drain()
    assert Counter(row[0] for row in setup.found().elements()) == {0: 20, 1: 1, 2: 20}
    assert max(setup.found().values()) == 1


def test_batches_go_on_after_drains_and_the_completed_one_is_skipped() -> None:
    setup = Hoarding()
    for batch in range(3):
        run(setup, setup.driver(), batch, 1)
        setup.driver().drain()
    assert run(setup, setup.driver(), 2, 9).skipped
    with pytest.raises(UnexpectedEpochError, match="Spark runs batch 4, expected was 3"):
        run(setup, setup.driver(), 4, 1)
    with pytest.raises(UnexpectedEpochError, match="Epoch 2 is the last completed one"):
        run(setup, setup.driver(), 1, 1)
    assert run(setup, setup.driver(), 3, 1).epoch == 6
    assert [s.batch for s in history(setup.recovery)] == [0, None, 1, None, 2, None, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ARROWS)
@pytest.mark.parametrize("after", ["drain", "batch", "skip"])
def test_a_drain_that_dies_at_any_arrow_loses_and_repeats_nothing(kind: type[Hoarding], point: str, after: str) -> None:
    setup = kind()
    run(setup, setup.driver(), 0, 1, 2, 3)
    with crash_at(point):
        setup.driver().drain()
    expected = [(0, "a", number) for number in (1, 2, 3)]
    if after == "batch":
        run(setup, setup.driver(), 1, 4)
        expected.append((1, "a", 4))
    if after == "skip":
        assert run(setup, setup.driver(), 0, 8, 9).skipped
    setup.driver().drain()
    assert setup.found() == Counter(expected)


def test_a_drain_settles_what_a_batch_left() -> None:
    setup = Hoarding()
    with crash_at("after PREPARED"):
        run(setup, setup.driver(), 0, *range(9))
    setup.driver().drain()
    assert len(setup.found()) == 9
    assert run(setup, setup.driver(), 0, 1).skipped


def test_an_epoch_that_only_began_is_written_after_the_drain() -> None:
    setup = Hoarding()
    run(setup, setup.driver(), 0, 1)
    with crash_at("after collect"):
        run(setup, setup.driver(), 1, *range(20))
    setup.driver().drain()
    run(setup, setup.driver(), 1, 5)
    setup.driver().drain()
    assert setup.found() == Counter([(0, "a", 1), (1, "a", 5)])


def test_a_query_that_runs_meanwhile_is_fenced() -> None:
    setup = Hoarding()
    driver = setup.driver()
    run(setup, driver, 0, 1)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(1)
    answers = driver.run_tasks(ticket, 1, setup.tasks(rows(1, 2)))
    setup.driver().drain()
    with pytest.raises(FencedError):
        coordinator.finish(ticket, answers)
    with pytest.raises(FencedError):
        driver.coordinator().begin(1)


def test_nothing_held_or_nothing_written_yet_leaves_no_entry() -> None:
    setup = Hoarding()
    assert setup.driver().drain() is None
    assert entries(setup.recovery) == []
    run(setup, setup.driver(), 0, *range(10))
    before = entries(setup.recovery)
    assert setup.driver().drain() is None
    assert entries(setup.recovery) == before


def test_parts_and_states_without_an_answer_keep_their_count() -> None:
    setup = HoardingInParts()
    driver = setup.driver()
    driver.run_epoch(0, [[("0", [0, "a", 0]), ("1", [0, "a", 1]), ("2", [0, "a", 2])]])
    driver.run_epoch(1, [[("0", [1, "a", 0])]])
    assert held(setup) == [3, 4]
    dynamic = Hoarding()
    run(dynamic, dynamic.driver(), 0, 1, 2, 3)
    LocalDriver(dynamic.sink(), dynamic.recovery).run_epoch(1, [[]])
    assert held(dynamic) == [3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_batch_job_leaves_nothing_held(kind: type[Hoarding]) -> None:
    setup = kind()
    options = EpochOptions(end_of_input=True, any_later=True, worker_count=setup.options().worker_count)
    result = run(setup, LocalDriver(setup.sink(), setup.recovery, options=options), 7, 1, 2)
    assert result.counts["rows_held"] == 0
    assert len(setup.found()) == 2


def test_a_log_that_holds_rows_back_is_not_given_up() -> None:
    setup = Hoarding()
    run(setup, setup.driver(), 0, 1, 2, 3)
    assert not setup.driver().coordinator().withdraw()


def test_a_job_of_a_named_epoch_goes_on_after_a_drain() -> None:
    setup = Hoarding()
    options = EpochOptions(any_later=True, worker_count=2)

    def job(number: int) -> bool:
        driver = LocalDriver(setup.sink(), setup.recovery, options=options)
        return bool(run(setup, driver, number, 1).skipped)

    assert not job(20261121)
    setup.driver().drain()
    assert job(20261121)
    assert not job(20261122)
    with pytest.raises(UnexpectedEpochError, match=r"the job has epoch 20261121.*Epoch 20261122 is the last"):
        job(20261121)


def test_a_sink_that_says_nothing_of_held_rows_cannot_be_drained() -> None:
    with pytest.raises(CapabilityError, match="StagingSink has no SupportsBufferedRows"):
        Staging().driver().drain()


class Miser(HoardingPartition):
    def flush(self, end_of_input: bool) -> None:
        pass


class Misers(HoardingParts):
    def build_part(self, step_id: str, for_part: str, resume_state: list[Any] | None) -> HoardingPartition:
        return Miser(self.warehouse, f"miser-{for_part}", resume_state or [])


def test_a_part_that_holds_on_in_a_drain_is_an_error_and_loses_nothing() -> None:
    setup = HoardingInParts()
    run(setup, setup.driver(), 0, 1)
    driver = LocalDriver(Misers(setup.warehouse), setup.recovery)
    driver.sink.kind = setup.sink().kind
    with pytest.raises(CapabilityError, match=r"Miser still buffers 1 rows after flush\(end_of_input=True\)"):
        driver.drain()
    setup.driver().drain()
    assert len(setup.found()) == 1


class Stateless(StagingSink, SupportsBufferedRows[Any]):
    def buffered_rows(self, state: Any) -> BufferedRows:
        return BufferedRows(0)


def test_a_sink_without_state_cannot_hold_rows() -> None:
    with pytest.raises(CapabilityError, match="has SupportsBufferedRows but no state"):
        LocalDriver(Stateless(Warehouse()), Staging().recovery).coordinator()


class Unflushed(HoardingParts):
    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
        partition = super().build_part(step_id, for_part, resume_state)
        partition.flush = None  # type: ignore[assignment,method-assign]
        return partition


def test_a_part_of_a_holding_sink_needs_flush() -> None:
    setup = HoardingInParts()
    with pytest.raises(CapabilityError, match=r"no flush\(\)"):
        run(setup, LocalDriver(Unflushed(setup.warehouse), setup.recovery), 0, 1)


def test_held_rows_are_checked() -> None:
    with pytest.raises(ValueError, match="is -1"):
        BufferedRows(-1)
    with pytest.raises(ValueError, match="no time zone"):
        BufferedRows(1, OLDEST.replace(tzinfo=None))
