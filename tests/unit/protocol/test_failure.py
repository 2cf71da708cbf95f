"""The last error of a step: stored next to the log with its remedy, and gone when a later epoch has completed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from outfall.errors import CommitError, FencedError, TransientError
from outfall.protocol.failure import DRIVER, Failure, ends_the_query, failures_in, query_ended, recorded
from outfall.protocol.heartbeat import stored_beside
from outfall.recovery import recovery_config
from outfall.recovery.local_log import LocalLog
from outfall.recovery.log import RecoveryConfig
from outfall.testing import LocalDriver
from tests.unit.support.acting import ActingSink

REFUSED = TransientError("writing t failed", why="the server is down", do="start the server")


class SparkError(Exception):
    """An error of Spark with a condition, whose text has a value of a row."""

    def __init__(self, condition: str) -> None:
        super().__init__(f"[{condition}] the value 'of a row' is invalid")
        self.condition = condition

    def getCondition(self) -> str:  # noqa: N802
        return self.condition


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def failures(recovery: RecoveryConfig) -> list[Failure]:
    with closing(recovery.open("sink")) as log:
        return failures_in(stored_beside(log))


@pytest.fixture(params=["file", "memory"])
def recovery(request: pytest.FixtureRequest, tmp_path: Path) -> RecoveryConfig:
    return recovery_config({"file": str(tmp_path), "memory": f"memory://{tmp_path}"}[request.param])


def test_an_error_of_a_task_is_stored_with_its_remedy_until_a_later_epoch_completes(recovery: RecoveryConfig) -> None:
    with pytest.raises(TransientError):
        LocalDriver(ActingSink(raising(REFUSED)), recovery).run_epoch(0, [["a row"]])
    (found,) = failures(recovery)
    assert (found.who, found.failed_in, found.error) == ("task 0", 0, "TransientError")
    assert (found.reason, found.do) == ("writing t failed. The server is down.", "start the server")
    assert not ends_the_query([found])
    LocalDriver(ActingSink(lambda: None), recovery).run_epoch(0, [["a row"]])
    assert failures(recovery) == []


@pytest.mark.parametrize("scheme", ["", "sqlite://"])
def test_an_error_of_the_driver_ends_the_query(tmp_path: Path, scheme: str) -> None:
    recovery = recovery_config(f"{scheme}{tmp_path}")
    driver = LocalDriver(ActingSink(lambda: None), recovery)
    driver.run_epoch(0, [["a row"]])
    with pytest.raises(Exception, match="epoch"):
        LocalDriver(ActingSink(lambda: None), recovery).run_epoch(7, [["a row"]])
    (found,) = failures(recovery)
    assert (found.who, found.error, ends_the_query([found])) == ("driver", "UnexpectedEpochError", True)


@pytest.mark.parametrize(
    ("who", "error", "stored"),
    [
        (DRIVER, SparkError("CAST_INVALID_INPUT"), "SparkError (CAST_INVALID_INPUT)"),
        (DRIVER, SparkError("SPARK_JOB_CANCELLED"), None),
        (DRIVER, Exception("Py4JJavaError: SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled"), None),
        (DRIVER, Exception("Py4JJavaError: java.lang.InterruptedException"), None),
        (DRIVER, CommitError.because_of(ValueError("a row"), "the commit failed"), "CommitError"),
        (DRIVER, ValueError("a row"), "ValueError"),
        (DRIVER, type("PythonException", (Exception,), {})("Traceback\nZeroDivisionError: a row"), "ZeroDivisionError"),
        (DRIVER, FencedError("another driver continues"), None),
        ("task 1", ValueError("a row"), None),
        ("task 1", REFUSED, "TransientError"),
        (DRIVER, KeyboardInterrupt(), None),
    ],
)
def test_what_is_stored_of_an_error_has_no_contents_of_rows(
    tmp_path: Path, who: str, error: BaseException, stored: str | None
) -> None:
    recovery = recovery_config(str(tmp_path))
    LocalDriver(ActingSink(lambda: None), recovery).run_epoch(0, [["a row"]])
    with suppress(BaseException), recorded(recovery, "sink", who, 3):
        raise error
    found = failures(recovery)
    assert [each.error for each in found] == ([] if stored is None else [stored])
    assert all("row" not in each.model_dump_json() and each.failed_in == 3 for each in found)


def test_an_error_that_spark_passed_on_as_a_text_has_its_remedy_too(tmp_path: Path) -> None:
    recovery = recovery_config(str(tmp_path))
    LocalDriver(ActingSink(lambda: None), recovery).run_epoch(0, [["a row"]])
    with suppress(TransientError), recorded(recovery, "sink", DRIVER):
        raise TransientError(str(REFUSED))
    (found,) = failures(recovery)
    assert (found.reason, found.do) == ("writing t failed. The server is down.", "start the server")


def test_a_query_whose_epoch_spark_ended_has_failed_only_if_a_task_has(recovery: RecoveryConfig) -> None:
    with pytest.raises(TransientError):
        LocalDriver(ActingSink(raising(REFUSED)), recovery).run_epoch(0, [["a row"]])
    (of_task,) = failures(recovery)
    stopped = query_ended(0)
    assert [ends_the_query(each) for each in ([], [of_task], [stopped], [of_task, stopped])] == [False] * 3 + [True]


def test_a_location_without_the_step_is_not_touched(tmp_path: Path) -> None:
    with suppress(ValueError), recorded(recovery_config(f"{tmp_path}/chk"), "sink", DRIVER):
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_raised_also_if_it_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLog, "set_heartbeat", lambda *_: raising(OSError("no space"))())
    with pytest.raises(TransientError, match="The server is down"):
        LocalDriver(ActingSink(raising(REFUSED)), recovery_config(str(tmp_path))).run_epoch(0, [["a row"]])
    assert failures(recovery_config(str(tmp_path))) == []


def test_a_log_that_cannot_be_read_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recovery = recovery_config(str(tmp_path))
    LocalDriver(ActingSink(lambda: None), recovery).run_epoch(0, [["a row"]])
    asked: list[object] = []

    def refuse(*arguments: object, **more: object) -> None:
        asked.append(arguments)
        raise TransientError("the store is down")

    monkeypatch.setattr(LocalLog, "read", refuse)
    monkeypatch.setattr(LocalLog, "numbers", refuse)
    with pytest.raises(TransientError, match="is down"):
        LocalDriver(ActingSink(lambda: None), recovery).run_epoch(1, [["a row"]])
    assert len(asked) == 1
