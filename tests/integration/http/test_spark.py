"""`HttpSink` through Spark, by both APIs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.errors import ConfigurationError
from outfall.http import HttpSink
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.support.http_receiver import HttpReceiver
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_keys_by_content_are_the_same_when_an_epoch_is_cut_in_another_way(
    spark: SparkSession, receiver: HttpReceiver, tmp_path: Path
) -> None:
    """Each row five times, a map and a null among the columns; then the epoch anew, as after a crash before its end."""
    name = receiver.new_target(keeps_keys=True)
    sink = HttpSink(receiver.url(name), body="record", idempotency="content")
    rows = spark.range(0, 40, 1, 3).select(
        (sf.col("id") % 8).alias("id"),
        sf.create_map(sf.lit("ä"), sf.col("id") % 8).alias("map"),
        sf.lit(None).cast("string").alias("nothing"),
        ((sf.col("id") % 8) / 3).alias("third"),
    )
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        for number, partitions in enumerate((3, 5)):
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
            recovery = tmp_path / "recovery"
            write(rows.repartition(partitions), sink, recovery=str(recovery), epoch=0)
            if number == 0:
                entries = sorted(recovery.rglob("*.json"))
                for entry in entries[1:]:
                    entry.unlink()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    target = receiver.targets[name]
    assert Counter(record["id"] for record in target.accepted) == Counter(dict.fromkeys(range(8), 5))
    assert (target.repeated, target.misused) == (40, 0)


def test_a_stream_of_objects_in_arrays(spark: SparkSession, receiver: HttpReceiver, tmp_path: Path) -> None:
    name = receiver.new_target(item_key="id")
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    sink = HttpSink(receiver.url(name), idempotency="item", key_column="id")
    for _ in range(2):
        run(write_stream(read_stream(spark, source), sink, checkpoint=checkpoint))
        forget_commit(checkpoint, 0)
    assert sorted(record["id"] for record in receiver.targets[name].accepted) == list(range(20))


@pytest.mark.thorough
@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_stream_by_options(spark: SparkSession, receiver: HttpReceiver, tmp_path: Path, epochs: int) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    name = receiver.new_target()
    secret = tmp_path / "token"
    secret.write_text("hunter2\n")
    source, checkpoint = write_source(tmp_path / "source", epochs), tmp_path / "checkpoint"
    writer = read_stream(spark, source).writeStream.format("outfall").option("sink", "http")
    writer = writer.option("url", receiver.url(name)).option("bearerToken", f"file:{secret}").option("body", "ndjson")
    run(writer.option("checkpointLocation", str(checkpoint)))
    target = receiver.targets[name]
    assert sorted(record["id"] for record in target.accepted) == list(range(10 * epochs))
    assert {request.headers["authorization"] for request in target.requests} == {"Bearer hunter2"}


def test_rows_that_cannot_be_sent_are_refused_before_the_first_one(spark: SparkSession, receiver: HttpReceiver) -> None:
    name = receiver.new_target()
    with pytest.raises(ConfigurationError, match="the idempotency key requires the column 'key'"):
        write(spark.range(3), HttpSink(receiver.url(name), body="record", idempotency="row", key_column="key"))
    with pytest.raises(ConfigurationError, match="omit workers"):
        write(spark.range(3), HttpSink(receiver.url(name), body="record", idempotency="content"), workers=2)
    assert receiver.targets[name].requests == []
