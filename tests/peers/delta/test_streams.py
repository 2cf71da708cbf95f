"""Streams of Delta's own engine, into the table that ours writes to and out of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from outfall.errors import EpochAbandonedError
from outfall.spark import write_stream
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.integration.support.reading import forget_commit, read_stream, run, write_source
from tests.peers.support.jvm_tables import JvmTable

pytestmark = pytest.mark.spark


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids, pa.int32()), k=pa.array([f"k{each}" for each in ids]))


def test_their_streaming_sink_and_ours_write_one_table_and_neither_repeats_an_epoch(
    delta: SparkSession, shore: Shore, jvm: JvmTable, tmp_path: Path
) -> None:
    source, sink = write_source(tmp_path / "source"), shore.driver(create_table="if_missing").sink
    checkpoints = {who: tmp_path / who for who in ("ours", "theirs")}
    for _ in range(2):
        run(write_stream(read_stream(delta, source), sink, checkpoint=checkpoints["ours"]))
        stream = read_stream(delta, source).selectExpr("id + 1000 AS id", "k").writeStream.format("delta")
        run(stream.option("checkpointLocation", str(checkpoints["theirs"])).option("path", str(shore.path)))
        for checkpoint in checkpoints.values():
            forget_commit(checkpoint, 1)
    assert jvm.ids() == [*range(20), *range(1000, 1020)]


def test_their_streaming_source_brings_each_row_of_ours_once(
    delta: SparkSession, shore: Shore, jvm: JvmTable, tmp_path: Path
) -> None:
    """Commits without rows, compaction and VACUUM bring nothing."""
    driver = shore.driver("log", create_table="if_missing")
    driver.write(0, rows(1, 2), rows(3))
    out = JvmTable(delta, f"delta.`{tmp_path / 'out'}`")

    def read() -> list[int]:
        stream = delta.readStream.format("delta").option("startingVersion", 0).load(str(shore.path))
        writer = stream.writeStream.format("delta").option("path", str(tmp_path / "out"))
        run(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        return out.ids()

    assert read() == [1, 2, 3]
    with pytest.raises(EpochAbandonedError):
        driver.write(1, rows(4), between=lambda: jvm.run("VACUUM {t} RETAIN 0 HOURS"))
    shore.driver("log").write(1, rows(4))
    jvm.run("OPTIMIZE {t}", "INSERT INTO {t} VALUES (70, 'theirs')")
    shore.driver("log").write(2, rows(5))
    assert read() == [1, 2, 3, 4, 5, 70]


def test_a_change_feed_has_rows_of_ours_as_inserted_and_later_changes_of_theirs(
    delta: SparkSession, shore: Shore, jvm: JvmTable
) -> None:
    driver = shore.driver("log", create_table="if_missing", configuration={"delta.enableChangeDataFeed": "true"})
    driver.write(0, rows(1, 2))
    jvm.run("UPDATE {t} SET k = 'changed' WHERE id = 2", "DELETE FROM {t} WHERE id = 1")
    driver.write(1, rows(3))
    feed = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    found = feed.load(str(shore.path)).select("id", "_change_type", "_commit_version").collect()
    assert Counter(map(tuple, found)) == Counter(
        [
            (1, "insert", 1), (2, "insert", 1), (2, "update_preimage", 2), (2, "update_postimage", 2),
            (1, "delete", 3), (3, "insert", 4),
        ]
    )  # fmt: skip
