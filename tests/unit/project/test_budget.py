"""The budget of the tests: what is measured, what is printed, and what is clearly too slow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import budget
from tests.budget import Call, Work
from tests.documents import ROOT

pytest_plugins = ["pytester"]

ORPHAN = """
import subprocess, sys
burn = "import time; end = time.process_time() + 0.1\\nwhile time.process_time() < end: pass"
subprocess.Popen([sys.executable, "-S", "-c", burn])
sys.exit(3)
"""
TESTS = """
import time, pytest

@pytest.fixture
def slow():
    time.sleep(0.2)

def test_with_a_slow_fixture(slow):
    pass

@pytest.mark.parametrize("seconds", [0.2])
def test_is_slow(seconds):
    time.sleep(seconds)

@pytest.mark.thorough
def test_is_slow_and_thorough():
    time.sleep(0.2)
"""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the records, with two sessions that took 100 s of CPU together; they may take 120 s."""
    monkeypatch.setattr(budget, "RECORDS", tmp_path)
    monkeypatch.setattr(budget, "REFERENCE", tmp_path / "budget.json")
    monkeypatch.setattr(budget, "_work", lambda: Work(0.5, 1.0))
    (tmp_path / "budget.json").write_text(json.dumps({"cpu": {"unit": 40, "integration": 60}, "work": 0.5}))
    session(tmp_path / "unit", 40)
    session(tmp_path / "integration", 60)
    return tmp_path


def session(folder: Path, cpu: float, *calls: Call) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "session.json").write_text(json.dumps({"clock": cpu / 2, "cpu": cpu}))
    (folder / "calls.jsonl").write_text("".join(f"{json.dumps(vars(call))}\n" for call in calls))


def test_the_cpu_of_processes_that_outlive_the_session_is_measured_and_its_exit_code_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-m", "tests.budget", "measure", str(tmp_path), sys.executable, "-S", "-c", ORPHAN]
    for commands in (1, 2):
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 3
        took = json.loads((tmp_path / "session.json").read_text())
        assert took["cpu"] >= 0.1 * commands
        assert took["clock"] >= 0.1 * commands


def test_the_own_call_of_a_default_test_is_recorded_without_its_fixtures(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(budget, "LIMIT", 0.1)
    monkeypatch.setenv(budget.FOLDER, str(tmp_path))
    pytester.makeconftest("from tests.conftest import pytest_runtest_call")
    pytester.makepyfile(test_some=TESTS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-n", "0").assert_outcomes(passed=3)
    (call,) = budget.calls_of(tmp_path)
    assert (call.test, call.name) == ("test_some.py::test_is_slow[0.2]", "test_some.py::test_is_slow")
    assert call.clock >= 0.2 > call.cpu


def test_the_report_has_sessions_long_tests_and_absent_programs(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "slow_tests", lambda: {"a.py::test_known": "why"})
    session(records / "unit", 40, Call("a.py::test_known[1]", 3.1, 3), Call("a.py::test_new", 9.04, 0.2))
    (records / "unit" / "skipped.tsv").write_text("a.py::test_zstd\tSkipped: absent here: the program zstd\n")
    assert budget.report(["unit", "integration", "never"]) == [
        "unit: 20 s, 40 s of CPU",
        "integration: 30 s, 60 s of CPU",
        "9.0 s, 0.2 s of CPU in the test itself, not in tests/slow_tests.toml: a.py::test_new",
        "3.1 s, 3.0 s of CPU in the test itself: a.py::test_known[1]",
        "1 test skipped without zstd. To run them: sudo apt-get install zstd",
    ]


def test_a_sum_of_cpu_seconds_a_fifth_above_the_recorded_one_is_too_slow(records: Path) -> None:
    session(records / "unit", 59)
    assert budget.check() == []
    session(records / "unit", 61)
    (found,) = budget.check()
    assert found.startswith("unit, integration took 121 s of CPU, and 120 s are allowed")


@pytest.mark.parametrize(("work", "allowed"), [(Work(1.0, 1.0), True), (Work(0.25, 1.0), False)])
def test_a_slower_machine_gets_a_larger_budget_and_a_faster_one_no_smaller(
    records: Path, monkeypatch: pytest.MonkeyPatch, work: Work, allowed: bool
) -> None:
    monkeypatch.setattr(budget, "_work", lambda: work)
    assert budget.check() == []
    session(records / "unit", 179)
    assert (budget.check() == []) is allowed


def test_a_session_that_did_not_run_is_no_small_one(records: Path) -> None:
    (records / "unit" / "session.json").unlink()
    assert budget.check() == ["no record of unit. What to do: run these sessions of nox first"]
    with pytest.raises(SystemExit, match="no record of unit"):
        budget.record()


def test_the_command_records_what_the_sessions_took(records: Path) -> None:
    session(records / "unit", 77.4)
    assert budget.main("record") == 0
    assert json.loads(budget.REFERENCE.read_text()) == {"cpu": {"unit": 77, "integration": 60}, "work": 0.5}


@pytest.mark.parametrize(
    ("clock", "cpu", "share", "too_slow"),
    [
        (8.0, 0.0, 1.0, True),
        (5.0, 5.0, 1.0, False),
        (8.0, 0.0, 2.0, False),
        (12.5, 0.0, 2.0, True),
        (8.0, 7.0, 2.0, True),
    ],
)
def test_a_test_is_too_slow_if_it_takes_twice_the_limit_twice_and_is_not_listed(
    records: Path, monkeypatch: pytest.MonkeyPatch, clock: float, cpu: float, share: float, too_slow: bool
) -> None:
    monkeypatch.setattr(budget, "slow_tests", lambda: {"a.py::test_known": "why"})
    monkeypatch.setattr(budget, "_work", lambda: Work(0.5, share))
    session(
        records / "unit", 40, Call("a.py::test_known[1]", 9, 9), Call("a.py::test_new[2]", 8, 8),
        Call("a.py::test_nearly", 5, 5),
    )  # fmt: skip

    def runs(command: list[str], env: dict[str, str], **_: Any) -> None:
        assert command[-2:] == ["0", "a.py::test_new[2]"], "no other is run again"
        session(Path(env[budget.FOLDER]), 1, Call("a.py::test_new[2]", clock, cpu))

    monkeypatch.setattr(subprocess, "run", runs)
    found = budget.check()
    assert len(found) == too_slow
    assert all(
        line.startswith(f"a.py::test_new[2] took {clock:.1f} s twice. What to do: make it faster") for line in found
    )


def test_the_list_of_slow_tests_is_short_true_and_gives_reasons() -> None:
    listed = budget.slow_tests()
    assert len(listed) <= 40
    assert [name for name, reason in listed.items() if len(reason) < 10] == []
    for name in listed:
        path, *_, function = name.split("::")
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_the_time_of_a_test_is_measured_even_if_it_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(budget, "LIMIT", 0.0)
    monkeypatch.setenv(budget.FOLDER, str(tmp_path))
    with suppress(ValueError), budget.timed_call("a"):
        raise ValueError
    assert [call.test for call in budget.calls_of(tmp_path)] == ["a"]
