"""`deserialize` beside Spark's `from_avro`, on the same bytes: rows/s and CPU time.

    .venv/bin/nox -s peers_bench -- jvm_avro

Needs the environment of `nox -s peers_bench`. `from_avro` gets the schema as text and the bytes without the id, since
it knows no registry; `deserialize` asks a model of one, once per process. Both read from memory and write nothing.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro, to_avro

from benchmarks.common import Given, machine, throughput
from benchmarks.jvm_session import Catalog, main_beside
from benchmarks.results import Result, now
from outfall.schema_registry import RegistryDeserializer
from outfall.schema_registry.wire import head
from outfall.spark import deserialize
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support.schema_registry import model_registry

DEFAULT = Given(rows=2_000_000, pairs=5)
SPARKS, OURS = "Spark's from_avro", "deserialize"
WANTED = {SPARKS: "≥ 0.7"}
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "amount", "type": ["null", "int"]},
    {"name": "price", "type": "double"},
    {"name": "name", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
SCHEMA = json.dumps({"type": "record", "name": "Row", "fields": FIELDS})
COLUMNS = (
    "id", "cast(if(id % 3 = 0, null, id % 100000) AS int) AS amount", "id / 7D AS price",
    "concat('name ', id % 1000) AS name", "timestamp_micros(1700000000000000 + id * 1000) AS at",
)  # fmt: skip


def measure(spark: SparkSession, given: Given, scratch: Scratch, catalog: Catalog) -> Result:
    """Read the rows with both alternately."""
    started = now()
    with model_registry() as registry:
        start = head(registry.register("rows-value", SCHEMA))
        made = spark.range(given.rows).selectExpr(*COLUMNS)
        values = made.select(sf.concat(sf.lit(start), to_avro(sf.struct("*"), SCHEMA)).alias("value"))
        path = str(scratch.new())
        values.write.mode("overwrite").parquet(path)
        messages = spark.read.parquet(path).cache()
        rows = messages.count()

        def read(frame: DataFrame) -> None:
            frame.select("value.*").write.format("noop").mode("overwrite").save()

        jobs: dict[str, Job] = {
            SPARKS: lambda: read(messages.select(from_avro(sf.expr("substring(value, 6)"), SCHEMA).alias("value"))),
            OURS: lambda: read(deserialize(messages, RegistryDeserializer(registry.url, subject="rows-value"))),
        }
        runs = in_turn(jobs, rows, pairs=given.pairs, cpu_seconds=cpu_seconds)
    group = f"{rows:,} messages of five columns"
    return Result(
        benchmark="jvm_avro",
        title="Messages of a schema registry, beside Spark's `from_avro`",
        unit="rows/s",
        wanted=WANTED,
        lines=[throughput(group, job, runs, {} if job == SPARKS else {SPARKS: SPARKS}) for job in jobs],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


if __name__ == "__main__":
    main_beside(__doc__.splitlines()[0], DEFAULT, measure)
