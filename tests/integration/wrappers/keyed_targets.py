"""Targets that keep one row per key: how each is made, written by its sink, and read by a client beside it."""

from __future__ import annotations

import io
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import requests
from deltalake import write_deltalake
from requests.adapters import BaseAdapter

from outfall.delta import DeltaSink
from outfall.dynamodb import DynamoDBSink
from outfall.http import HttpSink
from outfall.kafka import KafkaSink, delivery
from outfall.kafka.producer.cache import PRODUCERS
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresSink
from outfall.redis import RedisSink
from tests.integration.dynamodb.server import dynamo_server
from tests.integration.mysql.support import Target as MySQLTarget
from tests.integration.opensearch.model import model_process
from tests.integration.support import kafka_refused
from tests.integration.support.iceberg_epochs import Lake
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_reader import read
from tests.integration.support.redis_server import redis_server, rows_of
from tests.unit.support.delta_reader import newest, write_table

COLUMNS = ("id", "n", "source", "text")
BEFORE = [("a", -1, "", "a-"), ("c", -1, "", "c-")]
"""Rows that are there before the first epoch, in databases."""
MODES: dict[str, dict[str, Any]] = {
    "upsert": {"write_mode": "upsert"},
    "marker": {"write_mode": "upsert", "delete_marker": "gone"},
    "delete": {"write_mode": "delete"},
    "changes": {"write_mode": "changes", "operation_column": "op", "sequence_column": "n"},
}


class Target(ABC):
    """An own target for each test, on a server that they share."""

    modes: tuple[str, ...] = ("upsert", "marker")
    reports = True
    """Whether its sink reports rejected rows to a wrapper."""

    def __init__(self, server: Any, folder: Path, mode: str) -> None:
        self.server = server
        self.folder = folder
        self.mode = mode
        self.name = f"t_{secrets.token_hex(8)}"
        self.make()

    def make(self) -> None:
        """Make what the sink expects to be there."""

    @abstractmethod
    def sink(self) -> Any:
        """Make the sink, as each process does."""

    @abstractmethod
    def read(self) -> dict[str, str]:
        """Read the texts by key."""


class Postgres(Target):
    modes = tuple(MODES)
    reports = False

    def make(self) -> None:
        with self._connected() as connection:
            connection.execute(
                f"CREATE TABLE {self.name} (id text PRIMARY KEY, n bigint, source text, text text, at timestamptz)"
            )
            connection.cursor().executemany(
                f"INSERT INTO {self.name} (id, n, source, text) VALUES (%s, %s, %s, %s)", BEFORE
            )

    def sink(self) -> Any:
        return PostgresSink(self.server, self.name, key_columns="id", **MODES[self.mode])

    def read(self) -> dict[str, str]:
        with self._connected() as connection:
            return dict(connection.execute(f"SELECT id, text FROM {self.name}").fetchall())

    def _connected(self) -> Any:
        return psycopg.connect(self.server, autocommit=True)


class MySQL(Target):
    modes = tuple(MODES)
    reports = False
    server: MySQLTarget

    def make(self) -> None:
        values = ", ".join(map(str, BEFORE))
        self.server.run(
            f"CREATE TABLE {self.name} (id varchar(20) COLLATE utf8mb4_bin PRIMARY KEY, n bigint, source text,"
            f" text text, at datetime(6)); INSERT INTO {self.name} (id, n, source, text) VALUES {values}"
        )

    def sink(self) -> Any:
        return self.server.sink(table=self.name, key_columns="id", **MODES[self.mode])

    def read(self) -> dict[str, str]:
        return dict(self.server.read(f"SELECT id, text FROM {self.name}"))


class Iceberg(Target):
    modes = ("upsert", "marker", "delete")
    reports = False

    def make(self) -> None:
        self.lake = Lake(self.folder)
        self.lake.create(SCHEMA)
        self.lake.append(BATCH)

    def sink(self) -> Any:
        return self.lake.sink(key_columns="id", **MODES[self.mode])

    def read(self) -> dict[str, str]:
        return {row["id"]: row["text"] for row in self.lake.rows()}


class Delta(Target):
    modes = ("upsert", "marker", "delete")
    reports = False

    def make(self) -> None:
        columns = {"id": "string", "n": "long", "source": "string", "text": "string", "at": "timestamp"}
        write_table(self.folder / "table", columns)
        write_deltalake(self.folder / "table", BATCH, mode="append")

    def sink(self) -> Any:
        return DeltaSink(self.folder / "table", key_columns="id", **MODES[self.mode])

    def read(self) -> dict[str, str]:
        return {row["id"]: row["text"] for row in newest(self.folder / "table").rows()}


