"""The suite around its checks: reports, names, what does not apply, scripts that play a schedule again."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outfall import capabilities
from outfall.capabilities import Guarantee
from outfall.capability_checks import resolve
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import LocalDriver, MemoryRecoveryConfig, SinkConformance, SinkHarness, run_conformance
from outfall.testing.conformance import CHECKS, ConformanceError, NotClaimedError, run_check
from outfall.testing.conformance.driver import copied
from outfall.testing.conformance.faults import when
from outfall.testing.conformance.rows import Content, dealt, frozen
from outfall.testing.conformance.schedules import (
    Action,
    BeginBeside,
    Crash,
    LostReply,
    PartialCommit,
    Restart,
    Sleep,
    Stall,
    Wake,
    WakeWithin,
    Write,
    play,
)
from outfall.testing.conformance.search import search
from outfall.testing.conformance.spying import SpiedSink
from outfall.testing.conformance.stepping import Suspended
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials
from outfall.trace_points import listen, reached
from tests.unit.support import conforming
from tests.unit.support.broken_sinks import careless, databases, filed, staged
from tests.unit.support.warehouse import StagingSink


def test_every_check_is_a_test_of_the_class() -> None:
    assert {name for name in dir(SinkConformance) if name.startswith("test_")} == {f"test_{name}" for name in CHECKS}


def test_a_report_names_what_passed_failed_and_did_not_apply(tmp_path: Path) -> None:
    checks = ["one_epoch", "lost_reply_of_a_commit", "parts_added"]
    report = run_conformance(staged.CommitsTwice(), tmp_path, checks=checks)
    assert [(result.check, result.outcome) for result in report.results] == [
        ("one_epoch", "passed"),
        ("lost_reply_of_a_commit", "failed"),
        ("parts_added", "not applicable"),
    ]
    assert not report.passed
    assert "a dynamic sink has no parts" in str(report)


class GivesNoLose(conforming.Staging):
    """Of a committer that takes what is gone for committed: without `lose` nobody can tell."""

    strict: bool | None = None
    lose = SinkHarness.lose

    def make_sink(self, target: Any) -> Any:
        return staged.TrustingSink(target)


def test_a_claim_of_exactly_once_is_not_green_while_a_check_is_left_untried(tmp_path: Path) -> None:
    report = run_conformance(GivesNoLose(), tmp_path, checks=["one_epoch", "lost_before_committing", "parts_added"])
    assert not report.passed
    assert [result.check for result in report.not_tried] == ["lost_before_committing"]
    assert f"Not tried: lost_before_committing; not run: {len(CHECKS) - 3} of {len(CHECKS)} checks." in str(report)


def test_a_check_that_lost_nothing_says_so(tmp_path: Path) -> None:
    class LosesFiles(databases.CommitsWithoutStagedRows):
        lose = SinkHarness.lose

    report = run_conformance(LosesFiles(), tmp_path, checks=["lost_before_committing", "lost_after_committing"])
    assert [result.outcome for result in report.results] == ["not tried", "not tried"]
    assert report.results[0].text.startswith("the epoch created no file to remove, and the test has no lose()")
    assert not report.passed


@pytest.mark.parametrize(
    ("strict", "claim", "passes"), [(False, None, True), (True, None, False), (None, Guarantee.AT_LEAST_ONCE, True)]
)
def test_an_author_says_whether_what_is_untried_fails_the_run(
    strict: bool | None, claim: Guarantee | None, passes: bool, tmp_path: Path
) -> None:
    harness = GivesNoLose()
    harness.strict, harness.claim = strict, claim
    report = run_conformance(harness, tmp_path, checks=["lost_before_committing"])
    assert (report.passed, [result.outcome for result in report.results]) == (passes, ["not tried"])


def test_pytest_fails_where_a_strict_claim_is_left_untried(tmp_path: Path) -> None:
    class Suite(GivesNoLose, SinkConformance):
        pass

    lost: Any = Suite.test_lost_before_committing  # type: ignore[attr-defined]
    with pytest.raises(pytest.fail.Exception, match=r"not tried: the test has no lose\(\)\nWhat to do: add"):
        lost(Suite(), tmp_path)
    Suite.strict = False
    with pytest.raises(pytest.skip.Exception, match=r"not tried: the test has no lose\(\)"):
        lost(Suite(), tmp_path)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_name_of_a_check_that_stalls_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_conformance(filed.HoldsALockAcrossAttempts(), tmp_path, checks=["stalled_attempt", "one_epoch"])
    assert [result.outcome for result in report.results] == ["failed", "passed"]
    assert "no progress in the check stalled_attempt for 1 s" in capsys.readouterr().err
    words = "the check stalled: no progress for 1 s.*an attempt was suspended at"
    assert re.search(words, report.results[0].text, re.DOTALL), report


def test_what_cannot_be_seen_of_a_disk_in_memory_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.testing.conformance.checks.power._is_in_memory", lambda path: True)

    (result,) = run_conformance(filed.NeverSyncs(), tmp_path, checks=["loss_of_power"]).results
    assert (result.outcome, result.strict) == ("not tried", True)
    assert "os.fsync was never called" in result.text


@pytest.mark.thorough
def test_what_c_code_syncs_is_seen(tmp_path: Path) -> None:
    """A database of SQLite, which makes no call through `os`."""

    class Database(SinkHarness):
        claim = Guarantee.AT_LEAST_ONCE

        def new_target(self, directory: Path) -> Path:
            with closing(sqlite3.connect(directory / "rows.db")) as db, db:
                db.execute("CREATE TABLE rows (row TEXT)")
            return directory

        def make_sink(self, target: Path) -> DatabaseSink:
            return DatabaseSink(target / "rows.db")

        def read(self, target: Path) -> list[Any]:
            with closing(sqlite3.connect(target / "rows.db")) as db:
                return [json.loads(row) for (row,) in db.execute("SELECT row FROM rows")]

    assert run_conformance(Database(), tmp_path / "synced", checks=["loss_of_power"]).passed
    monkeypatched = pytest.MonkeyPatch()
    with monkeypatched.context() as patch:
        patch.setattr(DatabaseSink, "pragma", "PRAGMA synchronous = OFF")
        (result,) = run_conformance(Database(), tmp_path / "unsynced", checks=["loss_of_power"]).results
    assert result.outcome == "failed"
    assert "not synced were rows.db" in result.text


class DatabaseSink(DynamicSink[Any]):
    """Appends to a table."""

    pragma = "PRAGMA synchronous = FULL"

    def __init__(self, path: Path) -> None:
        self.path = path

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return DatabasePartition(self.path, self.pragma)


class DatabasePartition(StatelessSinkPartition[Any]):
    def __init__(self, path: Path, pragma: str) -> None:
        self._path = path
        self._pragma = pragma

    def write_batch(self, values: list[Any]) -> None:
        with closing(sqlite3.connect(self._path)) as db:
            db.execute(self._pragma)
            with db:
                db.executemany("INSERT INTO rows VALUES (?)", [[json.dumps(value)] for value in values])


def test_a_report_needs_no_directory() -> None:
    assert run_conformance(conforming.Staging(), checks=["one_epoch"]).passed


def test_an_unknown_check_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="'one_epoch'"):
        run_conformance(conforming.Staging(), checks=["one_epok"])


@pytest.mark.parametrize(("most_cases", "most"), [(1, 1), (6, 6), (20, 20), (21, 21), (None, 6), (19, 6), (6, 19)])
def test_fewer_cases_are_spread_over_all_of_them(most_cases: int | None, most: int, tmp_path: Path) -> None:
    harness = conforming.Staging()
    harness.most_cases = most_cases
    chosen = Trials.create(harness, tmp_path).chosen([(step, later) for step in range(10) for later in (0, 1)], most)
    most = min(most, most_cases or most)
    assert len(set(chosen)) == min(most, 20)
    if most == 6:
        assert {later for _, later in chosen} == {0, 1}
        assert {step // 3 for step, _ in chosen} >= {0, 1, 2}


def test_a_given_up_check_is_reported_with_its_reason(tmp_path: Path) -> None:
    class GivesUp(conforming.Staging):
        not_claimed = {"one_epoch": "it is Sunday"}

    with pytest.raises(NotClaimedError, match="it is Sunday"):
        run_check(GivesUp(), "one_epoch", tmp_path)


def test_giving_up_a_check_that_is_not_there_is_refused(tmp_path: Path) -> None:
    class Misspelt(conforming.Staging):
        not_claimed = {"one_epoc": "it is Sunday"}

    with pytest.raises(ConfigurationError, match="one_epoch"):
        run_check(Misspelt(), "several_epochs", tmp_path)


def test_a_harness_whose_rows_are_equal_is_an_error(tmp_path: Path) -> None:
    class SameRows(conforming.Staging):
        def row(self, number: int) -> Any:
            return {"id": 1}

    (result,) = run_conformance(SameRows(), tmp_path, checks=["one_epoch"]).results
    assert "create a distinct row for each number" in result.text


def test_a_sink_that_fails_in_any_other_process_is_at_fault_and_not_left_out(tmp_path: Path) -> None:
    first = os.getpid()

    class OneProcess(SinkHarness):
        def new_target(self, directory: Path) -> str:
            return str(directory)

        def make_sink(self, target: str) -> FileSink:
            if os.getpid() != first:
                raise RuntimeError("only in the first process")
            return FileSink(target)

        def read(self, target: str) -> list[Any]:
            return [json.loads(line) for file in Path(target).glob("part-*") for line in file.open()]

    checks = ["tasks_in_processes_of_their_own", "killed_at_every_step", "memory_over_epochs"]
    report = run_conformance(OneProcess(), tmp_path, checks=checks)
    assert [result.outcome for result in report.results] == ["failed"] * 3
    assert all("an epoch failed in a separate process: RuntimeError: only in" in r.text for r in report.results)


class TakingItsTime(StatelessSinkPartition[Any]):
    """Closes with a thread that ends a moment later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self._closed.wait()
        time.sleep(0.05)

    def write_batch(self, values: list[Any]) -> None:
        with self._path.open("a") as file:
            file.writelines(json.dumps(value) + "\n" for value in values)

    def close(self) -> None:
        self._closed.set()


