"""Commits of ours beside those of the JVM: row-level deletes, merged manifests, streams, metadata tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.support.batch_driver import batch
from tests.peers.support.jvm_iceberg import JvmTable, rows

MERGED = {"commit.manifest.min-count-to-merge": "2"}
MERGE_ON_READ = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")}

LAYOUTS = {
    "no partitions": lambda table: table.create(),
    "buckets": lambda table: table.create(how="PARTITIONED BY (bucket(3, id))"),
    "once of version 1": lambda table: table.create(how="TBLPROPERTIES ('format-version' = '1')"),
}


@pytest.mark.parametrize("create", LAYOUTS.values(), ids=LAYOUTS)
def test_rows_that_the_jvm_deleted_stay_deleted_when_we_merge_manifests(
    table: JvmTable, create: Callable[[JvmTable], object]
) -> None:
    """Sequence numbers say which rows a delete is for, and the JVM drops deletes that are older than all files."""
    create(table)
    table.insert(*range(10))
    table.set({"format-version": "2", **MERGE_ON_READ, **MERGED})
    driver = table.driver()
    driver.write(0, rows(100, 101, 102))
    table.sql("DELETE FROM {t} WHERE id IN (3, 101)")
    driver.write(1, rows(200))
    table.sql("UPDATE {t} SET name = 'u' WHERE id IN (4, 200)")
    driver.write(2, rows(300))
    table.sql(
        "MERGE INTO {t} USING (SELECT explode(array(5L, 999L)) AS m) ON id = m"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, name) VALUES (m, 'm')"
    )
    driver.write(3, rows(400))
    table.insert(1000)
    wanted = sorted({*range(10), 100, 102, 200, 300, 400, 999, 1000} - {3, 5})
    assert table.ids() == wanted
    for epoch, procedure in enumerate(("rewrite_position_delete_files", "rewrite_data_files"), 4):
        table.call(procedure, options="map('rewrite-all', 'true')")
        driver.write(epoch, rows(epoch * 1000))
        wanted = sorted([*wanted, epoch * 1000])
        assert table.ids() == wanted
    table.expire()
    assert table.ids() == wanted
    assert table.read("name", "{t} WHERE id IN (4, 200)") == ["u", "u"]


def test_partitions_are_replaced_beside_rows_that_the_jvm_has_deleted(table: JvmTable) -> None:
    table.create(how="PARTITIONED BY (name)", properties=MERGE_ON_READ)
    table.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'a'), (3, 'b'), (4, 'b'), (5, 'c')")
    table.sql("DELETE FROM {t} WHERE id IN (1, 3)")
    driver = table.driver(write_mode="overwrite_partitions")
    driver.write(0, batch(id=pa.array([10], pa.int64()), name=["a"]))
    assert table.ids() == [4, 5, 10]
    table.sql("DELETE FROM {t} WHERE id = 4")
    table.sql("INSERT INTO {t} VALUES (6, 'b')")
    driver.write(1, batch(id=pa.array([20], pa.int64()), name=["c"]))
    assert table.ids() == [6, 10, 20]
    table.expire()
    assert table.ids() == [6, 10, 20]


def test_the_jvm_notices_that_we_have_replaced_the_files_that_it_is_compacting(table: JvmTable) -> None:
    table.create(how="PARTITIONED BY (name)")
    table.sql("INSERT INTO {t} VALUES (1, 'a')")
    java = table.java
    file = java.newScan().planFiles().iterator().next().file()
    table.driver(write_mode="overwrite_partitions").write(0, batch(id=pa.array([3], pa.int64()), name=["a"]))
    rewrite = java.newRewrite().deleteFile(file)
    with pytest.raises(Exception, match="Missing required files to delete"):
        rewrite.commit()
    assert table.ids() == [3]


def test_what_the_metadata_tables_say_is_true(table: JvmTable) -> None:
    table.create(how="PARTITIONED BY (bucket(2, id), truncate(3, name))", properties=MERGED)
    for epoch in range(4):
        table.driver().write(epoch, rows(*range(epoch * 10, epoch * 10 + 5)))
    table.insert(90)
    table.driver().write(4, rows(91))

    def told(what: str, of: str) -> Any:
        return table.read(what, f"{{t}}.{of}")[0]

    count = len(table.ids())
    assert count == 22
    assert told("sum(record_count), count(*), sum(value_counts[1])", "files") == (count, count, count)
    assert told("sum(record_count), sum(file_count)", "partitions") == (count, count)
    counts = "sum(added_data_files_count), sum(existing_data_files_count), sum(deleted_data_files_count)"
    assert told(counts, "manifests") == (1, count - 1, 0)
    assert table.read("status, count(*)", "{t}.entries GROUP BY status") == [(0, count - 1), (1, 1)]
    assert told("min(sequence_number), max(sequence_number), count(DISTINCT sequence_number)", "entries") == (1, 6, 6)
    assert sorted(map(int, table.read("summary['total-records']", "{t}.snapshots"))) == [5, 10, 15, 20, 21, 22]
    found = table.read("readable_metrics.id.lower_bound, readable_metrics.id.upper_bound", "{t}.files")
    assert sorted(found) == [(each, each) for each in table.ids()]


def test_a_stream_of_the_jvm_gets_each_row_once_over_our_merges_and_revocations(
    table: JvmTable, tmp_path: Path
) -> None:
    table.create(properties=MERGED)
    out = str(tmp_path / "out")

    def stream() -> list[int]:
        source = table.spark.readStream.format("iceberg").load(table.jvm).writeStream.format("parquet")
        query = source.option("path", out).option("checkpointLocation", str(tmp_path / "chk"))
        query.trigger(availableNow=True).start().awaitTermination()
        return sorted(row["id"] for row in table.spark.read.parquet(out).collect())

    driver = table.driver()
    for epoch in range(4):
        driver.write(epoch, rows(epoch))
    with pytest.raises(Exception, match="written data was lost"):
        driver.write(4, rows(4), between=lambda: table.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)"))
    table.driver().write(4, rows(4))
    assert stream() == [0, 1, 2, 3, 4]
    table.insert(90)
    table.driver().write(5, rows(5))
    assert stream() == [0, 1, 2, 3, 4, 5, 90]
    reader = table.spark.read.format("iceberg").option("start-snapshot-id", table.snapshots[1])
    assert sorted(row["id"] for row in reader.load(table.jvm).collect()) == [2, 3, 4, 5, 90]
