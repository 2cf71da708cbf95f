"""The log over sockets: on a real broker where one is given, else on a model of one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from outfall.errors import RecordError
from outfall.kafka import KafkaRecoveryConfig
from outfall.kafka.partition import CHUNK
from outfall.recovery import EntryExistsError, LogEntry

MakeConfig = Callable[..., KafkaRecoveryConfig]


@pytest.mark.thorough
def test_entries_are_given_back_to_every_reader(config: MakeConfig) -> None:
    there = config()
    log = there.open("sink")
    assert log.read() == []
    entries = [b"{}", b"\xff\x00\n", b"", b"x" * 100_000]
    assert [log.append(data, after=after) for after, data in enumerate(entries)] == [1, 2, 3, 4]
    assert there.open("sink").read() == [LogEntry(number, data) for number, data in enumerate(entries, 1)]
    assert there.open("sink").read(last=1) == log.read()[-1:]
    assert there.open("other").read() == []


@pytest.mark.thorough
def test_a_closed_log_is_kept_connected_for_who_opens_it_next(config: MakeConfig) -> None:
    there = config()
    log = there.open("sink")
    log.append(b"1", after=0)
    log.close()
    again = there.open("sink")
    assert again is log
    other = there.open("sink")
    assert other is not log, "two at once are never the same"
    assert other.append(b"2", after=1) == 2
    assert again.numbers() == [1, 2]
    for closed in (log, other):
        closed.close()
    assert there.open("sink") is log


@pytest.mark.thorough
def test_steps_are_listed_and_erased(config: MakeConfig) -> None:
    there = config()
    assert there.steps() == []
    there.open("sink").erase()
    assert there.steps() == []
    log, other = there.open("sink"), there.open("other.1")
    for after in range(3):
        log.append(b"%d" % after, after=after)
    other.append(b"0", after=0)
    log.write_state("large", b"x" * (CHUNK + 1), generation=1)
    assert there.steps() == ["other.1", "sink"]
    there.open("sink").erase()
    assert there.steps() == ["other.1"]
    with pytest.raises(RecordError, match="was erased"):
        log.append(b"3", after=3)
    log.close()
    assert there.open("sink").append(b"anew", after=0) == 1
    assert (there.steps(), len(other.read())) == (["other.1", "sink"], 1)


def test_reading_makes_no_topic(config: MakeConfig) -> None:
    there = config()
    log = there.open("sink")
    assert log.read() == []
    log.clean_up(keep=[], states=[], generation=9)
    consumer = log._tail.partition._clients.consumer()  # type: ignore[attr-defined]
    assert not set(there.topics()) & set(consumer.list_topics(timeout=10).topics)


def test_an_older_driver_is_rejected_on_every_write(config: MakeConfig) -> None:
    there = config()
    older, newer = there.open("sink"), there.open("sink")
    older.append(b"BEGIN 1", after=0)
    assert newer.numbers() == [1]
    newer.append(b"BEGIN 2", after=1)
    for _ in range(2):
        with pytest.raises(EntryExistsError):
            older.append(b"PREPARED 1", after=1)
    assert newer.append(b"PREPARED 2", after=2) == 3


@pytest.mark.thorough
def test_of_several_writers_exactly_one_wins_each_number(config: MakeConfig) -> None:
    there, writers, rounds = config(), 3, 10
    there.open("sink").append(b"first", after=0)
    level = threading.Barrier(writers, timeout=60)
    won: list[tuple[int, bytes]] = []

    def write(me: int) -> None:
        log = there.open("sink")
        for after in range(1, rounds):
            log.numbers()
            level.wait()
            data = f"{me} after {after}".encode()
            with suppress(EntryExistsError):
                won.append((log.append(data, after=after), data))

    threads = [threading.Thread(target=write, args=(me,)) for me in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = there.open("sink").read()
    assert [entry.number for entry in found] == list(range(1, rounds + 1))
    # Who won and was passed before it could tell has stopped, which is allowed.
    assert set(won) <= {(entry.number, entry.data) for entry in found}


@pytest.mark.thorough
def test_cleaned_up_entries_are_gone_for_every_reader(config: MakeConfig) -> None:
    there = config()
    log = there.open("sink")
    for after in range(6):
        log.append(b"x", after=after)
    log.clean_up(keep=[2, 5], states=[], generation=0)
    assert there.open("sink").numbers() == log.numbers() == [2, 5, 6]
    for after in range(5):
        with pytest.raises(EntryExistsError):
            there.open("sink").append(b"late", after=after)


@pytest.mark.thorough
def test_entries_and_states_longer_than_a_record_are_split(config: MakeConfig) -> None:
    there, data = config(), os.urandom(2 * CHUNK + 1)
    log = there.open("sink")
    assert log.append(data, after=0) == 1
    log.write_state("p", b"another", generation=1)
    name = log.write_state("p", data, generation=1)
    assert there.open("sink").read() == [LogEntry(1, data)]
    assert there.open("sink").read_state(name) == data


@pytest.mark.thorough
def test_a_state_of_another_topic_is_missing(config: MakeConfig) -> None:
    one, other = config(), config()
    name = one.open("sink").write_state("p", b"x", generation=1)
    other.open("sink").write_state("p", b"y", generation=1)
    with pytest.raises(RecordError, match=r"is not in test-.*-state"):
        other.open("sink").read_state(name)
