"""A table of PostgreSQL, its changes in a topic, and a driver that applies them: all of it killed while rows change."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.conftest import spark_environment
from tests.integration.support.postgres import Server
from tests.integration.support.waiting import until
from tests.peers.support.connect import SIGNALS, ConnectWorker, postgres_connector

COLUMNS = "id BIGINT, city STRING, amount DECIMAL(12,2), at TIMESTAMP, note STRING"
_READ = "SELECT id, city, amount, extract(epoch FROM at), md5(note) FROM {} ORDER BY id"
_STAYING = 50
"""The rows that are never deleted, and whose key never changes: 0 to this number."""
_KEYS = 400
_SECONDS = 240


class ChangedTable:
    """The table `orders`, and what changes it: a row of each kind of change, in transactions of any size."""

    def __init__(self, dsn: str, chance: random.Random) -> None:
        """Create the table with rows."""
        self.dsn = dsn
        self._chance = chance
        self._connection = psycopg.connect(dsn)
        self._connection.execute(SIGNALS)
        self._connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, city text, amount numeric(12,2), at timestamptz, note text)"
        )
        # Long notes are in a table of their own, and an update that does not change them does not send them.
        self._connection.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
        for number in range(_KEYS // 2):
            self._upsert(number)
        self._connection.commit()

    @contextmanager
    def open_transaction(self) -> Iterator[None]:
        """Change rows in a transaction that is open meanwhile: its changes are written before, and delivered after."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("UPDATE orders SET city = 'late', amount = amount + 1 WHERE id % 7 = 0")
            yield

    def change(self, transactions: int) -> None:
        """Run random transactions, some of which are rolled back."""
        for _ in range(transactions):
            for _ in range(self._chance.choice((1, 1, 2, 5, 40))):
                self._any()
            if self._chance.random() < 0.1:
                self._connection.rollback()
            else:
                self._connection.commit()

    def snapshot(self) -> None:
        """Ask the connector for an incremental snapshot."""
        data = json.dumps({"data-collections": ["public.orders"], "type": "incremental"})
        name = f"s{self._chance.random()}"
        self._connection.execute("INSERT INTO debezium_signal VALUES (%s, 'execute-snapshot', %s)", (name, data))
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def _any(self) -> None:
        key = self._chance.randrange(_KEYS)
        kind = self._chance.random()
        if kind < 0.5 or key < _STAYING:
            self._upsert(key)
        elif kind < 0.75:
            self._connection.execute("DELETE FROM orders WHERE id = %s", (key,))
        elif kind < 0.9:
            self._connection.execute("UPDATE orders SET city = %s WHERE id = %s", (f"c{self._chance.random()}", key))
        else:
            other = self._chance.randrange(_STAYING, _KEYS)
            found = self._connection.execute("SELECT 1 FROM orders WHERE id = %s", (other,)).fetchone()
            if found is None:
                self._connection.execute("UPDATE orders SET id = %s WHERE id = %s", (other, key))

    def _upsert(self, key: int) -> None:
        values = (key, f"c{self._chance.random()}", round(self._chance.uniform(-1e6, 1e6), 2), self._note())
        self._connection.execute(
            "INSERT INTO orders VALUES (%s, %s, %s, clock_timestamp(), %s)"
            " ON CONFLICT (id) DO UPDATE SET city = excluded.city, amount = excluded.amount, at = excluded.at",
            values,
        )
        if self._chance.random() < 0.2:
            self._connection.execute("UPDATE orders SET note = %s WHERE id = %s", (self._note(), key))

    def _note(self) -> str | None:
        return self._chance.choice((None, "", "short", "ä" * 50, f"{self._chance.random()}" * 300))