class TakingItsTimeSink(DynamicSink[Any]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def build(self, step_id: str, worker_index: int, worker_count: int) -> TakingItsTime:
        return TakingItsTime(self._path)


@pytest.mark.thorough
def test_a_thread_may_take_a_moment_to_end(tmp_path: Path) -> None:
    class Harness(SinkHarness):
        def new_target(self, directory: Path) -> Path:
            return directory / "rows"

        def make_sink(self, target: Path) -> TakingItsTimeSink:
            return TakingItsTimeSink(target)

        def read(self, target: Path) -> list[Any]:
            return [json.loads(line) for line in target.open()] if target.exists() else []

    report = run_conformance(Harness(), tmp_path, checks=["files_and_threads_stay_flat"])
    assert report.passed, report


def test_a_claim_of_the_test_counts_for_a_sink_that_declares_nothing(tmp_path: Path) -> None:
    assert Trial.create(careless.AtLeastOnce(), tmp_path).claim == Guarantee.AT_LEAST_ONCE
    assert Trial.create(careless.ClaimsTooMuch(), tmp_path).claim == Guarantee.EXACTLY_ONCE


def test_a_fault_says_when_from_the_outside_in() -> None:
    with pytest.raises(ConformanceError) as caught, when("outside"), when("inside"):
        raise ConformanceError("rows are missing", do="write them")
    assert str(caught.value) == "rows are missing.\nWhen: outside: inside.\nWhat to do: write them."


def test_an_observed_sink_is_of_its_kind_and_its_copies_are_observed_too() -> None:
    sink = StagingSink(conforming.SharedWarehouse())
    observed = SpiedSink(sink)
    own, inner = resolve(observed), resolve(sink)
    assert (own.kind(), own.target(), own.fixed) == (inner.kind(), inner.target(), False)
    names = [name for name in capabilities.__all__ if name.startswith(("Supports", "DeclaresGuarantee"))]
    for feature in (getattr(capabilities, name) for name in names):
        assert (feature in own.capabilities) == (feature in inner.capabilities), feature
    for copied_sink in (copy.copy(observed), pickle.loads(pickle.dumps(observed)), copied(observed)):
        assert isinstance(copied_sink, SpiedSink)
        assert isinstance(copied_sink.delegate, StagingSink)


def test_every_call_of_an_observed_sink_is_announced(tmp_path: Path) -> None:
    steps: list[str] = []
    stop = listen(steps.append)
    try:
        for sink, rows in ((FileSink(tmp_path / "a"), [1]), (FileSink(tmp_path / "b", parts=1), [("k", 1)])):
            LocalDriver(SpiedSink(sink), MemoryRecoveryConfig()).run_epoch(0, [rows])
    finally:
        stop()
    methods = ("list_parts", "bind", "check_target", "open_target", "seal", "clean_up", "flush", "prepare_commit")
    called = {f"sink: {moment} {method}" for moment in ("before", "after") for method in methods}
    opened = {f"sink: before {method}" for method in ("build", "build_part", "create_committer")}
    assert called | opened | {"sink: before committer.commit"} <= set(steps)


@pytest.mark.parametrize(
    ("tasks", "first_empty", "expected"),
    [(1, True, [[1, 2, 3]]), (2, False, [[1, 3], [2]]), (3, True, [[], [1, 3], [2]]), (4, False, [[1], [2], [3], []])],
)
def test_rows_are_dealt_to_tasks(tasks: int, first_empty: bool, expected: list[list[int]]) -> None:
    assert dealt([1, 2, 3], tasks, first_empty=first_empty) == expected


def test_rows_are_told_apart_by_content_whatever_holds_it() -> None:
    assert frozen({"a": [1, (2, 3)]}) == frozen({"a": (1, [2, 3])})
    assert frozen({"a": 1}) != frozen({"a": 2})


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lambda rows: rows.pop(), "of its 2 rows 1 are missing"),
        (lambda rows: rows.append(rows[0]), "are duplicated"),
        (lambda rows: rows.append({"id": "?"}), "were never sent"),
    ],
)
def test_what_a_reader_finds_is_compared(tamper: Any, words: str, tmp_path: Path) -> None:
    class Claimed(careless.AtLeastOnce):
        claim = Guarantee.EXACTLY_ONCE

    trial = Trial.create(Claimed(), tmp_path)
    trial.run(trial.driver(), trial.bring_numbers(0, [[1, 2]]))
    trial.verify()
    tamper(trial.target)
    with pytest.raises(ConformanceError, match=words):
        trial.verify()


