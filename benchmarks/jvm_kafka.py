"""`KafkaSink` without and with parts beside Spark's own Kafka sink, on Apache Kafka: rows/s and CPU time.

    python -m tests.peers.serve kafka-4.3 python -m benchmarks.jvm_kafka --rows 1000000 --pairs 5

Needs the environment of `nox -s peers_bench`. `OUTFALL_TEST_KAFKA=host:port` selects another broker. The CPU time of
the broker is not counted.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from benchmarks.bench_kafka import PARTS, ROUTED, SINK, Topics, records, sink
from benchmarks.common import Given, machine, throughput
from benchmarks.jvm_session import LIMITS, Catalog, limited, main_beside
from benchmarks.results import Result, now
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support.kafka_server import ADDRESS

DEFAULT = Given(rows=1_000_000, pairs=5)
SPARKS = "Spark's Kafka sink"
WANTED = {SPARKS: "no target"}


def measure(spark: SparkSession, given: Given, scratch: Scratch, catalog: Catalog) -> Result:
    """Write the rows with all jobs alternately. Each run uses a new topic."""
    if ADDRESS not in os.environ:
        sys.exit(
            f"No broker: {ADDRESS} is not set. What to do: python -m tests.peers.serve kafka-4.3 python -m {__name__}"
        )
    started, topics = now(), Topics(os.environ[ADDRESS])
    df = records(spark, given.rows, scratch)
    rows = df.count()

    def written(api: PythonApi, **options: int) -> Job:
        return lambda: api.write(df, sink(topics.brokers, topics.name, **options), scratch.new())

    def sparks() -> None:
        writer = df.write.format("kafka").option("kafka.bootstrap.servers", topics.brokers)
        writer.option("topic", topics.name).save()

    def between() -> None:
        if (found := topics.count()) != rows:
            sys.exit(f"{found} records are in the topic, of {rows}")
        topics.change()
        scratch.clear()

    jobs: dict[str, Job] = {SPARKS: sparks}
    for suffix, limit in LIMITS.items():
        jobs[f"{SINK}{suffix}"] = limited(spark, limit, written(PythonApi()))
        jobs[f"{ROUTED}{suffix}"] = limited(spark, limit, written(PythonApi(key="key"), parts=PARTS))
    runs = in_turn(jobs, rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=between)
    group = f"{rows:,} mixed rows as JSON"
    return Result(
        benchmark="jvm_kafka",
        title="Kafka, beside Spark's own sink",
        unit="rows/s",
        wanted=WANTED,
        lines=[throughput(group, job, runs, {} if job == SPARKS else {SPARKS: SPARKS}) for job in jobs],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


if __name__ == "__main__":
    main_beside(__doc__.splitlines()[0], DEFAULT, measure)
