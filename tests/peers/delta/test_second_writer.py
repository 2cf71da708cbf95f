"""Delta's own engine changes the table between our epochs, and between the tasks of an epoch and its commit.

Either the query goes on and each row is there once, or it is refused before a row is in the table. The JVM counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, EpochAbandonedError, OutfallError, TargetLostError
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.peers.support.jvm_tables import JvmTable

pytestmark = pytest.mark.spark

BEFORE = [1, 2, 3, 4]
PROPERTY = "ALTER TABLE {t} SET TBLPROPERTIES"
MAPPED = f"{PROPERTY} ('delta.columnMapping.mode'='name')"
DELETION_VECTORS = f"{PROPERTY} ('delta.enableDeletionVectors'='true')"
NO_DELETION_VECTORS = f"{PROPERTY} ('delta.enableDeletionVectors'='false')"


@dataclass(frozen=True)
class Deed:
    """What others do to the table, and what of the rows 1 to 4 and of theirs is there afterwards."""

    name: str
    statements: tuple[str, ...]
    left: tuple[int, ...] = tuple(BEFORE)
    match: str = ""
    """What our refusal says, if it is one."""
    error: type[OutfallError] = ConfigurationError

    def __str__(self) -> str:
        return self.name

    def do(self, jvm: JvmTable) -> None:
        jvm.run(*self.statements)


GOES_ON = [
    Deed("append", ("INSERT INTO {t} (id, name) VALUES (70, 'x')",), (*BEFORE, 70)),
    Deed("merge", (
        "MERGE INTO {t} t USING (SELECT id, 'm' AS name FROM VALUES (1L), (71L) AS v(id)) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET name = 'm' WHEN NOT MATCHED THEN INSERT *",), (*BEFORE, 71)),
    Deed("update", ("UPDATE {t} SET name = 'u' WHERE id = 2",)),
    Deed("delete", ("DELETE FROM {t} WHERE id = 1",), (2, 3, 4)),
    Deed("delete_all", ("DELETE FROM {t}",), ()),
    Deed("overwrite", ("INSERT OVERWRITE {t} VALUES (80, 'o')",), (80,)),
    Deed("optimize", ("OPTIMIZE {t}",)),
    Deed("order", ("OPTIMIZE {t} ZORDER BY (id)",)),
    Deed("purge", (DELETION_VECTORS, "DELETE FROM {t} WHERE id = 1", "REORG TABLE {t} APPLY (PURGE)"), (2, 3, 4)),
    Deed("deletion_vectors", (DELETION_VECTORS, "DELETE FROM {t} WHERE id = 1"), (2, 3, 4)),
    Deed("no_more_deletion_vectors", (
        DELETION_VECTORS, "DELETE FROM {t} WHERE id = 1", NO_DELETION_VECTORS, "REORG TABLE {t} APPLY (PURGE)",
    ), (2, 3, 4)),
    Deed("change_data_feed", (
        f"{PROPERTY} ('delta.enableChangeDataFeed'='true')", "UPDATE {t} SET name = 'u' WHERE id = 2")),
    Deed("add_column", ("ALTER TABLE {t} ADD COLUMNS (more STRING)",)),
    Deed("add_column_first", ("ALTER TABLE {t} ADD COLUMNS (more STRING FIRST)",)),
    Deed("add_time_without_zone", (
        f"{PROPERTY} ('delta.feature.timestampNtz'='supported')", "ALTER TABLE {t} ADD COLUMNS (at TIMESTAMP_NTZ)")),
    Deed("add_short_text", ("ALTER TABLE {t} ADD COLUMNS (more VARCHAR(3))",)),
    Deed("constraint_come_and_gone", (
        "ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 1000)", "ALTER TABLE {t} DROP CONSTRAINT small")),
    Deed("properties", (f"{PROPERTY} ('delta.logRetentionDuration'='interval 40 days', 'own'='x')",)),
    Deed("append_only", (f"{PROPERTY} ('delta.appendOnly'='true')",)),
    Deed("upgrade", (f"{PROPERTY} ('delta.minReaderVersion'='2', 'delta.minWriterVersion'='5')",)),
    Deed("upgrade_to_features", (f"{PROPERTY} ('delta.minReaderVersion'='3', 'delta.minWriterVersion'='7')",)),
    Deed("restore_undone", (
        "INSERT INTO {t} (id, name) VALUES (70, 'x')", "RESTORE TABLE {t} TO VERSION AS OF 1",
        "RESTORE TABLE {t} TO VERSION AS OF 3"), (*BEFORE, 70)),
    Deed("restore_to_now", ("RESTORE TABLE {t} TO VERSION AS OF 2",)),
    Deed("checkpoint_of_struct_statistics", (
        f"{PROPERTY} ('delta.checkpoint.writeStatsAsStruct'='true', 'delta.checkpoint.writeStatsAsJson'='false',"
        " 'delta.checkpointInterval'='1')", "INSERT INTO {t} (id, name) VALUES (70, 'x')"), (*BEFORE, 70)),
    Deed("checkpoint_v2", (
        f"{PROPERTY} ('delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='1')",
        "INSERT INTO {t} (id, name) VALUES (70, 'x')"), (*BEFORE, 70)),
]  # fmt: skip

REFUSED = [
    Deed("check_constraint", ("ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 1000)",), match="a CHECK constraint"),
    Deed("column_mapping", (MAPPED,), match="has column mapping"),
    Deed("rename", (MAPPED, "ALTER TABLE {t} RENAME COLUMN name TO title"), match="has column mapping"),
    Deed("drop", (MAPPED, "ALTER TABLE {t} DROP COLUMN name"), match="has column mapping"),
    Deed("mapping_dropped", (MAPPED, "ALTER TABLE {t} DROP FEATURE columnMapping"), match="checkpointProtection"),
    Deed("default", (
        f"{PROPERTY} ('delta.feature.allowColumnDefaults'='supported')", "ALTER TABLE {t} ADD COLUMNS (more STRING)",
        "ALTER TABLE {t} ALTER COLUMN more SET DEFAULT 'd'"), match="allowColumnDefaults"),
    Deed("row_tracking", (f"{PROPERTY} ('delta.enableRowTracking'='true')",), match="domainMetadata|rowTracking"),
    Deed("in_commit_timestamps", (
        f"{PROPERTY} ('delta.enableInCommitTimestamps'='true')",), match="inCommitTimestamp"),
    Deed("type_widening", (f"{PROPERTY} ('delta.enableTypeWidening'='true')",), match="typeWidening"),
    Deed("variant", (
        f"{PROPERTY} ('delta.feature.variantType'='supported')", "ALTER TABLE {t} ADD COLUMNS (v VARIANT)"),
        match="variantType"),
    Deed("clustering", ("ALTER TABLE {t} CLUSTER BY (id)", "OPTIMIZE {t}"), match="clustering"),
    Deed("iceberg_compatibility", (
        f"{PROPERTY} ('delta.columnMapping.mode'='name', 'delta.enableIcebergCompatV2'='true')",),
        match="icebergCompatV2"),
    Deed("vacuum_protocol", (f"{PROPERTY} ('delta.feature.vacuumProtocolCheck'='supported')",),
        match="vacuumProtocolCheck"),
    Deed("identities_possible", (f"{PROPERTY} ('delta.minReaderVersion'='2', 'delta.minWriterVersion'='6')",),
        match="requires version 2 of readers and 6 of writers"),
    Deed("short_retention", (f"{PROPERTY} ('delta.setTransactionRetentionDuration'='interval 1 second')",),
        match="removes transaction identifiers early"),
    Deed("restore", ("RESTORE TABLE {t} TO VERSION AS OF 1",), (1, 2, 3), "rolled it back", TargetLostError),
    Deed("replace", ("CREATE OR REPLACE TABLE {t} USING delta AS SELECT * FROM {t} WHERE id < 4",), (1, 2, 3),
        "rolled it back", TargetLostError),
]  # fmt: skip

IN_THE_SLICE = {"merge", "deletion_vectors", "checkpoint_v2", "restore_undone", "default", "restore", "mapping_dropped"}


def in_turn(deeds: list[Deed]) -> list[object]:
    """Return the deeds as parameters, those that are not in the slice marked as long."""
    return [pytest.param(deed, id=str(deed), marks=() if str(deed) in IN_THE_SLICE else pytest.mark.long)
            for deed in deeds]  # fmt: skip


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids), name=pa.array([f"n{each}" for each in ids]))


def write_before(shore: Shore) -> None:
    driver = shore.driver("log", create_table="if_missing")
    driver.write(0, rows(1, 2), rows(3))
    driver.write(1, rows(4))


def write(shore: Shore, epoch: int, *ids: int, between: Callable[[], object] = lambda: None) -> None:
    """Write an epoch as a driver that was just started."""
    shore.driver("log", create_table="if_missing").write(epoch, rows(*ids), between=between)


WHEN = pytest.mark.parametrize("within", [False, True], ids=["between_epochs", "within_an_epoch"])


@WHEN
@pytest.mark.parametrize("deed", in_turn(GOES_ON))
def test_the_query_goes_on_and_each_row_is_there_once(shore: Shore, jvm: JvmTable, deed: Deed, within: bool) -> None:
    write_before(shore)
    if not within:
        deed.do(jvm)
    write(shore, 2, 5, between=(lambda: deed.do(jvm)) if within else lambda: None)
    write(shore, 3, 6, 7)
    assert jvm.ids() == sorted([*deed.left, 5, 6, 7])
    jvm.run("INSERT INTO {t} (id, name) VALUES (90, 'x')")
    write(shore, 4, 8)
    assert jvm.ids() == sorted([*deed.left, 5, 6, 7, 8, 90])


@WHEN
@pytest.mark.parametrize("deed", in_turn(REFUSED))
def test_the_query_is_refused_and_nothing_of_the_epoch_is_in_the_table(
    shore: Shore, jvm: JvmTable, deed: Deed, within: bool
) -> None:
    write_before(shore)
    if not within:
        deed.do(jvm)
    with pytest.raises(deed.error, match=deed.match):
        write(shore, 2, 5, between=(lambda: deed.do(jvm)) if within else lambda: None)
    with pytest.raises(deed.error, match=deed.match):
        write(shore, 2, 5)
    assert jvm.ids() == list(deed.left)
    jvm.run("INSERT INTO {t} (id) VALUES (90)")
    assert jvm.ids() == [*deed.left, 90]


def test_files_that_their_vacuum_took_within_an_epoch_are_written_again(shore: Shore, jvm: JvmTable) -> None:
    write_before(shore)
    with pytest.raises(EpochAbandonedError, match="are missing"):
        write(shore, 2, 5, between=lambda: jvm.run("VACUUM {t} RETAIN 0 HOURS"))
    write(shore, 2, 5)
    assert jvm.ids() == [*BEFORE, 5]