def test_a_skipped_epoch_counts_the_content_that_was_there_before(tmp_path: Path) -> None:
    trial = Trial.create(conforming.Staging(), tmp_path)
    trial.run_until("before PREPARED", trial.bring_numbers(0, [[1]]))
    trial.run_until("after PREPARED", trial.bring_numbers(0, [[]]))
    assert trial.run(trial.driver(), trial.bring_numbers(0, [[], []])).skipped
    trial.verify()


def test_a_skipped_epoch_counts_its_own_rows_if_a_later_driver_completed_it_with_them(tmp_path: Path) -> None:
    trial = Trial.create(conforming.Staging(), tmp_path)
    content = trial.bring_numbers(0, [[1]])
    trial.run_until("after COMPLETED", trial.bring_numbers(0, [[1]]))
    assert trial.run(trial.driver(), content).skipped
    trial.verify()


def test_at_least_once_may_have_a_row_twice_and_one_of_a_lost_attempt(tmp_path: Path) -> None:
    trial = Trial.create(careless.AtLeastOnce(), tmp_path)
    trial.bring_numbers(0, [[1, 2, 3]])
    trial.run(trial.driver(), Content(0, ((1, 2),)))
    trial.target.append(trial.harness.row(1))
    trial.target.append(trial.harness.row(3))
    trial.verify()
    trial.target.remove(trial.harness.row(2))
    with pytest.raises(ConformanceError, match="are missing"):
        trial.verify()


