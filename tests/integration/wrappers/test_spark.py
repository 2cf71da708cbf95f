"""Wrappers by options alone, around sinks with and without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.spark.version_check import pyspark_version
from tests.integration.postgres.support import Target
from tests.integration.support.http_receiver import HttpReceiver, Received, Reply
from tests.integration.support.reading import forget_commit, found, found_ids, read_stream, run, write_source

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Arrow stream writers, of Spark 4.1'),
]


def some_refused(request: Received) -> Reply:
    return Reply(status=422, accepts=False) if request.records[0]["id"] % 10 == 3 else Reply()


@pytest.mark.thorough
def test_batches_and_dead_letters_of_a_fan_out_to_files_postgres_and_http_are_once_when_an_epoch_is_replayed(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    source, checkpoint, secret = write_source(tmp_path / "source"), tmp_path / "checkpoint", tmp_path / "dsn"
    target = Target(dsn)
    secret.write_text(dsn)
    with HttpReceiver().running() as receiver:
        api = receiver.new_target(some_refused, keeps_keys=True)
        options = {
            "sink": "fanout",
            "checkpointLocation": checkpoint,
            "archive.sink": "file",
            "archive.path": tmp_path / "archive",
            "archive.batch_size": 3,
            "db.sink": "postgres",
            "db.dsn": f"file:{secret}",
            "db.table": "t",
            "db.batchSize": 4,
            "api.sink": "http",
            "api.url": receiver.url(api),
            "api.body": "record",
            "api.idempotency": "row",
            "api.key_column": "id",
            "api.dead_letter.sink": "file",
            "api.dead_letter.path": tmp_path / "letters",
        }
        for _ in range(2):
            rows = read_stream(spark, source).select("id", sf.col("k").alias("name"))
            writer = rows.writeStream.format("outfall")
            run(writer.options(**{name: str(value) for name, value in options.items()}))
            assert found_ids(tmp_path / "archive") == target.ids() == list(range(20))
            accepted = receiver.targets[api].accepted
            assert sorted(row["id"] for row in accepted) == [number for number in range(20) if number % 10 != 3]
            assert sorted(letter["code"] for letter in found(tmp_path / "letters")) == ["422", "422"]
            forget_commit(checkpoint, 1)
