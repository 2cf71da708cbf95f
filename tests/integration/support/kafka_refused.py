"""Rows of which Apache Kafka refuses one, and with it each batch that it is in."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from outfall.file import FileSink
from outfall.kafka import KafkaSink
from outfall.testing import LocalDriver
from tests.integration.support.kafka_reader import read

TOPICS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "INVALID_RECORD": ({"cleanup.policy": "compact"}, {"key": None}),
    "INVALID_TIMESTAMP": (
        {"message.timestamp.after.max.ms": "60000"},
        {"timestamp": datetime.fromtimestamp(time.time() + 10**6, UTC)},
    ),
    "MSG_SIZE_TOO_LARGE": ({"max.message.bytes": "5000"}, {"value": "x" * 6000}),
}
"""By Kafka's error: the settings of a topic, and what a row has that it refuses."""


def make_topic(address: str, name: str, error: str) -> None:
    topic = NewTopic(name, num_partitions=1, replication_factor=1, config=TOPICS[error][0])
    client = AdminClient({"bootstrap.servers": address})
    client.create_topics([topic])[name].result(20)


def rows(count: int, bad: set[int], error: str) -> list[dict[str, Any]]:
    """Rows with keys that occur often, numbered, of which some are refused."""
    found: list[dict[str, Any]] = [
        {"key": f"k{number % 7}", "value": str(number), "timestamp": datetime.now(UTC)} for number in range(count)
    ]
    return [row | (TOPICS[error][1] if number in bad else {}) for number, row in enumerate(found)]


def write(address: str, topic: str, folder: Path, written: list[dict[str, Any]]) -> dict[str, int]:
    """Write rows in one task. They go in batches of up to 10,000 bytes, several in flight, to a topic of each row."""
    options = {"linger.ms": 50, "batch.size": 10_000}
    refused = FileSink(folder / "refused")
    sink = KafkaSink(address, None, delivery_timeout=20, client_options=options, dead_letter=refused)
    given = [{"topic": topic} | row for row in written]
    return dict(LocalDriver(sink, str(folder / "recovery")).run_epoch(0, [given]).counts)


def check(address: str, topic: str, folder: Path, written: list[dict[str, Any]], bad: set[int], error: str) -> None:
    """Each row at fault is a letter with its code, each other row is there, and each key has its last row."""
    letters = [
        json.loads(line) for path in (folder / "refused").glob("[!_.]*") for line in path.read_text().splitlines()
    ]
    assert {letter["code"] for letter in letters} == {error}
    refused = [json.loads(letter["row"]) for letter in letters]
    wanted = [written[number] for number in sorted(bad)]
    shown = [(row.get("key"), row["value"]) for row in refused]
    assert sorted(shown, key=str) == sorted([(row["key"], row["value"]) for row in wanted], key=str)
    found = [((each.key or b"").decode(), (each.value or b"").decode()) for each in read(address, topic)]
    good = [(row["key"], row["value"]) for number, row in enumerate(written) if number not in bad]
    assert set(found) == set(good)
    assert dict(found) == dict(good), "the last row of a key"
    if len(written) < 20:
        assert Counter(found) == Counter(good)