@pytest.mark.thorough
def test_a_schedule_that_fails_prints_a_script_that_fails_too(tmp_path: Path) -> None:
    (result,) = run_conformance(staged.CommitsTwice(), tmp_path, checks=["random_schedules"]).results
    assert result.outcome == "failed"
    script = re.search(r"^from tests.*^play\(CommitsTwice\(\), \[.*^\]\)", result.text, re.MULTILINE | re.DOTALL)
    assert script
    done = subprocess.run([sys.executable, "-c", script[0]], capture_output=True, text=True, check=False)
    assert "ConformanceError: EXACTLY_ONCE does not hold" in done.stderr


def test_a_seed_chooses_the_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[list[Action]] = []
    monkeypatch.setattr(
        "outfall.testing.conformance.search.play", lambda sink, schedule, place: played.append(schedule)
    )
    tries = []
    for number in (5, 5, 6, None, None):
        search(conforming.Staging(), tmp_path, commits=True, examples=20, random_seed=number)
        tries.append(played[:])
        played.clear()
    assert (len(tries[0]), len(tries[3])) == (20, 20)
    assert tries[0] == tries[1] != tries[2]
    assert tries[3] == tries[4] not in tries[:3]


@pytest.mark.parametrize("harness", [conforming.Staging, conforming.Holding, conforming.InPlace, filed.Renaming])
def test_a_sound_sink_stands_a_schedule_of_everything(harness: Any, tmp_path: Path) -> None:
    sleepers = [Sleep(at=at) for at in (3, 20, 45, 60)]
    faults: list[Action] = [Crash(at=30), PartialCommit(), LostReply(), Restart(), Wake(2), Write(tasks=1), Wake(0)]
    play(harness(), [Write(), *sleepers, *faults], tmp_path)


