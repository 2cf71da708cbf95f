"""A target of each sink and format, its sink, and what a reader finds there, for changes of schemas."""

from __future__ import annotations

import csv
import io
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outfall.delta import DeltaSink
from outfall.dynamodb import DynamoDBSink
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.kafka import KafkaSink
from outfall.kinesis import KinesisSink
from outfall.opensearch import OpenSearchSink
from outfall.redis import RedisSink
from tests.integration.dynamodb.server import dynamo_server
from tests.integration.kinesis.server import aws_server
from tests.integration.mysql.support import Target as MySQLTable
from tests.integration.opensearch.model import model_process
from tests.integration.postgres.support import Target as PostgresTable
from tests.integration.s3.support import Target as S3Target
from tests.integration.support.http_receiver import HttpReceiver
from tests.integration.support.iceberg_epochs import Lake
from tests.integration.support.kafka_reader import read
from tests.integration.support.redis_server import redis_server, rows_of
from tests.integration.support.sql import Table
from tests.integration.wrappers.keyed_targets import broker
from tests.unit.support.delta_reader import newest, write_table

FIELDS = {"id": pa.string(), "k": pa.string(), "n": pa.int64(), "x": pa.int32(), "text": pa.string()}
Row = Mapping[str, Any]


class Target(ABC):
    """A target of its own, on a server that all share."""

    replaces = True
    """Whether a reader finds one row of a key."""

    def __init__(self, server: Any, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.name = f"t_{secrets.token_hex(8)}"
        self.make()

    def make(self) -> None:
        """Make what the sink expects to be there."""

    @abstractmethod
    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        """Make the sink, as each start does. A sink without keys or order ignores them."""

    @abstractmethod
    def read(self) -> Iterable[Row]:
        """Return the rows that a reader finds."""

    def require(self, column: str) -> None:
        """Make a column NOT NULL, as the owner of the target does."""
        raise NotImplementedError

    def permit(self, column: str) -> None:
        """Let a column be NULL again, as the owner of the target does."""
        raise NotImplementedError

    def rename(self, column: str, to: str) -> None:
        """Rename a column, as the owner of the target does."""
        raise NotImplementedError

    def widen(self, column: str) -> None:
        """Let a column have 64 bits, as the owner of the target does."""
        raise NotImplementedError

    def key_by(self, column: str) -> None:
        """Let the target take another key, if it has to."""

    def rows(self) -> list[dict[str, str]]:
        """Return the rows as texts without NULLs, in any fixed order."""
        found = [{name: str(value) for name, value in row.items() if value not in (None, "")} for row in self.read()]
        return sorted(found, key=lambda row: sorted(row.items()))


class Sql(Target):
    table: Table

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return self.table.sink(**{"write_mode": "upsert", "key_columns": key, "order_column": order} | options)

    def read(self) -> Iterable[Row]:
        names = [name for (name,) in self.table.read(self.named)]
        quoted = ", ".join(f"{self.table.quote}{name}{self.table.quote}" for name in names)
        return [dict(zip(names, row, strict=True)) for row in self.table.read(f"SELECT {quoted} FROM t")]

    def rename(self, column: str, to: str) -> None:
        self.table.run(f"ALTER TABLE t RENAME COLUMN {column} TO {to}")

    @property
    @abstractmethod
    def named(self) -> str:
        """The query for the names of the columns."""


class Postgres(Sql):
    def make(self) -> None:
        columns = "id text PRIMARY KEY, k text, n bigint, x int, text text"
        self.table = PostgresTable(self.server.new_database(), f"CREATE TABLE t ({columns})")

    @property
    def named(self) -> str:
        return "SELECT column_name FROM information_schema.columns WHERE table_name = 't' AND table_schema = 'public'"

    def require(self, column: str) -> None:
        self.table.run(f"ALTER TABLE t ALTER {column} SET NOT NULL")

    def permit(self, column: str) -> None:
        self.table.run(f"ALTER TABLE t ALTER {column} DROP NOT NULL")

    def widen(self, column: str) -> None:
        self.table.run(f"ALTER TABLE t ALTER {column} TYPE bigint")

    def key_by(self, column: str) -> None:
        self.table.run(f"CREATE UNIQUE INDEX ON t ({column})")


class MySQL(Sql):
    def make(self) -> None:
        kind = "varchar(20) COLLATE utf8mb4_bin"
        ddl = f"CREATE TABLE t (id {kind} PRIMARY KEY, k {kind}, n bigint, x int, text text)"
        self.table = MySQLTable(self.server, self.server.new_database(), ddl)

    @property
    def named(self) -> str:
        return "SELECT column_name FROM information_schema.columns WHERE table_name = 't' AND table_schema = DATABASE()"

    def require(self, column: str) -> None:
        self.table.run(f"ALTER TABLE t MODIFY {column} text NOT NULL")

    def widen(self, column: str) -> None:
        self.table.run(f"ALTER TABLE t MODIFY {column} bigint")

    def key_by(self, column: str) -> None:
        self.table.run(f"ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE ({column})")


class Delta(Target):
    def make(self) -> None:
        write_table(self.folder / self.name, {name: _DELTA[kind] for name, kind in FIELDS.items()})

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        given: dict[str, Any] = {"write_mode": "upsert", "key_columns": key, "order_column": order}
        return DeltaSink(self.folder / self.name, **(given | options))

    def read(self) -> Iterable[Row]:
        return newest(self.folder / self.name).rows()

    def require(self, column: str) -> None:
        self._alter(lambda field: field | {"nullable": False} if field["name"] == column else field)

    def _alter(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Change the fields of the schema, as another writer's commit does."""
        log = self.folder / self.name / "_delta_log"
        versions = sorted(log.glob("*.json"))
        actions = [json.loads(line) for line in versions[0].read_text().splitlines()]
        (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
        schema = json.loads(metadata["schemaString"])
        schema["fields"] = [change(field) for field in schema["fields"]]
        commit = [
            {"commitInfo": {"operation": "CHANGE COLUMN", "operationParameters": {}, "timestamp": 1}},
            {"metaData": metadata | {"schemaString": json.dumps(schema)}},
        ]
        (log / f"{len(versions):020d}.json").write_text("\n".join(map(json.dumps, commit)))


_DELTA = {pa.string(): "string", pa.int64(): "long", pa.int32(): "integer"}


class Iceberg(Target):
    def make(self) -> None:
        (folder := self.folder / self.name).mkdir()
        self.lake = Lake(folder)
        self.lake.create(pa.schema(list(FIELDS.items())))

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return self.lake.sink(**{"write_mode": "upsert", "key_columns": key, "order_column": order} | options)

    def read(self) -> Iterable[Row]:
        return self.lake.rows()

    def require(self, column: str) -> None:
        with self.lake.table.update_schema(allow_incompatible_changes=True) as update:
            update.update_column(column, required=True)

    def rename(self, column: str, to: str) -> None:
        with self.lake.table.update_schema() as update:
            update.rename_column(column, to)


class Redis(Target):
    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return RedisSink(self.server.url, f"{self.name}:{{{key}}}", order_column=order, **options)

    def read(self) -> Iterable[Row]:
        return list(rows_of(self.server.client(), f"{self.name}:*").values())


class DynamoDB(Target):
    def make(self) -> None:
        self.server.new_table(self.name, id="S")

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return DynamoDBSink(
            self.name, endpoint_url=self.server.endpoint, region="us-east-1", order_column=order, **options
        )

    def read(self) -> Iterable[Row]:
        return list(self.server.rows(self.name))


class OpenSearch(Target):
    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return OpenSearchSink(self.server.url, index=self.name, key_columns=key, order_column=order, **options)

    def read(self) -> Iterable[Row]:
        return list(self.server.rows(self.name).values())


class Kafka(Target):
    replaces = False

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        given: dict[str, Any] = {"value_format": "json", "key_column": key, "create_topic": "if_missing"}
        return KafkaSink(self.server, self.name, **(given | {"partitions": 1, "replication_factor": 1} | options))

    def read(self) -> Iterable[Row]:
        return [json.loads(record.value or b"") for record in read(self.server, self.name)]


class Kinesis(Target):
    replaces = False

    def make(self) -> None:
        self.server.new_stream(self.name)

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return KinesisSink(
            self.name, partition_key=key, endpoint_url=self.server.endpoint, region="us-east-1", **options
        )

    def read(self) -> Iterable[Row]:
        return [json.loads(record["Data"]) for record in self.server.records(self.name)]


class Http(Target):
    replaces = False

    def make(self) -> None:
        self.target = self.server.new_target()

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return HttpSink(self.server.url(self.target), idempotency="item", key_column=key, **options)

    def read(self) -> Iterable[Row]:
        return list(self.server.targets[self.target].accepted)


def parsed(name: str, data: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file, each with the columns that the file has for it."""
    if name.endswith(".parquet"):
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
        return rows
    text = data.decode()
    if name.endswith(".csv"):
        return [dict(row) for row in csv.DictReader(io.StringIO(text))]
    return [json.loads(line) for line in text.splitlines()]


class Files(Target):
    format = "jsonl"
    replaces = False
    given: Mapping[str, Any] = {}

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return FileSink(self.folder / self.name, format=self.format, **self.given, **options)

    def read(self) -> Iterable[Row]:
        return [
            row
            for file in sorted((self.folder / self.name).glob(f"*.{self.format}"))
            for row in parsed(file.name, file.read_bytes())
        ]


class CsvFiles(Files):
    format = "csv"
    given = {"header": True}


class ParquetFiles(Files):
    format = "parquet"


class Growing(Files):
    given = {"parts": 1}


class GrowingCsv(CsvFiles):
    given = {"header": True, "parts": 1}


class Objects(Target):
    format = "jsonl"
    replaces = False

    def make(self) -> None:
        self.target = S3Target(self.server)

    def sink(self, key: str = "id", order: str | None = "n", **options: Any) -> Any:
        return self.target.sink(format=self.format, **options)

    def read(self) -> Iterable[Row]:
        found = self.server.objects(self.target.bucket, self.target.prefix)
        ends = f".{self.format}"
        return [row for name, data in found.items() if name.endswith(ends) for row in parsed(name, data)]


class ParquetObjects(Objects):
    format = "parquet"


TARGETS: dict[str, type[Target]] = {
    "postgres": Postgres,
    "mysql": MySQL,
    "delta": Delta,
    "iceberg": Iceberg,
    "redis": Redis,
    "dynamodb": DynamoDB,
    "opensearch": OpenSearch,
    "kafka": Kafka,
    "kinesis": Kinesis,
    "http": Http,
    "jsonl": Files,
    "csv": CsvFiles,
    "parquet": ParquetFiles,
    "growing_jsonl": Growing,
    "growing_csv": GrowingCsv,
    "s3_jsonl": Objects,
    "s3_parquet": ParquetObjects,
}


class Servers:
    """Servers that are started when they are needed, and run until the end."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> None:
        self._started: dict[type[Target], Any] = {}
        enter = stack.enter_context
        self._makers: dict[type[Target], Callable[[], Any]] = {
            Postgres: lambda: request.getfixturevalue("postgres"),
            MySQL: lambda: request.getfixturevalue("mysql"),
            Redis: lambda: enter(redis_server()),
            DynamoDB: lambda: enter(dynamo_server()),
            OpenSearch: lambda: enter(model_process(folder)),
            Kafka: lambda: enter(broker()),
            Kinesis: lambda: enter(aws_server()),
            Http: lambda: enter(HttpReceiver().running()),
            Objects: lambda: request.getfixturevalue("s3"),
        }

    def get(self, kind: type[Target]) -> Any:
        for base in kind.__mro__:
            if base in self._makers:
                if base not in self._started:
                    self._started[base] = self._makers[base]()
                return self._started[base]
        return None
