"""What the JVM changes about a table, between two epochs of ours and within one, between its tasks and its commit.

Each time the query goes on with every row there once, as the JVM counts, or it is refused before the first row.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from outfall.errors import EpochAbandonedError, OutfallError
from outfall.testing import crash_at
from tests.integration.support.batch_driver import batch
from tests.peers.support.jvm_iceberg import JvmTable

COLUMNS = "id BIGINT, name STRING, n INT, f FLOAT, d DECIMAL(9, 2)"
TWICE = ["between two epochs", "within an epoch"]

Deed = Callable[[JvmTable], object]


def some(*ids: int) -> pa.RecordBatch:
    """Rows of `COLUMNS`."""
    return batch(
        id=pa.array(ids, pa.int64()),
        name=pa.array([f"n{each}" for each in ids]),
        n=pa.array(ids, pa.int32()),
        f=pa.array([each + 0.5 for each in ids], pa.float32()),
        d=pa.array(list(map(Decimal, ids)), pa.decimal128(9, 2)),
    )


def alter(*changes: str) -> Deed:
    def deed(table: JvmTable) -> None:
        for change in changes:
            table.sql(f"ALTER TABLE {{t}} {change}")

    return deed


def call(procedure: str, **arguments: str) -> Deed:
    return lambda table: table.call(procedure, **arguments)


def run(statement: str) -> Deed:
    return lambda table: table.sql(statement)


def head(table: JvmTable) -> int:
    return int(table.metadata["current-snapshot-id"])


def replace_and_undo(table: JvmTable) -> None:
    before = head(table)
    table.sql("CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT * FROM {t} WHERE false")
    table.call("set_current_snapshot", snapshot_id=str(before))


def roll_back_and_cherrypick(table: JvmTable) -> None:
    before = head(table)
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    table.spark.conf.set("spark.wap.id", table.short)
    table.sql("INSERT INTO {t} (id) VALUES (90)")
    table.spark.conf.unset("spark.wap.id")
    staged = next(each["snapshot-id"] for each in table.metadata["snapshots"] if "wap.id" in each["summary"])
    table.call("rollback_to_snapshot", snapshot_id=str(before))
    table.call("cherrypick_snapshot", snapshot_id=str(staged))
    table.sql("DELETE FROM {t} WHERE id = 90")


def drop_and_register(table: JvmTable) -> None:
    location = table.catalog.load_table(table.name).metadata_location
    table.sql("DROP TABLE {t}")
    table.call("register_table", metadata_file=f"'{location}'")


def delete_merging_on_read(table: JvmTable) -> None:
    table.set({f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")})
    table.sql("INSERT INTO {t} (id) VALUES (91), (92)")
    table.sql("DELETE FROM {t} WHERE id = 91")
    table.sql("UPDATE {t} SET name = 'u' WHERE id = 92")
    table.sql("MERGE INTO {t} USING (SELECT 92L AS m) ON id = m WHEN MATCHED THEN DELETE")


def insert_and_expire(table: JvmTable) -> None:
    table.sql("INSERT INTO {t} (id) VALUES (93)")
    table.expire()
    table.sql("DELETE FROM {t} WHERE id = 93")
    table.expire()


def elsewhere(table: JvmTable) -> str:
    return f"{table.properties['warehouse']}/elsewhere/{table.short}"


GOES_ON: dict[str, Deed] = {
    "a column is added in front": alter("ADD COLUMN extra INT FIRST"),
    "a column moves": alter("ALTER COLUMN d FIRST"),
    "types are promoted": alter(
        "ALTER COLUMN n TYPE BIGINT", "ALTER COLUMN f TYPE DOUBLE", "ALTER COLUMN d TYPE DECIMAL(20, 2)"
    ),
    "a column is dropped and added again": alter("DROP COLUMN name", "ADD COLUMN name STRING"),
    "two columns swap their names": alter(
        "ADD COLUMN other STRING", "RENAME COLUMN name TO x", "RENAME COLUMN other TO name"
    ),
    "a partition field is added": alter("ADD PARTITION FIELD bucket(4, id)"),
    "a partition field is replaced": alter(
        "ADD PARTITION FIELD name", "REPLACE PARTITION FIELD name WITH truncate(1, name)"
    ),
    "a partition field comes and goes": alter("ADD PARTITION FIELD name", "DROP PARTITION FIELD name"),
    "it gets an order": alter("WRITE ORDERED BY name"),
    "it keeps only one compressed metadata file": alter(
        "SET TBLPROPERTIES ('write.metadata.delete-after-commit.enabled' = 'true',"
        " 'write.metadata.previous-versions-max' = '1', 'write.metadata.compression-codec' = 'gzip')"
    ),
    "data moves": lambda table: table.set({"write.data.path": elsewhere(table)}),
    "the table moves": lambda table: table.sql(f"ALTER TABLE {{t}} SET LOCATION '{elsewhere(table)}'"),
    "object store layout": lambda table: table.set({"write.object-storage.enabled": "true"}),
    "it is dropped and registered": drop_and_register,
    "it is replaced, and that is undone": replace_and_undo,
    "it is rolled back to its head, and a staged snapshot is picked": roll_back_and_cherrypick,
    "rows are deleted, merging on read": delete_merging_on_read,
    "it is overwritten with itself": run("INSERT OVERWRITE {t} SELECT * FROM {t}"),
    "files are rewritten": call("rewrite_data_files", options="map('rewrite-all', 'true')"),
    "manifests are rewritten": call("rewrite_manifests"),
    "orphans are removed": call("remove_orphan_files"),
    "statistics are computed": call("compute_table_stats"),
    "older snapshots expire": insert_and_expire,
}


@pytest.mark.parametrize("when", [pytest.param(TWICE[0], marks=pytest.mark.long), TWICE[1]])
@pytest.mark.parametrize("deed", GOES_ON.values(), ids=GOES_ON)
def test_the_query_goes_on_and_the_jvm_counts_each_row_once(table: JvmTable, deed: Deed, when: str) -> None:
    table.create(COLUMNS)
    table.driver().write(0, some(1, 2))
    try:
        if when == TWICE[0]:
            deed(table)
            table.driver().write(1, some(3))
        else:
            with crash_at("table: committing"):
                table.driver().write(1, some(3))
            deed(table)
            table.driver().write(1, some(3))
    except EpochAbandonedError:
        table.driver().write(1, some(3))
    table.driver().write(2, some(4))
    assert table.ids() == [1, 2, 3, 4]
    assert sorted(table.read("n, f, d")) == [(each, each + 0.5, Decimal(each)) for each in (1, 2, 3, 4)]


def rolled_back(table: JvmTable) -> None:
    table.call("rollback_to_snapshot", snapshot_id=str(table.snapshots[0]))
    table.sql("INSERT INTO {t} (id) VALUES (90)")
    table.expire()


def set_time_back(table: JvmTable) -> None:
    at = table.metadata["snapshots"][0]["timestamp-ms"] + 1
    table.call("rollback_to_timestamp", timestamp=f"TIMESTAMP_MILLIS({at})")


REFUSED: dict[str, tuple[Deed, str]] = {
    "a column is dropped": (alter("DROP COLUMN f"), "f is not in the table"),
    "a column is renamed": (alter("RENAME COLUMN f TO g"), "f is not in the table"),
    "it gets version 3": (alter("SET TBLPROPERTIES ('format-version' = '3')"), "has format version 3"),
    "it gets another format": (alter("SET TBLPROPERTIES ('write.format.default' = 'orc')"), "only Parquet"),
    "it is replaced": (run("CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT * FROM {t}"), "it was replaced"),
    "it is emptied by a replacement": (run(f"CREATE OR REPLACE TABLE {{t}} ({COLUMNS}) USING iceberg"), "is empty"),
    "it is dropped": (run("DROP TABLE {t} PURGE"), "does not exist"),
    "it is rolled back, written and expired": (rolled_back, "it was rolled back"),
    "it is set back": (lambda t: t.call("set_current_snapshot", snapshot_id=str(t.snapshots[0])), "was rolled back to"),
    "its time is set back": (set_time_back, "was rolled back to"),
}


@pytest.mark.parametrize("when", TWICE)
@pytest.mark.parametrize(("deed", "why"), REFUSED.values(), ids=REFUSED)
def test_the_query_is_refused_before_a_row_moves(table: JvmTable, deed: Deed, why: str, when: str) -> None:
    table.create(COLUMNS)
    table.driver().write(0, some(1))
    table.driver().write(1, some(2))
    if when == TWICE[1]:
        with crash_at("table: committing"):
            table.driver().write(2, some(3))
    deed(table)
    before = None if why == "does not exist" else table.ids()
    for _ in range(2):
        # After a change of columns the first start gives the epoch's files up.
        with pytest.raises(OutfallError) as caught:
            table.driver().write(2, some(3))
        if when == TWICE[0] or not isinstance(caught.value, EpochAbandonedError):
            assert why in str(caught.value)
    assert before is None or (table.ids() == before and 3 not in before)