@pytest.mark.thorough
def test_a_dead_driver_holds_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects refer to each other: only the collector closes it."""
    # Waiting for the disk was nine tenths of the time of this test.
    monkeypatch.setattr(databases, "SYNCHRONOUS", "OFF")
    database = databases.InTransactions()
    database.most_cases = 30
    report = run_conformance(database, tmp_path, checks=["crash_at_every_line"])
    assert report.passed, report


def test_who_waits_for_a_lock_of_another_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.testing.conformance.stepping.PATIENCE", 0.01)
    lock, order = threading.Lock(), []

    def take() -> None:
        reached("a lock is wanted")
        with lock:
            order.append("waiting")

    lock.acquire()
    waiting = Suspended(take, "never", patience=0.01)
    suspended = Suspended(take, "a lock is wanted")
    assert (waiting.ended, suspended.resumed) == (False, False)
    started = time.monotonic()
    suspended.nudge()
    assert suspended.resumed
    assert time.monotonic() - started < 60
    order.append("holding")
    lock.release()
    waiting.wake()
    suspended.wake()
    assert waiting.ended
    assert order == ["holding", "waiting", "waiting"]


def test_a_suspended_task_wakes_within_an_epoch_of_a_schedule(tmp_path: Path) -> None:
    schedule: list[Action] = [Write(), BeginBeside(), Stall(begun=0, task=1, at=0), Restart()]
    broken, wakes_within = databases.StagesWithoutTheAttempt(), WakeWithin(0, at=51)
    play(broken, [*schedule, Write(), Wake(0)], tmp_path)
    with pytest.raises(ConformanceError, match=r"(?s)are missing.*WakeWithin.*# after PREPARED"):
        play(broken, [*schedule, wakes_within], tmp_path)
    play(databases.Database(), [*schedule, wakes_within], tmp_path)


@pytest.mark.thorough
def test_without_the_extra_the_class_is_an_import_error_that_names_it() -> None:
    code = """
import sys
sys.modules["pytest"] = None
import outfall.testing
outfall.testing.LocalDriver, outfall.testing.run_conformance
try:
    outfall.testing.SinkConformance
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'outfall[testing]'" in done.stdout


def test_importing_the_package_arms_the_crash_points_and_imports_nothing_else() -> None:
    code = "import sys, outfall.testing; print(sorted(name for name in sys.modules if name.startswith('outfall.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['outfall.testing', 'outfall.testing.crash_points', 'outfall.trace_points']"
