"""`outfall move` on servers, from an epoch that is recorded and not published."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql as psql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.kafka import KafkaSink
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver, crash_at
from tests.integration.opensearch.model import Cluster, model_process
from tests.integration.support.kafka_parts import make_topic
from tests.integration.support.kafka_reader import read
from tests.integration.support.postgres import Databases
from tests.unit.support.command import done, failed, importable

pytestmark = pytest.mark.thorough


def name() -> str:
    return f"t-{secrets.token_hex(6)}"


@dataclass
class Moved:
    """A target before and after its move."""

    old: Any
    new: Any
    rows: Callable[[], list[int]]
    move: Callable[[], None] = lambda: None
    fixed: bool = False
    other: Any = None
    """A sink with another target under the new address."""


class Servers:
    def __init__(self, postgres: Databases, kafka: str, folder: Path, stack: ExitStack) -> None:
        self.postgres, self.kafka = postgres, kafka
        self.folder, self.stack = folder, stack

    def parts(self) -> Moved:
        return self._database('partition_id int, "offset" bigint, UNIQUE (partition_id, "offset")', parts=2)

    def parts_by_hash(self) -> Moved:
        return self._database("more int", parts=2, offset_keys="ledger")

    def offsets(self) -> Moved:
        return self._database("UNIQUE (part, id)", offset_columns=["part", "id"])

    def _database(self, columns: str, **options: Any) -> Moved:
        old = self.postgres.new_database()
        given = conninfo_to_dict(old)
        after = make_conninfo(old, dbname=f"{given['dbname']}_moved")
        self.postgres._made.append(f"{given['dbname']}_moved")
        with psycopg.connect(old, autocommit=True) as connection:
            for table in ("t", "u"):
                connection.execute(f"CREATE TABLE {table} (id bigint, part int, {columns})")

        def rename() -> None:
            with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [given["dbname"]]
                )
                names = [psql.Identifier(str(conninfo_to_dict(dsn)["dbname"])) for dsn in (old, after)]
                connection.execute(psql.SQL("ALTER DATABASE {} RENAME TO {}").format(*names))

        def rows() -> list[int]:
            with psycopg.connect(after) as connection:
                return [found for (found,) in connection.execute("SELECT id FROM t")]

        sinks = [PostgresSink(dsn, table, **options) for dsn, table in ((old, "t"), (after, "t"), (after, "u"))]
        return Moved(sinks[0], sinks[1], rows, rename, "parts" in options, sinks[2])

    def opensearch(self) -> Moved:
        (folder := self.folder / "opensearch").mkdir()
        cluster: Cluster = self.stack.enter_context(model_process(folder))
        index = name()
        urls = (cluster.url, cluster.url.replace("127.0.0.1", "localhost"))
        old, new = (OpenSearchSink(url, index=index, key_columns="id") for url in urls)
        other = OpenSearchSink(urls[1], index=name(), key_columns="id")
        return Moved(old, new, lambda: [row["id"] for row in cluster.rows(index).values()], other=other)

    def kafka_parts(self) -> Moved:
        """Brokers under another address; their name is not that of the target."""
        topics = (name(), name())
        for topic in topics:
            make_topic(self.kafka, topic, 2)
        places = [(self.kafka, topics[0]), (self.kafka.replace("127.0.0.1", "localhost"), topics[0])]
        sinks = [
            KafkaSink(brokers, topic, value_format="json", parts=2, replication_factor=1)
            for brokers, topic in (*places, (self.kafka, topics[1]))
        ]

        def rows() -> list[int]:
            return [json.loads(record.value or b"")["id"] for record in read(self.kafka, topics[0])]

        return Moved(sinks[0], sinks[1], rows, fixed=True, other=sinks[2])


@pytest.fixture
def servers(postgres: Databases, kafka: str, tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(postgres, kafka, tmp_path, stack)


def write(moved: Moved, sink: Any, recovery: str, epoch: int) -> None:
    rows: list[Any] = [{"id": 3 * epoch + number, "part": number % 2} for number in range(3)]
    LocalDriver(sink, recovery).run_epoch(epoch, [[(str(row["id"]), row) for row in rows] if moved.fixed else rows])


@pytest.mark.parametrize("target", ["parts", "parts_by_hash", "offsets", "opensearch", "kafka_parts"])
def test_a_target_that_moved_after_prepared(
    servers: Servers, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: Moved = getattr(servers, target)()
    recovery = str(tmp_path / "recovery")
    write(moved, moved.old, recovery, 0)
    with crash_at("after PREPARED"):
        write(moved, moved.old, recovery, 1)
    moved.move()
    other = importable(monkeypatch, moved.other)
    text = failed("move", recovery, "sink", "--sink", other, "--yes")
    assert "its own name, and only its address changes. What to do: restore the earlier name" in text
    new = importable(monkeypatch, moved.new)
    if target == "kafka_parts":
        assert "nothing to move" in done("move", recovery, "sink", "--sink", new)
    else:
        assert "the step's record is there: generation " in failed("move", recovery, "sink", "--sink", new)
        done("move", recovery, "sink", "--sink", new, "--yes")
    for epoch in (1, 2):
        write(moved, moved.new, recovery, epoch)
    assert sorted(moved.rows()) == list(range(9))
