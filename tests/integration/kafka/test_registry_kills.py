"""Drivers are killed (-9) while the schema registry fails too: each flight is there once, and with a right id."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.integration.kafka.test_parts_spark import STEPS, options
from tests.integration.support import killed_driver
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_reader import read
from tests.integration.support.killed_driver import KILLS, SEED, Job, NotStartedError, make_job
from tests.integration.support.schema_registry import ModelRegistry, ModelSchema, model_registry

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long]

ENOUGH = KILLS if KILLS > 1 else 20
LONGEST_LIFE = 25.0
"""Seconds: some lives are to outlast the trouble."""
FILES = 4
"""Input files, and so epochs, of a life."""
REFUSAL = "has two schemas with the id"
"""What a driver may refuse to start with: all other troubles end before its patience does."""
OTHER = ModelSchema('{"type": "record", "name": "Other", "fields": [{"name": "x", "type": "string"}]}')


class Trouble:
    """What befalls the registry during a life of a driver, and ends before or after it."""

    def __init__(self, registry: ModelRegistry, subject: str, chance: random.Random) -> None:
        self._registry, self._subject, self._chance = registry, subject, chance
        self._data = 0
        self.seen: Counter[str] = Counter()
        self.schemas: dict[int, ModelSchema] = {}
        """By id: what the query's subject has ever had."""

    def remember(self) -> None:
        for number in self._registry.versions.get(self._subject, {}).values():
            self.schemas[number] = self._registry.schemas[number]

    def during(self, life: Callable[[], None]) -> None:
        kinds: dict[str, Callable[[], None]] = {
            "stopped": self._registry.stop,
            "slow": lambda: setattr(self._registry, "delay", 1.5),
            "500": lambda: self._registry.fail(500),
            "another schema": self._replace,
            "without its data": self._restart_empty,
        }
        kind = sorted(kinds, reverse=True)[self.seen.total() % len(kinds)]
        self.seen[kind] += 1
        kinds[kind]()
        healing = threading.Timer(self._chance.uniform(0.5, 12), self.heal)
        healing.start()
        try:
            life()
        finally:
            healing.cancel()
            healing.join()
            self.heal()
            self.remember()

    def heal(self) -> None:
        self._registry.delay = 0
        self._registry.replaced.clear()
        self._registry.fail(500, times=0)
        if not self._registry.listens:
            self._registry.start()

    def _replace(self) -> None:
        self._registry.replaced = dict.fromkeys(self._registry.schemas, OTHER.text)

    def _restart_empty(self) -> None:
        """Come back empty, on a disk where ids go on elsewhere: none means two schemas, so a wrong one is seen."""
        self.remember()
        self._registry.stop()
        self._registry.forget()
        self._data += 1
        self._registry.schemas[1000 * self._data] = OTHER
        self._registry.start()


def live(job: Job) -> list[str]:
    """Return why a driver refused to start, which it may while the registry answers wrongly: it is started again."""
    try:
        job.run_until_killed()
    except NotStartedError as error:
        if REFUSAL not in str(error):
            raise
        return [REFUSAL]
    return []


def test_each_flight_is_there_once_and_has_a_right_id(
    model: ModelBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killed_driver, "LONGEST_LIFE", LONGEST_LIFE)
    with model_registry() as registry:
        given: dict[str, Any] = options(model.address, 4) | {
            "value_format": "avro", "register_schemas": True,
            "schema_registry": {"url": registry.url, "retry_deadline": "15 seconds", "request_timeout": "5 seconds"},
        }  # fmt: skip
        subject = f"{given['topic']}-value"
        trouble = Trouble(registry, subject, random.Random(f"{SEED} registry"))
        job, rows = make_job(tmp_path, "parts", "objects", steps=STEPS, files=FILES * (ENOUGH + 1 + ENOUGH // 2))
        job.kafka = json.dumps(given)
        refused: Counter[str] = Counter()
        for _ in range(4 * ENOUGH):
            job.feed(FILES)
            trouble.during(lambda: refused.update(live(job)))
            if job.exits.count(-signal.SIGKILL) == ENOUGH:
                break
        job.feed(len(job.held_back))
        job.run_to_the_end()
        trouble.remember()
        assert job.exits.count(-signal.SIGKILL) == ENOUGH
        records = read(model.address, given["topic"], seconds=120)
        # Another client reads them, of a registry that has all that the subject ever had, and nothing else.
        registry.forget()
        registry.schemas |= trouble.schemas
        read_one = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        context = SerializationContext(given["topic"], MessageField.VALUE)
        found = [read_one(record.value, context) for record in records]
    ids = Counter(int.from_bytes((record.value or b"")[1:5]) for record in records)
    print(f"\n{ENOUGH} kills of {len(job.exits)} lives, {dict(refused)} refused at the start, {dict(trouble.seen)}")
    print(f"ids {dict(ids)}, steps {sorted(job.obeyed)}")
    assert sorted(found, key=lambda row: row["id"]) == rows.to_pylist()
    assert len(trouble.seen) >= min(5, ENOUGH)
