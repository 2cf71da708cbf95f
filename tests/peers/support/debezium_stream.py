"""A table, its changes in a topic, and a driver that applies them to a copy: all of it killed while rows change."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from outfall.delivery_order import PER_GENERATION
from tests.integration.conftest import spark_environment
from tests.integration.support.waiting import until
from tests.peers.support.changed_orders import ChangedOrders, Orders
from tests.peers.support.connect import ConnectWorker
from tests.peers.support.order_copies import COLUMNS, Copy

_SECONDS = 240


class Stream:
    """A worker and a driver between a table and its copy; both may be killed.

    Args:
        folder: where the worker and the driver keep what they know.
        kafka: the address of the brokers.
        source: where the table is made.
        target: where the copy is.
        seed: of what happens.
        exactly_once: whether the worker's offsets are in the transaction of its events.
        flush: how often a worker that is not keeps them, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        kafka: str,
        source: Orders,
        target: Copy,
        seed: int,
        *,
        exactly_once: bool = False,
        flush: float = 0.5,
    ) -> None:
        self.chance = random.Random(seed)
        self.table = ChangedOrders(source, self.chance)
        self.copy = target
        if not target.keeps_values:
            source.send_all_values()
        self.prefix = f"shop{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.prefix}.{source.schema}.orders"
        self._connector = source.connector(self.prefix, kafka)
        self.worker = ConnectWorker(folder / "connect", kafka, exactly_once=exactly_once, flush=flush)
        self._folder = folder
        self._kafka = kafka
        self._driver: subprocess.Popen[bytes] | None = None
        self.kills = {"driver": 0, "worker": 0}
        """How often each ran, and was killed by `kill_driver` and `kill_worker`."""
        self.ended = 0
        """How often Spark ended a driver by a fault of its own, so that it was started again."""
        self._before = -1
        """The newest epoch when the driver was started."""
        self._log = folder / "driver.log"
        self.life: dict[str, Any] = {"generation": 1}
        """The topic, as `TopicGeneration` takes it."""
        self.checkpoint = 0
        self._log.touch()
        self._known = 0
        """The lines of the log that earlier drivers have written."""

    def connect(self, **more: str) -> None:
        """Start the worker with the connector. `more` are settings with underscores for dots."""
        given = self._connector | {
            "skipped.operations": "t", "heartbeat.interval.ms": "500", "poll.interval.ms": "50",
            "incremental.snapshot.chunk.size": "16",
        }  # fmt: skip
        self.worker.start()
        self.worker.run(self.prefix, given | {name.replace("_", "."): value for name, value in more.items()})

    def drive(self, *, on_truncate: str = "fail") -> None:
        """Start the driver, on the life of the topic that is known."""
        given = {
            "kafka": self._kafka, "topic": self.topic, "columns": COLUMNS, "life": self.life,
            "on_truncate": on_truncate, "checkpoint": str(self._folder / f"checkpoint{self.checkpoint}"),
            "sink": self.copy.sink, "marked": not self.copy.keeps_values,
            # Another checkpoint may follow the first one on purpose only.
            "options": self.copy.options() | ({"on_existing": "resume"} if self.checkpoint else {}),
        }  # fmt: skip
        self._before, self._known = self._newest(), len(self._log.read_text().splitlines())
        command = [sys.executable, "-m", "tests.peers.support.debezium_driver", json.dumps(given)]
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | spark_environment(), start_new_session=True
            )

    def refused(self) -> str:
        """Return what the driver says when it has ended by itself."""
        assert self._driver is not None
        self._driver.wait(_SECONDS)
        return "\n".join(self._log.read_text().splitlines()[self._known :])

    def wait_for_topic(self) -> dict[int, int]:
        """Return the ends of the topic's partitions when all that was changed is in it."""
        mark = f"mark {uuid.uuid4()}"
        self.table.orders.run(f"UPDATE orders SET city = '{mark}' WHERE id = 0")
        consumer = Consumer({"bootstrap.servers": self._kafka, "group.id": mark, "auto.offset.reset": "earliest"})
        consumer.subscribe([self.topic])

        def is_there() -> bool:
            return any(mark.encode() in (message.value() or b"") for message in consumer.consume(1000, 1))

        try:
            until(is_there, f"the mark in {self.topic}", _SECONDS)
            partitions = consumer.list_topics(self.topic, timeout=10).topics[self.topic].partitions
            places = {number: TopicPartition(self.topic, number) for number in partitions}
            return {number: consumer.get_watermark_offsets(place, 10)[1] for number, place in places.items()}
        finally:
            consumer.close()

    def read_to_the_end(self) -> None:
        """Return when the driver has applied all that was changed."""
        ends = self.wait_for_topic()

        def is_read() -> bool:
            self.check_runs()
            if (done := self._newest()) < 0:
                return False
            offsets = self._folder / f"checkpoint{self.checkpoint}" / "offsets" / str(done)
            read = json.loads(offsets.read_text().splitlines()[-1])[self.topic]
            return all(read.get(str(number), 0) >= end for number, end in ends.items())

        until(is_read, f"the end of {self.topic} to be read", _SECONDS)

    def wait_for_epoch(self) -> None:
        """Return when the driver has completed an epoch since it was started."""

        def is_done() -> bool:
            self.check_runs()
            return self._newest() > self._before

        until(is_done, "an epoch", _SECONDS)

    def _newest(self) -> int:
        done = (self._folder / f"checkpoint{self.checkpoint}" / "commits").glob("[0-9]*")
        return max((int(path.name) for path in done), default=-1)

    def repair(self) -> None:
        """Make the copy like the table again, as the recipe says it, under the next generation; the driver runs."""
        copy = self.copy
        assert isinstance(copy, Orders)
        least = self.life["generation"] * PER_GENERATION
        self.table.snapshot()

        def sent() -> bool:
            self.check_runs()
            (found,) = self.table.orders.read("SELECT count(*) FROM orders")
            return copy.read(f"SELECT count(*) FROM orders WHERE seq >= {least}") == [found]

        until(sent, "all rows in the new generation", _SECONDS)
        copy.run(f"DELETE FROM orders WHERE seq < {least}")

    def kill_driver(self) -> bool:
        """Kill the driver with its workers; return whether it had not ended by itself before."""
        if self._driver is None:
            return False
        running = self._driver.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        killed = running and self._driver.wait() == -signal.SIGKILL
        self.kills["driver"] += killed
        return killed

    def kill_worker(self) -> None:
        """Kill the worker of Kafka Connect."""
        self.kills["worker"] += self.worker.running
        self.worker.kill()

    def check_runs(self) -> None:
        """Fail if the driver has ended by itself, or the connector's task has failed. Spark's own fault is mended."""
        if self._driver is not None and self._driver.poll() is not None:
            self.check_end()
            self.drive()
        if (state := self.worker.state(self.prefix)).startswith("FAILED"):
            pytest.fail(state, pytrace=False)

    def check_end(self) -> None:
        """Fail if the driver, which has ended, did so by another fault than one of Spark."""
        lines = self._log.read_text().splitlines()[self._known :]
        if not any("KafkaMicroBatchStream$.metrics" in line for line in lines):
            told = [line[:1000] for line in lines if "outfall" in line and "Error" in line]
            pytest.fail("the driver ended:\n" + "\n".join([*told[-5:], *lines[-20:]]), pytrace=False)
        # Spark 4.1.1 ends a query whose first progress comes before its source has asked for offsets.
        self.ended += 1

    def wait_for(self, rows: int) -> None:
        """Return when the copy has so many rows."""

        def there() -> bool:
            self.check_runs()
            return len(self.copy.rows()) >= rows

        until(there, f"{rows} rows", _SECONDS)

    def catch_up(self) -> None:
        """Return when the copy equals the table. Nothing changes the table meanwhile.

        It is waited for as long as the driver completes epochs: on a busy machine, many are left.
        """
        wanted, newest = self.table.orders.rows(), self._newest()

        def equal_or_further() -> bool:
            self.check_runs()
            return self.copy.rows() == wanted or self._newest() > newest

        try:
            while self.copy.rows() != wanted:
                until(equal_or_further, "the copy to be like the table, or an epoch", _SECONDS)
                newest = self._newest()
        except AssertionError:
            found = {row[0]: row for row in self.copy.rows()}
            differ = [(row, found.pop(row[0], None)) for row in wanted if found.get(row[0]) != row]
            pytest.fail(f"{len(differ)} rows differ, such as {differ[:3]}; more: {list(found.values())[:3]}")

    def close(self) -> None:
        """End everything."""
        self.kill_driver()
        self.worker.kill()
        self.table.close()


class StayingRows:
    """Sees whether a row disappears that the source never deletes, once it was there."""

    def __init__(self, copy: Copy) -> None:
        """Begin to look."""
        self.gone: list[int] = []
        self._copy = copy
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        most = 0
        while not self._ends.wait(self._copy.pause):
            if (count := self._copy.staying()) < most:
                self.gone.append(most - count)
            most = max(most, count)


def seconds(chance: random.Random, most: float) -> None:
    """Wait for a random time, to kill something at any moment."""
    time.sleep(chance.uniform(0, most))
