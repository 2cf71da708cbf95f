"""Heartbeats: seen while something is tried again, gone when it went through, and never in the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outfall.errors import TransientError
from outfall.protocol.heartbeat import STALE, Heartbeat, heartbeat, heartbeats_in, stored_beside
from outfall.recovery import recovery_config
from outfall.recovery.local_log import LocalLog
from outfall.recovery.log import RecoveryConfig, heartbeat_name
from outfall.retry_log import RetryLog
from outfall.testing import FakeClock, LocalDriver
from tests.unit.recovery.test_history import OnceMore
from tests.unit.support.acting import ActingSink
from tests.unit.support.setups import Staging, content

_retries = RetryLog(logging.getLogger(__name__))


def fail_once(reason: str = "it is away") -> None:
    _retries.retry("server s", "writing t", attempt=1, reason=reason, left=None)


def beats(recovery: RecoveryConfig, generation: int = 0, after: timedelta = timedelta()) -> list[Heartbeat]:
    with closing(recovery.open("sink")) as log:
        return heartbeats_in(stored_beside(log), generation=generation, now=datetime.now(UTC) + after)


def awaited(recovery: RecoveryConfig, found: Callable[[list[Heartbeat]], bool] = bool) -> list[Heartbeat]:
    deadline = time.monotonic() + 20
    while not found(beats(recovery)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return beats(recovery)


def retrying(then: Callable[[], object]) -> ActingSink:
    """A sink whose destination is away for the first try of each batch, and then does what `then` says."""

    def act() -> None:
        fail_once()
        then()

    return ActingSink(act)


@pytest.fixture(params=["file", "memory", "sqlite"])
def recovery(request: pytest.FixtureRequest, tmp_path: Path) -> RecoveryConfig:
    url = {"file": str(tmp_path), "memory": f"memory://{tmp_path}", "sqlite": f"sqlite://{tmp_path}"}[request.param]
    return recovery_config(url)


def test_a_task_that_tries_again_is_seen_and_is_gone_when_it_went_through(tmp_path: Path) -> None:
    recovery = recovery_config(str(tmp_path))
    seen: list[Heartbeat] = []
    driver = LocalDriver(retrying(lambda: seen.extend(awaited(recovery))), recovery)
    driver.run_epoch(0, [["a row"]])
    (beat,) = seen
    told = (beat.who, beat.generation, beat.epoch, beat.phase, beat.attempts)
    assert told == ("task 0", 1, 0, "tasks", 1)
    assert (beat.place, beat.doing, beat.reason) == ("server s", "writing t", "it is away")
    assert beat.since == beat.at
    assert beats(recovery) == []


def test_a_task_that_gives_up_leaves_its_reason_until_it_is_stale_or_a_newer_driver_begins(tmp_path: Path) -> None:
    recovery = recovery_config(str(tmp_path))

    def give_up() -> None:
        raise TransientError("no")

    with pytest.raises(TransientError):
        LocalDriver(retrying(give_up), recovery).run_epoch(0, [["a row"]])
    assert [beat.reason for beat in awaited(recovery)] == ["it is away"]
    assert beats(recovery, generation=2) == []
    assert beats(recovery, after=timedelta(seconds=STALE)) == []
    LocalDriver(retrying(lambda: None), recovery).run_epoch(0, [["a row"]])
    assert not list(tmp_path.rglob("*.heartbeat"))


def test_a_driver_that_commits_again_is_seen(recovery: RecoveryConfig) -> None:
    setup = Staging()
    seen: list[Heartbeat] = []

    class Clock(FakeClock):
        def sleep(self, seconds: float) -> None:
            seen.extend(awaited(recovery))
            super().sleep(seconds)

    sink = setup.sink()
    sink.create_committer = lambda context: OnceMore(setup.warehouse)
    LocalDriver(sink, recovery, clock=Clock()).run_epoch(0, Staging.tasks(setup, content(0, "a")))
    (beat,) = seen
    assert (beat.who, beat.generation, beat.epoch, beat.phase) == ("driver", 1, 0, "commit")
    assert beats(recovery) == []


def test_the_first_failure_and_the_last_are_told_with_how_many_there_were(recovery: RecoveryConfig) -> None:
    with heartbeat(recovery, "sink", "task 3", "tasks", lambda: (7, 4)):
        fail_once()
        (first,) = awaited(recovery)
        for number in range(3):
            fail_once(f"number {number}")
        # The next write comes some seconds later, or as here at the end.
        with suppress(TransientError), heartbeat(recovery, "sink", "driver", "commit", lambda: (7, 4)):
            for number in range(3):
                fail_once(f"inner {number}")
            raise TransientError("no")
    (last,) = awaited(recovery, lambda found: [beat.reason for beat in found] == ["inner 2"])
    assert (first.who, first.attempts) == ("task 3", 1)
    assert (last.who, last.attempts, last.since <= last.at) == ("driver", 3, True)


class Failing(LocalLog):
    """A log whose store is away."""

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        raise TransientError("the store is away")

    def heartbeats(self) -> list[bytes]:
        raise TransientError("the store is away")


def test_a_store_that_fails_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recovery = recovery_config(str(tmp_path))
    monkeypatch.setattr(type(recovery), "open", lambda self, step_id: Failing(str(tmp_path), step_id))
    with heartbeat(recovery, "sink", "task 0", "tasks", lambda: (1, 0)):
        fail_once()
    assert beats(recovery) == []


def test_what_is_torn_or_of_another_release_is_passed_over_or_read_as_far_as_it_goes(tmp_path: Path) -> None:
    recovery = recovery_config(str(tmp_path))
    with closing(recovery.open("sink")) as log:
        log.set_heartbeat(heartbeat_name("torn", 1), b'{"who": "task 1"')
        now = datetime.now(UTC)
        known = Heartbeat(
            who="task 2", generation=1, epoch=0, phase="tasks", since=now, at=now, attempts=1, place="p", doing="d",
            reason="r",
        )  # fmt: skip
        log.set_heartbeat(heartbeat_name("newer", 1), known.model_dump_json().replace("{", '{"more": 1, ', 1).encode())
    assert beats(recovery) == [known]
