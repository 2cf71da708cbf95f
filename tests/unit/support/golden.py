"""Writes recovery data as this version does, to be read by every later one. Run once per release:

python -m tests.unit.support.golden tests/unit/recovery/golden/0.1.0
"""

from __future__ import annotations

import base64
import json
import socket
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsCommitter,
    SupportsTarget,
    SupportsWriterContext,
    WriterInitContext,
)
from outfall.kafka.partition import TopicRecord
from outfall.protocol.clock import Clock, SystemClock
from outfall.protocol.journal import Journal
from outfall.recovery import RecoveryConfig, SqliteRecoveryConfig, copy_step, recovery_config
from outfall.recovery.entries import Repaired
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import FanOutSink
from tests.unit.support.golden_values import write_values
from tests.unit.support.hoarding import HoardingInParts, LedgerWarehouse
from tests.unit.support.kafka_partition import MemoryKafka, Topic

LARGE = "x" * 70_000
STEPS = ("held", "prepared", "abandoned", "shared", "moved", "repaired")


def stores(directory: Path) -> dict[str, RecoveryConfig]:
    """The stores below a release's directory."""
    return {
        "checkpoint": recovery_config(str(directory / "checkpoint")),
        "sqlite": SqliteRecoveryConfig(str(directory / "sqlite")),
        "kafka": read_topics(directory / "kafka.json"),
    }


def read_topics(path: Path) -> MemoryKafka:
    """Topics with the records of a file, offsets and keys as a broker had them; empty ones where there is none."""
    made = MemoryKafka()
    topics: dict[str, Topic] = {"progress": made.progress, "state": made.states}
    for name, records in json.loads(path.read_text()).items() if path.exists() else ():
        for offset, key, value in records:
            topics[name].kept[offset] = TopicRecord(offset, key, None if value is None else base64.b64decode(value))
            topics[name].end = offset + 1
    return made


def write_topics(kafka: MemoryKafka, path: Path) -> None:
    """Write what a broker has after compaction."""
    kafka.compact()
    found = {
        name: [
            [record.offset, record.key, None if record.value is None else base64.b64encode(record.value).decode()]
            for record in topic.kept.values()
        ]
        for name, topic in (("progress", kafka.progress), ("state", kafka.states))
    }
    path.write_text(json.dumps(found, indent=0) + "\n")


class Carrier(DynamicSink[Any], SupportsCommitter[Any], SupportsTarget[Any], SupportsWriterContext):
    """Its committables are the rows, so that they can be published by whoever reads the log."""

    def __init__(self, name: str, published: list[Any]) -> None:
        self._name = name
        self._published = published

    def target(self) -> str:
        return self._name

    def bind(self, context: WriterInitContext) -> Self:
        return self

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return _Carrying()

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return _Publishing(self._published)

    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return JsonSerializer()


class _Carrying(StatelessSinkPartition[Any]):
    def __init__(self) -> None:
        self._rows: list[Any] = []

    def write_batch(self, values: list[Any]) -> None:
        self._rows += values

    def prepare_commit(self) -> Sequence[Any]:
        return [self._rows]


class _Publishing(Committer[Any]):
    def __init__(self, published: list[Any]) -> None:
        self._published = published

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        for request in requests:
            self._published += request.committable


class Elsewhere(MemoryRecoveryConfig):
    """Where a step was moved to."""

    def url(self) -> str:
        return "sqlite:///elsewhere"


class Past:
    """What was done with a store: steps that ended differently, over a target that is made anew to go on."""

    def __init__(self, recovery: RecoveryConfig, clock: Clock | None = None) -> None:
        self.recovery = recovery
        self.clock = clock
        self.setup = HoardingInParts()
        self.published: dict[str, list[Any]] = {"a": [], "b": []}

    def driver(self, step_id: str) -> LocalDriver:
        return LocalDriver(self.setup.sink(), self.recovery, step_id=step_id, query_id="query", clock=self.clock)

    def run(self, step_id: str, batch: int, text: str = "a") -> bool:
        """Write a batch: of the step `held` too little to be delivered."""
        rows = [(str(number), [batch, text, number]) for number in range(3 if step_id == "held" else 30)]
        return self.driver(step_id).run_epoch(batch, [rows]).skipped

    def share(self, batch: int) -> bool:
        """Write a batch of the step `shared`, to two sinks."""
        sink = FanOutSink(**{name: Carrier(name, published) for name, published in self.published.items()})
        driver = LocalDriver(sink, self.recovery, step_id="shared", query_id="query", clock=self.clock)
        return driver.run_epoch(batch, [[batch]]).skipped

    def write(self) -> None:
        """Complete, skip and drain epochs; leave one step held, one recorded and not completed, one abandoned.

        And one of two sinks of which one has committed, one that was moved, and one whose checkpoint was repaired.
        """
        self._write_parts()
        self.share(0)
        with crash_at("after COMMITTED"):
            self.share(1)
        self.setup.warehouse = LedgerWarehouse()
        self.run("moved", 0)
        copy_step(self.recovery, Elsewhere(), "moved")
        self.setup.warehouse = LedgerWarehouse()
        self.run("repaired", 0)
        self.repair()

    def repair(self) -> None:
        """Mark the step `repaired` as after a loss of power."""
        clock = self.clock or SystemClock()
        with closing(self.recovery.open("repaired")) as log:
            journal = Journal(log, "repaired", clock)
            incarnation = journal.read().incarnation or ""
            for done in (False, True):
                files, aside = ["commits/0"], "outfall-repair/20261122T050000.000000Z"
                journal.append(
                    Repaired(
                        step="repaired",
                        incarnation=incarnation,
                        checkpoint="/chk",
                        files=files,
                        aside=aside,
                        done=done,
                    )
                )

    def _write_parts(self) -> None:
        self.run("held", 0)
        self.run("held", 0)
        self.driver("held").drain()
        self.run("held", 1, LARGE)
        self.setup.warehouse = LedgerWarehouse()
        self.run("prepared", 0)
        with crash_at("after COMMITTING"):
            self.run("prepared", 1)
        self.setup.warehouse = LedgerWarehouse()
        self.run("abandoned", 0)
        with crash_at("after PREPARED"):
            self.run("abandoned", 1)
        self.setup.warehouse.staged.clear()
        with suppress(Exception), crash_at("after ABANDONED"):
            self.run("abandoned", 1)


def write_release(directory: Path) -> None:
    """Write everything below a release's directory."""
    directory.mkdir(parents=True)
    for store in stores(directory).values():
        Past(store, FakeClock()).write()
        if isinstance(store, MemoryKafka):
            write_topics(store, directory / "kafka.json")
    write_values(directory / "values.json")


if __name__ == "__main__":
    socket.gethostname = lambda: "host"
    write_release(Path(sys.argv[1]).absolute())
