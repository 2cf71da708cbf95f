"""Records what Debezium's connectors write for each type of PostgreSQL and MySQL: `python -m … FOLDER`.

The files are those of `tests/integration/debezium/events`. Each has a row with a value of each type and a row of NULLs,
as a connector with the settings of its name sends them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from tests.integration.debezium.source_types import MYSQL, POSTGRES
from tests.integration.support import mysql, postgres
from tests.integration.support.servers import open_folder
from tests.integration.support.waiting import until
from tests.peers.support.apache_kafka import own_cluster
from tests.peers.support.connect import SIGNALS, ConnectWorker, mysql_connector, postgres_connector
from tests.peers.support.debian import mysql_programs

_NUMERIC = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false",
    "value.converter.decimal.format": "NUMERIC",
}  # fmt: skip
SETTINGS: Mapping[str, Mapping[str, str]] = {
    # Those of the recipe.
    "exact": _NUMERIC | {
        "decimal.handling.mode": "string", "time.precision.mode": "isostring", "interval.handling.mode": "string",
        "bigint.unsigned.handling.mode": "precise",
    },
    "default": {},
    # Those of the recipe for tables that are found by the schemas of their events.
    "schemas": _NUMERIC | {
        "value.converter.schemas.enable": "true", "column.propagate.source.type": ".*",
        "decimal.handling.mode": "string", "time.precision.mode": "isostring", "interval.handling.mode": "string",
        "bigint.unsigned.handling.mode": "precise",
    },
    "numbers": _NUMERIC | {
        "decimal.handling.mode": "double", "time.precision.mode": "connect", "binary.handling.mode": "hex",
    },
}  # fmt: skip
"""By the name in the files' names."""

_SECONDS = 60
_ROWS = 2


def record(folder: Path) -> None:
    """Write the files."""
    with (
        own_cluster() as kafka,
        postgres.own_server({"wal_level": "logical", "max_replication_slots": "20"}) as first,
        mysql_programs() as programs,
        mysql.own_server(programs) as second,
        open_folder() as scratch,
    ):
        database = first.new_database()
        name = str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION hstore")
            connection.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
            connection.execute("CREATE TYPE pair AS (a int, b text)")
            connection.execute("CREATE DOMAIN cents AS numeric(10,2)")
            for statement in (SIGNALS, *_statements("types", POSTGRES)):
                connection.execute(statement)
        other = second.client.new_database()
        second.client.run(";\n".join((SIGNALS, *_statements("types", MYSQL))), other)
        worker = ConnectWorker(scratch / "connect", kafka.address, flush=0.5)
        try:
            worker.start()
            of = {
                "postgres": postgres_connector("127.0.0.1", first.port, name, "public.types"),
                "mysql": mysql_connector("127.0.0.1", second.client.port, other, "types", kafka.address),
            }
            for (source, config), (setting, given) in product(of.items(), SETTINGS.items()):
                prefix = f"{source}_{setting}"
                own = {"topic.prefix": prefix, "topic.creation.default.partitions": "1"}
                own |= (
                    {"slot.name": prefix, "publication.name": prefix}
                    if source == "postgres"
                    else {"schema.history.internal.kafka.topic": f"{prefix}.history"}
                )
                worker.run(prefix, {**config, **own, **given})
                topic = f"{prefix}.{'public' if source == 'postgres' else other}.types"
                lines = [json.dumps(_without_names(each, other)) + "\n" for each in _read(kafka.address, topic)]
                (folder / f"types_{prefix}.jsonl").write_text("".join(lines))
        finally:
            worker.kill()


def _statements(table: str, types: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in types.items())
    yield f"CREATE TABLE {table} (id bigint PRIMARY KEY, {columns})"
    values = ", ".join(value for _, value in types.values())
    yield f"INSERT INTO {table} VALUES (1, {values})"
    yield f"INSERT INTO {table} (id) VALUES (2)"


def _without_names(event: dict[str, Any], database: str) -> dict[str, Any]:
    return {name: value.replace(database, "shop") if isinstance(value, str) else value for name, value in event.items()}


def _read(kafka: str, topic: str) -> list[dict[str, Any]]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": topic, "allow.auto.create.topics": False})
    try:
        until(lambda: topic in consumer.list_topics(timeout=10).topics, topic, _SECONDS)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[dict[str, Any]] = []

        def read() -> bool:
            message = consumer.poll(1)
            if message is not None and not message.error():
                key, value = message.key(), message.value()
                texts = {"key": key and key.decode(), "value": value and value.decode()}
                found.append({"topic": topic, "partition": 0, "offset": message.offset(), **texts})
            return len(found) == _ROWS

        until(read, f"{_ROWS} events of {topic}", _SECONDS)
        return found
    finally:
        consumer.close()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
