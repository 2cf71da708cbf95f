"""A table of PostgreSQL → Debezium → Kafka → Spark → a table of another database: the job and the connector are killed.

    git clone …; pip install -e '.[dev]' 'pyspark==4.1.1'    # and Java and Maven, which fetches Kafka and Debezium once
    python examples/debezium_to_postgres.py                  # starts Kafka, Kafka Connect and PostgreSQL of its own

The job is in `start`, and the connector in `CONNECTOR`. The rest changes the source, kills the job and the connector's
worker once, and compares the two tables. The servers are those of this repository's tests.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from outfall.kafka import TopicGeneration
from outfall.postgres import PostgresSink
from outfall.spark import write_stream
from outfall.spark.debezium import changes

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.integration.support.postgres import own_server
from tests.integration.support.waiting import until
from tests.peers.support.apache_kafka import own_cluster
from tests.peers.support.connect import ConnectWorker
from tests.peers.support.jars import jars

TOPIC = "shop.public.customers"
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "shop",
    "plugin.name": "pgoutput",
    "publication.name": "shop",
    "table.include.list": "public.customers,public.debezium_signal",
    "signal.data.collection": "public.debezium_signal",
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "skipped.operations": "t",
    "topic.creation.default.partitions": "4",
    "topic.creation.default.replication.factor": "1",
}
TABLES = """
    CREATE TABLE customers (id bigint PRIMARY KEY, city text, spent numeric(12,2), seen timestamptz);
    CREATE TABLE debezium_signal (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));
    CREATE PUBLICATION shop FOR TABLE customers, debezium_signal;
"""
COLUMNS = "id BIGINT, city STRING, spent DECIMAL(12,2), seen TIMESTAMP"


def start(spark: SparkSession, kafka: str, dsn: str, directory: Path) -> StreamingQuery:
    """Apply the changes in the order in which Kafka delivers them."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    # In production, name topic_id and partitions too: the first start logs both.
    rows = changes(records, COLUMNS, order=TopicGeneration(kafka, TOPIC))
    sink = PostgresSink(
        dsn,
        "customers",
        write_mode="changes",
        key_columns="id",
        operation_column="op",
        sequence_column="seq",
        sequence_kind="kafka",
        create_table="if_missing",
    )
    return write_stream(rows, sink, checkpoint=directory / "checkpoint").start()


def main() -> int:
    if os.environ.get("EXAMPLE_JOB"):
        return job(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    with (
        tempfile.TemporaryDirectory() as name,
        own_cluster() as kafka,
        own_server({"wal_level": "logical"}) as server,
    ):
        directory = Path(name)
        source, target = server.new_database(), server.new_database()
        worker = ConnectWorker(directory / "connect", kafka.address, exactly_once=True)
        child = None
        try:
            with psycopg.connect(source) as connection:
                connection.execute(TABLES)
            change(source)
            worker.start()
            worker.run("shop", CONNECTOR | address(source))
            child = spawn(kafka.address, target, directory)
            until(lambda: customers(target), "the first customers")
            change(source)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            print("Killed the job.")
            change(source)
            worker.kill()
            print("Killed the connector's worker.")
            change(source)
            child = spawn(kafka.address, target, directory)
            worker.start()
            expected = customers(source)
            until(lambda: customers(target) == expected, "the tables to be equal")
            print(f"customers in the source {len(expected)}, in the copy {len(customers(target))}, different 0")
            return 0
        finally:
            worker.kill()
            if child is not None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def job(kafka: str, dsn: str, directory: Path) -> int:
    """Run the stream until it is killed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    # Or `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION`, which needs the network at each first start.
    spark = builder.config("spark.driver.extraClassPath", f"{jars('spark-4.1')}/*").getOrCreate()
    start(spark, kafka, dsn, directory).awaitTermination()
    return 0


def spawn(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """Start the job in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | {"EXAMPLE_JOB": "1"}, start_new_session=True)


def address(dsn: str) -> dict[str, str]:
    """Return the settings of the connector for a database."""
    of = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"hostname": "host", "port": "port", "user": "user", "dbname": "dbname"}
    return {f"database.{name}": str(of[key]) for name, key in names.items()} | {"database.password": "any"}


def change(dsn: str) -> None:
    """Insert, update and delete customers, in random transactions."""
    chance = random.Random(1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(100):
            with connection.transaction():
                for _ in range(chance.choice((1, 2, 20))):
                    customer, spent = chance.randrange(300), round(chance.uniform(0, 1000), 2)
                    if chance.random() < 0.2:
                        connection.execute("DELETE FROM customers WHERE id = %s", (customer,))
                        continue
                    connection.execute(
                        "INSERT INTO customers VALUES (%s, %s, %s, clock_timestamp()) ON CONFLICT (id) DO UPDATE"
                        " SET city = excluded.city, spent = excluded.spent, seen = excluded.seen",
                        (customer, f"city {chance.random()}", spent),
                    )


def customers(dsn: str) -> list[tuple[object, ...]]:
    """Return what is in a table, none before it is there."""
    with psycopg.connect(dsn) as connection:
        if connection.execute("SELECT to_regclass('customers')").fetchone() == (None,):
            return []
        return connection.execute("SELECT id, city, spent, seen FROM customers ORDER BY id").fetchall()


if __name__ == "__main__":
    sys.exit(main())
