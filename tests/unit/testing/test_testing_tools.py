"""Small tools of `outfall.testing`: targets by reference, a log in memory, failing calls, crashes of real processes."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outfall.errors import ConfigurationError, RecordError
from outfall.recovery import EntryExistsError, LogEntry
from outfall.testing import ByReference, MemoryRecoveryConfig, crash_at, crash_environment, failing_call
from outfall.testing.conformance.stepping import Suspended, at_step, steps_of, watched
from outfall.trace_points import reached
from tests.documents import modules


class Target(ByReference):
    pass


def test_a_target_by_reference_is_found_again_by_pickles_and_copies() -> None:
    target = Target()
    assert pickle.loads(pickle.dumps({"target": target}))["target"] is target
    assert copy.deepcopy([target])[0] is target


def test_a_log_in_memory_keeps_entries_and_states() -> None:
    config = MemoryRecoveryConfig()
    log = pickle.loads(pickle.dumps(config)).open("sink")
    assert [log.append(data, after=after) for after, data in enumerate([b"a", b"b", b"c"])] == [1, 2, 3]
    assert config.open("sink").read(last=2) == [LogEntry(2, b"b"), LogEntry(3, b"c")]
    assert config.open("other").read() == []
    name = log.write_state("part a", b"large", generation=1)
    assert log.read_state(name) == b"large"
    log.clean_up(keep=[3], states=[], generation=2)
    assert log.numbers() == [3]
    with pytest.raises(RecordError):
        log.read_state(name)


@pytest.mark.parametrize("after", [0, 1])
def test_a_log_in_memory_refuses_a_number_that_is_taken_or_freed(after: int) -> None:
    log = MemoryRecoveryConfig().open("sink")
    for number in range(3):
        log.append(b"{}", after=number)
    log.clean_up(keep=[3], states=[], generation=0)
    with pytest.raises(EntryExistsError):
        log.append(b"late", after=after)


def test_the_nth_call_of_a_function_fails_and_no_other(tmp_path: Path) -> None:
    with failing_call(2, errno.ENOSPC, only="mkdir") as count:
        os.mkdir(tmp_path / "one")
        with pytest.raises(OSError, match="No space left") as caught:
            os.mkdir(tmp_path / "two")
        os.mkdir(tmp_path / "three")
        os.rmdir(tmp_path / "three")
    assert caught.value.errno == errno.ENOSPC
    assert (count.calls, count.failed) == (["mkdir"] * 3, "mkdir")
    assert "test_the_nth_call_of_a_function_fails_and_no_other" in count.callers
    assert sorted(os.listdir(tmp_path)) == ["one"]
    os.mkdir(tmp_path / "two")


def test_calls_are_counted_without_a_fault(tmp_path: Path) -> None:
    with failing_call(None) as count:
        fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        os.fsync(fd)
        os.close(fd)
    assert (count.calls, count.failed) == (["open", "fsync"], None)


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


REACHING = "from outfall.trace_points import reached\nfor _ in range(3): reached('step'); print('reached', flush=True)"


def test_a_process_dies_at_the_step_that_its_environment_names() -> None:
    done = child(REACHING, **crash_environment("step#2", steps=["step"]))
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "reached\n")


def test_one_process_only_dies_where_a_file_says_so(tmp_path: Path) -> None:
    environment = crash_environment("step", once=tmp_path / "crashed", steps=["step"])
    assert child(REACHING, **environment).returncode == -signal.SIGKILL
    assert child(REACHING, **environment).stdout == "reached\n" * 3


@pytest.mark.parametrize(("command", "left"), [("kill", None), ("tell", "told")])
def test_an_order_that_is_written_later_is_obeyed(tmp_path: Path, command: str, left: str | None) -> None:
    order = tmp_path / "order"
    order.write_text(f"{command} step")
    done = child(REACHING, **crash_environment(order=order))
    assert done.returncode == (-signal.SIGKILL if command == "kill" else 0)
    assert not order.exists()
    if left:
        assert Path(f"{order}.{left}").read_text().isdigit()


def test_a_process_that_does_not_import_the_testing_package_reads_no_variable() -> None:
    assert child(REACHING, OUTFALL_TEST_CRASH="step").stdout == "reached\n" * 3


def test_only_the_testing_package_names_the_variables() -> None:
    naming = {module for module, file in modules() if "OUTFALL_TEST_" in file.read_text()}
    assert {name for name in naming if not f"{name}.".startswith("outfall.testing.")} == set()


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("after PREPARD", "after PREPARED"),
        ("sink: before write_bach#2", "sink: before write_batch"),
        ("log: entry eraced", "log: entry erased"),
    ],
)
def test_a_step_that_is_misspelt_is_refused_with_the_nearest_name(spec: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no step .*write '{near}'"), crash_at(spec):
        pass
    with pytest.raises(ConfigurationError, match=f"write '{near}'"):
        crash_environment(spec)


@pytest.mark.parametrize(
    "spec", ["after PREPARED#2", "sink: request 12 taken", "line sink.py:7", "mine: reached", None]
)
def test_a_step_that_is_known_need_not_be_reached(spec: str | None) -> None:
    def elsewhere() -> None:
        reached("mine: reached")

    with crash_at(spec) as seen:
        pass
    assert seen == []


def test_a_step_that_is_required_or_named_besides() -> None:
    with crash_at("theirs: " + "reached", steps=["theirs: reached"]):
        pass
    with (
        pytest.raises(AssertionError, match="'after BEGIN#2' was not reached, only: one, two, one"),
        crash_at("after BEGIN#2", required=True),
    ):
        three_steps()
    with pytest.raises(ValueError, match="its own"), crash_at("after PREPARD"):
        raise ValueError("its own")


def three_steps() -> str:
    for step in ("one", "two", "one"):
        reached(step)
    return "done"


def test_steps_are_numbered_by_how_often_they_were_reached() -> None:
    assert steps_of(three_steps) == ["one#1", "two#1", "one#2"]


@pytest.mark.parametrize(("spec", "at"), [("one#2", "one"), (1, "two"), ("never", None), (9, None)])
def test_a_suspended_action_stops_at_its_step_and_goes_on_when_woken(spec: str | int, at: str | None) -> None:
    suspended = Suspended(three_steps, spec)
    assert suspended.at == at
    assert (suspended.result is None) == (at is not None)
    suspended.wake()
    assert (suspended.result, suspended.error) == ("done", None)


def test_a_suspended_action_keeps_its_error_and_others_run_past_its_step() -> None:
    def fail() -> None:
        reached("one")
        raise ValueError

    suspended = Suspended(fail, "one")
    assert three_steps() == "done"
    suspended.wake()
    assert isinstance(suspended.error, ValueError)


def test_an_action_runs_once_at_its_step_and_its_own_steps_do_not_count() -> None:
    done: list[str] = []
    with at_step("one#2", lambda: done.append(three_steps())):
        three_steps()
        three_steps()
    assert done == ["done"]


def test_lines_of_a_file_are_announced_and_can_be_crashed_at() -> None:
    steps = watched({__file__}, lambda: steps_of(three_steps))
    lines = [step for step in steps if step.startswith("line test_testing_tools.py:")]
    assert len(lines) > 6
    with crash_at(lines[3]) as seen:
        watched({__file__}, three_steps)
    assert seen[-1] == lines[3].partition("#")[0]
