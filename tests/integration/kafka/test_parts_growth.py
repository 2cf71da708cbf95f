"""Many small epochs in one process: clients, threads, files and memory stay as they are, the ledger is bounded."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import psutil
import pytest

from outfall.kafka.producer.cache import PRODUCERS
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_parts import PartsTopic, rows_of
from tests.integration.support.kafka_reader import ends

EPOCHS = int(os.environ.get("OUTFALL_TEST_EPOCHS", "1000"))


def resources() -> dict[str, int]:
    """Count what this process has."""
    gc.collect()
    process = psutil.Process()
    return {
        "threads": process.num_threads(),
        "producers kept": len(PRODUCERS._idle.all()),
        "files and sockets": process.num_fds(),
        "MiB": process.memory_info().rss >> 20,
    }


@pytest.mark.long
def test_a_thousand_epochs_take_no_more_than_the_first_hundred(kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    query = topic.query(parts=4)
    seen: list[tuple[dict[str, int], int]] = []
    for epoch in range(EPOCHS):
        query.epoch(epoch)
        if epoch + 1 in (EPOCHS // 10, EPOCHS // 2, EPOCHS):
            seen.append((resources(), ends(kafka, topic.ledger)[0]))
            print(f"\nafter {epoch + 1} epochs: {seen[-1][0]}, the ledger ends at {seen[-1][1]}")
    (early, first), _, (late, last) = seen
    assert late["threads"] <= early["threads"] + 2
    assert late["producers kept"] == early["producers kept"] == 5
    assert late["files and sockets"] <= early["files and sockets"] + 4
    assert late["MiB"] <= early["MiB"] + 8
    # A record and its marker for each part, and for the step.
    assert last - first == (EPOCHS - EPOCHS // 10) * 5 * 2
    assert len(topic.found()) == EPOCHS * len(rows_of(0))


@pytest.mark.thorough
def test_a_ledger_that_is_compacted_stays_small(model: ModelBroker, tmp_path: Path) -> None:
    topic = PartsTopic(model.address, tmp_path)
    query = topic.query()
    for epoch in range(30):
        query.epoch(epoch)
        model.topics[topic.ledger].compact()
        assert len(model.topics[topic.ledger].records) <= 4
    # Whoever comes new knows as much by it.
    topic.query("second").epoch(30)
    assert topic.holds(*(rows_of(number) for number in range(31)))
