"""Which record is at fault when brokers refuse a whole batch: each is found, no other is, and keys keep their order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError

from outfall.kafka.producer.refusals import RecordRefusal, SentRecord, find_culprits

INVALID = KafkaError(KafkaError.INVALID_RECORD)


class Broker:
    """Takes records in batches, each whole or not at all."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.log: list[tuple[bytes | None, int]] = []
        self.requests = 0

    def send(self, sent: Sequence[SentRecord]) -> Mapping[int, RecordRefusal]:
        self.requests += 1
        refused: dict[int, RecordRefusal] = {}
        for start in range(0, len(sent), self.batch):
            batch = sent[start : start + self.batch]
            if any(one.record[1] == b"bad" for one in batch):
                refused |= dict.fromkeys(range(start, start + len(batch)), RecordRefusal(INVALID, False))
            else:
                self.log += [(one.record[2], one.row) for one in batch]
        return refused


def records(count: int, bad: set[int], keys: Sequence[bytes | None] = (None,)) -> list[SentRecord]:
    def no_report(*_: Any) -> None: ...

    return [
        SentRecord(("t", b"bad" if row in bad else b"v", keys[row % len(keys)], -1), {}, False, no_report, row)
        for row in range(count)
    ]


def resolved(broker: Broker, sent: list[SentRecord]) -> list[int]:
    found: list[int] = []
    find_culprits(sent, broker.send(sent), broker.send, lambda one, error: found.append(one.row))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_each_record_at_fault_is_found_and_no_other(seed: int) -> None:
    chance = random.Random(seed)
    count, broker = chance.randrange(1, 60), Broker(chance.randrange(1, 30))
    bad = set(chance.sample(range(count), chance.randrange(0, min(count, 5) + 1)))
    keys = [chance.choice([None, b"a", b"b", b"c"]) for _ in range(count)]
    assert resolved(broker, records(count, bad, keys)) == sorted(bad)
    assert {row for _, row in broker.log} == set(range(count)) - bad
    for key in (b"a", b"b", b"c"):
        good = [row for row in range(count) if keys[row] == key and row not in bad]
        assert [row for found, row in broker.log if found == key][-1:] == good[-1:]


def test_without_keys_nothing_is_written_twice_and_few_requests_are_made() -> None:
    broker = Broker(1000)
    assert resolved(broker, records(3000, {1500})) == [1500]
    assert len(broker.log) == 2999
    assert broker.requests < 25


def test_an_error_of_the_record_itself_is_final() -> None:
    broker, found = Broker(10), []
    refusals = {1: RecordRefusal(KafkaError(KafkaError._UNKNOWN_PARTITION), True)}
    find_culprits(records(3, set()), refusals, broker.send, lambda one, error: found.append((one.row, error.name())))
    assert (found, broker.requests) == ([(1, "_UNKNOWN_PARTITION")], 0)
