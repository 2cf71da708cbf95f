"""Logs in Kafka between two uses: kept connected, and never more than are of use."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.idle import Idle
from outfall.kafka import KafkaRecoveryConfig
from outfall.kafka.recovery import config as recovery_config
from outfall.kafka.recovery.log import KafkaLog
from tests.unit.support.kafka_partition import MemoryPartition, Topic


class Counted(KafkaLog):
    """Knows whether it was shut."""

    is_shut = False

    def __init__(self) -> None:
        super().__init__("sink", MemoryPartition(Topic()), MemoryPartition(Topic()), timeout=1)

    def shut(self) -> None:
        self.is_shut = True


def test_a_log_is_the_next_callers_once() -> None:
    logs, log = Idle[Counted](32), Counted()
    logs.keep("sink", {}, log)
    assert logs.take("other", {}) is None
    assert logs.take("sink", {}) is log
    assert logs.take("sink", {}) is None
    assert not log.is_shut


def test_a_second_log_of_its_kind_is_shut() -> None:
    logs, first, second = Idle[Counted](32), Counted(), Counted()
    logs.keep("sink", {}, first)
    logs.keep("sink", {}, second)
    assert (first.is_shut, second.is_shut) == (False, True)


def test_a_log_with_an_older_secret_is_shut() -> None:
    logs, log = Idle[Counted](32), Counted()
    logs.keep("sink", {"sasl.password": "old"}, log)
    assert logs.take("sink", {"sasl.password": "new"}) is None
    assert log.is_shut


def test_a_log_that_is_not_usable_any_more_is_shut() -> None:
    logs, log = Idle[Counted](32), Counted()
    logs.keep("sink", {}, log)
    assert logs.take("sink", {}, lambda _: False) is None
    assert log.is_shut


def test_of_too_many_the_one_kept_longest_is_shut() -> None:
    logs, kept = Idle[Counted](2), [Counted() for _ in range(3)]
    for number, log in enumerate(kept):
        logs.keep(number, {}, log)
    assert [log.is_shut for log in kept] == [True, False, False]
    assert [logs.take(number, {}) for number in range(3)] == [None, *kept[1:]]


def test_a_secret_that_changes_leaves_no_clients_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_config, "IDLE", Idle(recovery_config.MOST))
    shut: list[KafkaLog] = []

    def note(log: KafkaLog) -> None:
        shut.append(log)

    monkeypatch.setattr(KafkaLog, "shut", note)
    secret = tmp_path / "secret"
    config = KafkaRecoveryConfig("localhost:1", "p", {"sasl.password": f"file:{secret}"})
    opened = []
    for password in ("one", "one", "two", "three"):
        secret.write_text(password)
        opened.append(config.open("sink"))
        opened[-1].close()
    assert opened[0] is opened[1]
    assert shut == [opened[1], opened[2]]
