"""Tables, their changes in topics, and a driver that applies them to copies: all of it killed while rows change."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from outfall.delivery_order import PER_GENERATION
from tests.integration.conftest import spark_environment
from tests.integration.support.waiting import until
from tests.peers.support.changed_tables import ChangedTables, Table, Tables
from tests.peers.support.connect import ConnectWorker
from tests.peers.support.order_copies import Copy

_SECONDS = 240


class Stream:
    """A worker and a driver between tables and their copies; both may be killed.

    Args:
        folder: where the worker and the driver keep what they know.
        kafka: the address of the brokers.
        source: where the tables are made.
        target: where the copies are.
        seed: of what happens.
        exactly_once: whether the worker's offsets are in the transaction of its events.
        flush: how often a worker that is not keeps them, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        kafka: str,
        source: Tables,
        target: Copy,
        seed: int,
        *,
        exactly_once: bool = False,
        flush: float = 0.5,
    ) -> None:
        self.chance = random.Random(seed)
        self.table = ChangedTables(source, self.chance)
        self.copy = target
        if not target.keeps_values:
            source.send_all_values()
        self.prefix = f"shop{uuid.uuid4().hex[:8]}"
        self.topic = self.topic_of(source.tables[0])
        self._connector = source.connector(self.prefix, kafka)
        self.worker = ConnectWorker(folder / "connect", kafka, exactly_once=exactly_once, flush=flush)
        self._folder = folder
        self.kafka = kafka
        self._driver: subprocess.Popen[bytes] | None = None
        self.kills = {"driver": 0, "worker": 0}
        """How often each ran, and was killed by `kill_driver` and `kill_worker`."""
        self.ended = 0
        """How often Spark ended a driver by a fault of its own, so that it was started again."""
        self._before = -1
        """The newest epoch when the driver was started."""
        self._log = folder / "driver.log"
        self.lives: dict[str, dict[str, Any]] = {self.topic_of(table): {"generation": 1} for table in source.tables}
        """The topics, as `TopicGenerations` takes them."""
        self.life = self.lives[self.topic]
        """The first one."""
        self.starting = "earliest"
        """The offsets that a new checkpoint starts at."""
        self._on_truncate = "fail"
        self.checkpoint = 0
        self._log.touch()
        self._known = 0
        """The lines of the log that earlier drivers have written."""

    def topic_of(self, table: Table) -> str:
        """Return the topic of a table."""
        return f"{self.prefix}.{self.table.source.schema}.{table.name}"

    def connect(self, **more: str) -> None:
        """Start the worker with the connector. `more` are settings with underscores for dots."""
        self._connector |= {
            "skipped.operations": "t", "heartbeat.interval.ms": "500", "poll.interval.ms": "50",
            "incremental.snapshot.chunk.size": "16",
        }  # fmt: skip
        self._connector |= {name.replace("_", "."): value for name, value in more.items()}
        self.worker.start()
        self.worker.run(self.prefix, self._connector)

    def add(self, table: Table, *, renamed: Table | None = None) -> None:
        """Add a table as the recipe says it: one that is made now, or that had another name."""
        source, copy = self.table.source, self.copy
        assert isinstance(copy, Tables)
        if renamed is None:
            source.run(*source.create(table))
            self.table.fill(table, range(table.rows))
            source.publish(self.prefix, table)
        else:
            source.run(f"ALTER TABLE {source.quoted(renamed.name)} RENAME TO {source.quoted(table.name)}")
            for side in (source, copy):
                side.tables.remove(renamed)
                side.former.append(renamed)
        copy.make_copies([table])
        source.tables.append(table)
        copy.tables.append(table)
        self.kill_driver()
        self.lives[self.topic_of(table)] = {}
        self.drive()
        self._connector["table.include.list"] += f",{source.schema}.{table.name}"
        self.worker.run(self.prefix, self._connector)
        numbers = count(1000)

        def is_captured() -> bool:
            self.check_runs()
            self.table.fill(table, [next(numbers)])
            return copy.read(f"SELECT count(*) FROM {copy.quoted(table.name)}") != [("0",)]

        # The task that runs with the former list still ignores a snapshot of the table.
        until(is_captured, f"a change of {table.name}", _SECONDS)
        self.table.snapshot(of=[table])

    def pin(self) -> None:
        """Start the driver again, and let further starts expect the topics as it has logged them."""
        self.kill_driver()
        self.drive()

        def told() -> list[str]:
            self.check_runs()
            return re.findall(r"Pass (\{.*\}) to TopicGenerations", "\n".join(self._told()))

        until(told, "the topics in the log", _SECONDS)
        for topic, life in json.loads(told()[-1]).items():
            # In place, since a test may hold the first one.
            self.lives[topic] |= life

    def drive(self, *, on_truncate: str | None = None) -> None:
        """Start the driver, on the lives of the topics that are known. Without `on_truncate`, it is as before."""
        self._on_truncate = on_truncate or self._on_truncate
        given = {
            "kafka": self.kafka, "lives": self.lives, "columns": self._columns(), "starting": self.starting,
            "on_truncate": self._on_truncate, "checkpoint": str(self.folder()),
            "sink": self.copy.sink, "marked": not self.copy.keeps_values,
            "per_epoch": 500 * len(self.table.source.tables),
            # Another checkpoint may follow the first one on purpose only.
            "options": self.copy.options() | ({"on_existing": "resume"} if self.checkpoint else {}),
        }  # fmt: skip
        self._before, self._known = self._newest(), len(self._log.read_text().splitlines())
        command = [sys.executable, "-m", "tests.peers.support.debezium_driver", json.dumps(given)]
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | spark_environment(), start_new_session=True
            )

    def _columns(self) -> str | dict[str, str]:
        """Return the columns, of several tables by the names that the sink takes."""
        source, copy = self.table.source, self.copy
        if not isinstance(copy, Tables) or len(source.tables) == 1:
            return source.tables[0].spark()
        tables = [*source.tables, *source.former]
        return {f"{source.schema}.{copy.quoted(table.name)}": table.spark() for table in tables}

    def folder(self) -> Path:
        """Return the folder of the checkpoint."""
        return self._folder / f"checkpoint{self.checkpoint}"

    def refused(self) -> str:
        """Return what the driver says when it has ended by itself."""
        assert self._driver is not None
        self._driver.wait(_SECONDS)
        return "\n".join(self._told())

    def _told(self) -> list[str]:
        return self._log.read_text().splitlines()[self._known :]

    def wait_for_topics(self) -> dict[str, dict[int, int]]:
        """Return the ends of the topics' partitions when all that was changed is in the first one."""
        mark = f"mark {uuid.uuid4()}"
        self.table.source.run(f"UPDATE orders SET city = '{mark}' WHERE id = 0")
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": mark, "auto.offset.reset": "earliest"})
        consumer.subscribe([self.topic])

        def is_there() -> bool:
            return any(mark.encode() in (message.value() or b"") for message in consumer.consume(1000, 1))

        try:
            until(is_there, f"the mark in {self.topic}", _SECONDS)
            return {topic: _ends(consumer, topic) for topic in self.lives}
        finally:
            consumer.close()

    def read_to_the_end(self) -> None:
        """Return when the driver has applied all that was changed."""
        ends = self.wait_for_topics()

        def is_read() -> bool:
            self.check_runs()
            read = self.offsets()
            return all(
                read.get(topic, {}).get(str(number), 0) >= end
                for topic, partitions in ends.items()
                for number, end in partitions.items()
            )

        until(is_read, "the ends of the topics to be read", _SECONDS)

    def offsets(self) -> dict[str, dict[str, int]]:
        """Return the offsets at which the newest completed epoch ended, as the checkpoint has them."""
        if (done := self._newest()) < 0:
            return {}
        found: dict[str, dict[str, int]] = json.loads(
            (self.folder() / "offsets" / str(done)).read_text().splitlines()[-1]
        )
        return found

    def wait_for_epoch(self) -> None:
        """Return when the driver has completed an epoch since it was started."""

        def is_done() -> bool:
            self.check_runs()
            return self._newest() > self._before

        until(is_done, "an epoch", _SECONDS)

    def _newest(self) -> int:
        done = (self.folder() / "commits").glob("[0-9]*")
        return max((int(path.name) for path in done), default=-1)

    def repair(self, *tables: Table) -> None:
        """Make copies like their tables again, as the recipe says it, under the next generation; the driver runs.

        Without tables, it is the first one.
        """
        copy, source = self.copy, self.table.source
        assert isinstance(copy, Tables)
        tables = tables or (source.tables[0],)
        self.table.snapshot(of=tables)
        for table in tables:
            least = self.lives[self.topic_of(table)]["generation"] * PER_GENERATION
            name = copy.quoted(table.name)
            counting = (
                f"SELECT count(*) FROM {name} WHERE seq >= {least}",
                f"SELECT count(*) FROM {source.quoted(table.name)}",
            )

            def sent(of_copy: str = counting[0], of_source: str = counting[1]) -> bool:
                self.check_runs()
                return copy.read(of_copy) == source.read(of_source)

            until(sent, "all rows in the new generation", _SECONDS)
            copy.run(f"DELETE FROM {name} WHERE seq < {least}")

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

    def kill(self, number: int) -> None:
        """Kill the worker, for odd numbers the driver, at any moment of a snapshot and of changes; start it again."""
        self.table.snapshot()
        self.table.change(40)
        seconds(self.chance, 2)
        self.check_runs()
        if number % 2 == 0:
            self.kill_worker()
            self.table.change(20)
            self.worker.start()
        else:
            if not self.kill_driver():
                self.check_end()
            self.table.change(20)
            self.drive()

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
        lines = self._told()
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
        wanted = self.table.source.rows()

        def went_further(since: int) -> bool:
            self.check_runs()
            return self._newest() > since

        try:
            # Rows are read after each epoch only, since a client for each table takes its time.
            newest = self._newest()
            while self.copy.rows() != wanted:
                until(partial(went_further, newest), "the copy to be like the table, or an epoch", _SECONDS)
                newest = self._newest()
        except AssertionError:
            found, given = set(self.copy.rows()), set(wanted)
            lost, more = sorted(given - found), sorted(found - given)
            pytest.fail(f"{len(lost)} rows are not in the copy, such as {lost[:3]}; {len(more)} more: {more[:3]}")

    def close(self) -> None:
        """End everything."""
        self.kill_driver()
        self.worker.kill()
        self.table.close()


def _ends(consumer: Consumer, topic: str) -> dict[int, int]:
    found = consumer.list_topics(topic, timeout=10).topics[topic]
    places = {number: TopicPartition(topic, number) for number in ({} if found.error else found.partitions)}
    return {number: consumer.get_watermark_offsets(place, 10)[1] for number, place in places.items()}


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