AT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema({"id": pa.string(), "n": pa.int64(), "source": pa.string(), "text": pa.string(), "at": AT})
BATCH = pa.RecordBatch.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in BEFORE], SCHEMA)


class Redis(Target):
    def sink(self) -> Any:
        return RedisSink(self.server.url, f"{self.name}:{{id}}", delete_marker=marker(self.mode))

    def read(self) -> dict[str, str]:
        found = rows_of(self.server.client(), f"{self.name}:*")
        return {key.rpartition(":")[2]: row["text"] for key, row in found.items()}


class DynamoDB(Target):
    def make(self) -> None:
        self.server.new_table(self.name, id="S")

    def sink(self) -> Any:
        return DynamoDBSink(
            self.name, endpoint_url=self.server.endpoint, region="us-east-1", delete_marker=marker(self.mode)
        )

    def read(self) -> dict[str, str]:
        return {row["id"]: row["text"] for row in self.server.rows(self.name)}


class OpenSearch(Target):
    def sink(self) -> Any:
        return OpenSearchSink(self.server.url, index=self.name, key_columns="id", delete_marker=marker(self.mode))

    def read(self) -> dict[str, str]:
        return {row["id"]: row["text"] for row in self.server.rows(self.name).values()}


class Put(Target):
    """An HTTP server that stores each body under its URL."""

    modes = ("upsert",)

    def make(self) -> None:
        self._bodies: dict[str, Any] = {}
        self._session = requests.Session()
        self._session.mount("https://", _Storing(self._bodies))

    def sink(self) -> Any:
        url = f"https://{self.name.replace('_', '-')}.example/{{id}}"
        return HttpSink(url, session=self._session, method="PUT", body="record")

    def read(self) -> dict[str, str]:
        return {url.rpartition("/")[2]: row["text"] for url, row in self._bodies.items()}


class _Storing(BaseAdapter):
    def __init__(self, bodies: dict[str, Any]) -> None:
        super().__init__()
        self._bodies = bodies

    def send(self, request: requests.PreparedRequest, *args: Any, **settings: Any) -> requests.Response:
        assert isinstance(request.body, bytes)
        self._bodies[str(request.url)] = json.loads(request.body)
        answer = requests.Response()
        answer.request, answer.url, answer.raw, answer.status_code = request, request.url or "", io.BytesIO(), 200
        return answer

    def close(self) -> None:
        pass


class Kafka(Target):
    """A compacted topic of the tests' own broker, read as a table."""

    modes = ("upsert",)

    def make(self) -> None:
        kafka_refused.make_topic(self.server, self.name, "INVALID_RECORD")

    def sink(self) -> Any:
        return KafkaSink(self.server, self.name, value_format="json", key_column="id", delivery_timeout=20)

    def read(self) -> dict[str, str]:
        found = read(self.server, self.name)
        return {(each.key or b"").decode(): json.loads(each.value or b"")["text"] for each in found}


def marker(mode: str) -> str | None:
    return "gone" if mode == "marker" else None


TARGETS: dict[str, type[Target]] = {
    "postgres": Postgres,
    "mysql": MySQL,
    "iceberg": Iceberg,
    "delta": Delta,
    "redis": Redis,
    "dynamodb": DynamoDB,
    "opensearch": OpenSearch,
    "put": Put,
    "kafka": Kafka,
}


class Servers:
    """Servers that are started when they are needed, and run until the end."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._started: dict[str, Any] = {}
        self._makers: dict[str, Callable[[], Any]] = {
            "postgres": lambda: request.getfixturevalue("conformance_dsn"),
            "mysql": lambda: mysql_database(request),
            "redis": lambda: stack.enter_context(redis_server()),
            "dynamodb": lambda: stack.enter_context(dynamo_server()),
            "opensearch": lambda: stack.enter_context(model_process(folder)),
            "kafka": lambda: stack.enter_context(broker()),
        }

    def get(self, name: str) -> Any:
        if name not in self._started:
            self._started[name] = self._makers.get(name, lambda: None)()
        return self._started[name]


def mysql_database(request: pytest.FixtureRequest) -> MySQLTarget:
    server = request.getfixturevalue("mysql")
    return MySQLTarget(server, server.new_database(), "SELECT 1")


@contextmanager
def broker() -> Iterator[str]:
    model = ModelBroker()
    try:
        yield model.address
    finally:
        # Else they would go on looking for the broker.
        PRODUCERS.close()
        for clients in delivery.CLIENTS.clear():
            clients.shut()
        model.close()