class Stream:
    """A worker and a driver between a table and its copy; both may be killed.

    Args:
        folder: where the worker and the driver keep what they know.
        kafka: the address of the brokers.
        server: the server of the table, with `wal_level=logical`.
        url: the database of the copy.
        seed: of what happens.
        exactly_once: whether the worker's offsets are in the transaction of its events.
    """

    def __init__(
        self, folder: Path, kafka: str, server: Server, url: str, seed: int, *, exactly_once: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self.table = ChangedTable(server.new_database(), self.chance)
        self.prefix = f"shop{seed}{'e' if exactly_once else ''}"
        self.worker = ConnectWorker(folder / "connect", kafka, exactly_once=exactly_once, flush=0.5)
        self._server = server
        self._folder = folder
        self._kafka = kafka
        self._url = url
        self._driver: subprocess.Popen[bytes] | None = None
        self._log = folder / "driver.log"
        self._known = 0
        """The lines of the log that were read before."""

    def connect(self) -> None:
        """Start the worker with the connector."""
        self.worker.start()
        database = psycopg.conninfo.conninfo_to_dict(self.table.dsn)["dbname"]
        given = postgres_connector("127.0.0.1", self._server.port, str(database), "public.orders")
        given |= {
            "topic.prefix": self.prefix, "slot.name": self.prefix, "publication.name": self.prefix,
            "decimal.handling.mode": "string", "time.precision.mode": "isostring", "skipped.operations": "t",
            "heartbeat.interval.ms": "500", "poll.interval.ms": "50", "incremental.snapshot.chunk.size": "64",
        }  # fmt: skip
        self.worker.run(self.prefix, given)

    def drive(self, *, once: bool = False) -> subprocess.Popen[bytes]:
        """Start the driver."""
        given = {
            "kafka": self._kafka, "topic": f"{self.prefix}.public.orders", "columns": COLUMNS, "once": once,
            "checkpoint": str(self._folder / "checkpoint"), "url": self._url, "table": "orders",
            # A killed worker repeats updates of rows that were deleted since, and what they keep is nowhere then.
            "options": {"create_table": "if_missing", "sequence_kind": "kafka", "dead_letter_table": "refused"},
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.peers.support.debezium_driver", json.dumps(given)]
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | spark_environment(), start_new_session=True
            )
        return self._driver

    def kill_driver(self) -> None:
        """Kill the driver with its workers."""
        if self._driver is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    def check_runs(self) -> None:
        """Fail if the driver has ended by itself, or the connector's task has failed."""
        if self._driver is not None and self._driver.poll() is not None:
            lines = self._log.read_text().splitlines()
            if any("KafkaMicroBatchStream$.metrics" in line for line in lines[self._known :]):
                # Spark 4.1.1 ends a query whose first progress comes before its source has asked for offsets.
                self._known = len(lines)
                self.drive()
                return
            told = [line[:1000] for line in lines if "outfall" in line and "Error" in line]
            pytest.fail("the driver ended:\n" + "\n".join([*told[-5:], *lines[-20:]]), pytrace=False)
        if (state := self.worker.state(self.prefix)).startswith("FAILED"):
            pytest.fail(state, pytrace=False)

    def wait_for(self, rows: int) -> None:
        """Return when the copy has so many rows."""

        def there() -> bool:
            self.check_runs()
            return len(self.copy()) >= rows

        until(there, f"{rows} rows", _SECONDS)

    def catch_up(self) -> None:
        """Return when the copy equals the table. Nothing changes the table meanwhile."""
        wanted = self.rows(self.table.dsn)

        def equal() -> bool:
            self.check_runs()
            return self.copy() == wanted

        try:
            until(equal, "the copy to be like the table", _SECONDS)
        except AssertionError:
            found = {row[0]: row for row in self.copy()}
            differ = [(row, found.pop(row[0], None)) for row in wanted if found.get(row[0]) != row]
            pytest.fail(f"{len(differ)} rows differ, such as {differ[:3]}; more: {list(found.values())[:3]}")

    def copy(self) -> list[tuple[Any, ...]]:
        """Return the rows of the copy; none before it is there."""
        try:
            return self.rows(self._url)
        except psycopg.errors.UndefinedTable:
            return []

    @staticmethod
    def rows(dsn: str) -> list[tuple[Any, ...]]:
        """Return the rows of the table or its copy."""
        with psycopg.connect(dsn) as connection:
            return connection.execute(_READ.format("orders")).fetchall()

    def close(self) -> None:
        """End everything."""
        self.kill_driver()
        self.worker.kill()
        self.table.close()


class StayingRows:
    """Sees whether a row disappears that the source never deletes, once it was there."""

    def __init__(self, url: str) -> None:
        """Begin to look."""
        self.gone: list[int] = []
        self._url = url
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        most = 0
        while not self._ends.wait(0.2):
            with suppress(psycopg.Error), psycopg.connect(self._url) as connection:
                query = "SELECT count(*) FROM orders WHERE id < %s"
                found = connection.execute(query, (_STAYING,)).fetchone()
                count = found[0] if found else 0
                if count < most:
                    self.gone.append(most - count)
                most = max(most, count)


def seconds(chance: random.Random, most: float) -> None:
    """Wait for a random time, to kill something at any moment."""
    time.sleep(chance.uniform(0, most))
