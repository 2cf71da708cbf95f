"""Upserts and deletes beside Iceberg's own library: rows that it wrote, what it does meanwhile, and what it reads."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import EpochAbandonedError, OutfallError
from outfall.testing import crash_at
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.duck import Duck
from tests.peers.iceberg.test_changes import Deed, alter, call, drop_and_register, run
from tests.peers.support.jvm_iceberg import JvmTable

UPSERT: dict[str, Any] = {
    "write_mode": "upsert", "key_columns": "id", "order_column": "seq", "delete_marker": "gone",
}  # fmt: skip
ON_READ = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")}

COLUMNS = (
    "id BIGINT, seq BIGINT, p STRING, d DECIMAL(38,2), small DECIMAL(5,1), t TIMESTAMP, n TIMESTAMP_NTZ, day DATE,"
    " bin BINARY, f FLOAT, x DOUBLE, flag BOOLEAN, s STRUCT<a: INT, b: STRUCT<c: STRING>>,"
    " l ARRAY<STRUCT<e: INT>>, m MAP<STRING, STRUCT<v: DECIMAL(5,1)>>"
)
VALUES = (
    "SELECT id, 1, p, 123456789012345678.91, 1.5, TIMESTAMP '9999-12-31 00:00:00.000001', TIMESTAMP_NTZ '2024-02-29"
    " 23:59:59.999999', DATE '1582-10-04', X'00FF', CAST('NaN' AS FLOAT), CAST('-Infinity' AS DOUBLE), true,"
    " named_struct('a', 1, 'b', named_struct('c', 'x')), array(named_struct('e', 1), NULL),"
    " map('k', named_struct('v', 2.5)) FROM VALUES"
)


def rows(*given: tuple[int, int, bool], **more: list[object]) -> pa.RecordBatch:
    ids, orders, gone = zip(*given, strict=True)
    return batch(id=list(ids), seq=list(orders), gone=list(gone), **more)


def upserting(table: JvmTable) -> BatchDriver:
    return table.driver("upserts", **UPSERT)


@pytest.fixture(scope="module")
def duck() -> Any:
    reader = Duck()
    yield reader
    reader.close()


@pytest.mark.parametrize("how", ["PARTITIONED BY (p)", "PARTITIONED BY (bucket(2, id), days(t))"])
def test_rows_that_the_jvm_wrote_are_the_same_after_their_files_were_rewritten(
    table: JvmTable, duck: Duck, how: str
) -> None:
    table.create(COLUMNS, how, ON_READ)
    table.sql(f"INSERT INTO {{t}} {VALUES} (1L, 'a b/%'), (2L, 'a b/%'), (3L, NULL), (4L, NULL), (8L, 'z') AS v(id, p)")
    table.sql("INSERT INTO {t} (id, seq, p) VALUES (5, 1, 'a b/%'), (6, 1, NULL)")
    table.sql("DELETE FROM {t} WHERE id = 8")
    table.sql("UPDATE {t} SET flag = false WHERE id = 3")
    for column in ("s.z STRING", "l.element.z INT", "m.value.z INT", "more INT"):
        table.sql(f"ALTER TABLE {{t}} ADD COLUMN {column}")
    names = [each for each in table.sql("SELECT * FROM {t}").columns if each not in ("seq", "t")]
    columns = ", ".join(f"to_json(named_struct('v', {name}))" for name in names)
    before = table.read(columns, "{t} WHERE id IN (1, 2, 3, 5, 6)")
    given = rows((1, 2, False), (4, 2, True), (7, 1, False), p=["a b/%", None, "new"],
                 t=pa.array([None] * 3, pa.timestamp("us", "UTC")))  # fmt: skip
    result = upserting(table).write(0, given.select(["id", "seq", "gone", "p", *(["t"] if "days" in how else [])]))
    assert [result.counts[f"rows_{what}"] for what in ("inserted", "updated", "deleted")] == [1, 1, 1]
    assert table.read(columns, "{t} WHERE id IN (1, 2, 3, 5, 6)") == before
    ids = [1, 2, 3, 5, 6, 7]
    assert table.ids() == ids
    loaded = table.catalog.load_table(table.name)
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == ids
    assert sorted(number for (number,) in duck.iceberg(loaded.metadata_location, "id")) == ids
    # Bounds and partitions hide none of them.
    for condition in ("d >= 123456789012345678.91", "isnan(f)", "n > '2024-02-29 23:59:59.999'", "x < 0",
                      "day < '1600-01-01'", "bin = X'00FF'"):  # fmt: skip
        assert table.ids(f"{{t}} WHERE {condition}") == [1, 2, 3], condition
    assert table.ids("{t} WHERE p = 'a b/%'") == [1, 2, 5]


def one_of_ours_is_appended(table: JvmTable) -> None:
    table.sql("INSERT INTO {t} (id, seq, name) VALUES (2, 0, 'x')")


def deleted_on_read(table: JvmTable) -> None:
    table.set(ON_READ)
    table.sql("DELETE FROM {t} WHERE id <= 2")


def updated_on_read(table: JvmTable) -> None:
    table.set(ON_READ)
    table.sql("UPDATE {t} SET seq = 100 WHERE id = 1")


MERGE = (
    "MERGE INTO {t} t USING (SELECT id FROM VALUES (1L), (2L), (71L) AS v(id)) s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET name = 'm' WHEN NOT MATCHED THEN INSERT (id, seq, name) VALUES (s.id, 1, 'm')"
)

GOES_ON: dict[str, tuple[Deed, list[int]]] = {
    "rows are appended": (run("INSERT INTO {t} (id, seq, name) VALUES (70, 1, 'x')"), [2, 3, 4, 5, 70]),
    "one of our keys is appended": (one_of_ours_is_appended, [2, 2, 3, 4, 5]),
    "rows are merged": (run(MERGE), [2, 3, 4, 5, 71]),
    "a row gets newer": (run("UPDATE {t} SET seq = 100 WHERE id = 1"), [1, 2, 3, 4, 5]),
    "a row gets newer, merging on read": (updated_on_read, [1, 2, 3, 4, 5]),
    "rows are deleted": (run("DELETE FROM {t} WHERE id <= 2"), [2, 3, 4, 5]),
    "rows are deleted, merging on read": (deleted_on_read, [2, 3, 4, 5]),
    "it is overwritten": (run("INSERT OVERWRITE {t} (id, seq, name) VALUES (80, 1, 'o')"), [2, 5, 80]),
    "files are rewritten": (call("rewrite_data_files", options="map('rewrite-all', 'true')"), [2, 3, 4, 5]),
    "manifests are rewritten": (call("rewrite_manifests"), [2, 3, 4, 5]),
    "a column is added in front": (alter("ADD COLUMN more STRING FIRST"), [2, 3, 4, 5]),
    "a partition field is added": (alter("ADD PARTITION FIELD bucket(4, id)"), [2, 3, 4, 5]),
    "a type is promoted": (alter("ALTER COLUMN n TYPE BIGINT"), [2, 3, 4, 5]),
    "it gets an order": (alter("WRITE ORDERED BY name"), [2, 3, 4, 5]),
    "it is dropped and registered": (drop_and_register, [2, 3, 4, 5]),
}
IN_THE_SLICE = ("rows are merged", "rows are deleted, merging on read", "files are rewritten")
GIVEN = rows((1, 5, True), (2, 5, False), (5, 5, False), name=["", "ours", "e"])


def write_before(table: JvmTable) -> None:
    table.create("id BIGINT, seq BIGINT, name STRING, n INT")
    upserting(table).write(0, rows(*((number, 1, False) for number in (1, 2, 3)), name=["a", "b", "c"]))
    upserting(table).write(1, rows((4, 1, False), name=["d"]))


def then(table: JvmTable, deed: Deed, when: str) -> None:
    """Do something between two epochs, or while one is recorded, or between its merge and its commit."""
    if when == "between two epochs":
        deed(table)
    elif when == "while one is recorded":
        with crash_at("table: committing"):
            upserting(table).write(2, GIVEN)
        deed(table)
    else:
        with crash_at("table: merged"):
            upserting(table).write(2, GIVEN)
        deed(table)


WHEN = pytest.mark.parametrize("when", [
    pytest.param("between two epochs", marks=pytest.mark.long), "while one is recorded",
    pytest.param("between its merge and its commit", marks=pytest.mark.long),
])  # fmt: skip


@WHEN
@pytest.mark.parametrize(
    ("deed", "left"),
    [pytest.param(*case, id=name, marks=() if name in IN_THE_SLICE else pytest.mark.long)
     for name, case in GOES_ON.items()],
)  # fmt: skip
def test_an_upsert_goes_on_from_what_they_did(table: JvmTable, deed: Deed, left: list[int], when: str) -> None:
    write_before(table)
    then(table, deed, when)
    try:
        upserting(table).write(2, GIVEN)
    except EpochAbandonedError:
        upserting(table).write(2, GIVEN)
    upserting(table).write(3, rows((9, 1, False), (9, 2, True), name=["", ""]))
    assert table.ids() == left
    assert table.read("name", "{t} WHERE id = 2") == ["ours"] * left.count(2)
    loaded = table.catalog.load_table(table.name)
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == left


def equality_deletes(table: JvmTable) -> None:
    """Delete the row 3 by its name, with the writer of the library."""
    java, jvm = table.java, table.spark._jvm
    assert jvm is not None
    names = java.schema().select(jvm.java.util.List.of("name"))
    numbers = table.spark._sc._gateway.new_array(jvm.int, 1)  # type: ignore[union-attr]
    numbers[0] = java.schema().findField("name").fieldId()
    builder = getattr(jvm.org.apache.iceberg.data, "GenericFileWriterFactory$Builder")(java)
    make = builder.equalityFieldIds(numbers).equalityDeleteRowSchema(names).build()
    output = java.io().newOutputFile(f"{java.location()}/data/deletes-{uuid.uuid4().hex}.parquet")
    plain = jvm.org.apache.iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(output)
    writer = make.newEqualityDeleteWriter(plain, java.spec(), None)
    record = jvm.org.apache.iceberg.data.GenericRecord.create(names)
    record.setField("name", "c")
    writer.write(record)
    writer.close()
    java.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
    table.sql("REFRESH TABLE {t}")


REFUSED: dict[str, tuple[Callable[[JvmTable], object], str]] = {
    "equality deletes": (equality_deletes, "has equality deletes"),
    "rolled back": (
        lambda t: t.call("rollback_to_snapshot", snapshot_id=str(t.snapshots[0])), "was rolled back to"),
    "format version 3": (alter("SET TBLPROPERTIES ('format-version' = '3')"), "has format version 3"),
}  # fmt: skip


@WHEN
@pytest.mark.parametrize(("deed", "why"), REFUSED.values(), ids=REFUSED)
def test_an_upsert_is_refused_and_nothing_of_it_is_in_the_table(
    table: JvmTable, deed: Deed, why: str, when: str
) -> None:
    write_before(table)
    then(table, deed, when)
    before = table.metadata["current-snapshot-id"]
    for _ in range(2):
        with pytest.raises(OutfallError, match=why):
            upserting(table).write(2, GIVEN)
    assert table.metadata["current-snapshot-id"] == before


def test_an_upsert_goes_on_after_spark_has_applied_equality_deletes_as_the_error_says(table: JvmTable) -> None:
    write_before(table)
    equality_deletes(table)
    assert table.ids() == [1, 2, 4]
    with pytest.raises(OutfallError, match="delete-file-threshold=1 and remove-dangling-deletes=true"):
        upserting(table).write(2, GIVEN)
    options = "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    table.call("rewrite_data_files", options=options)
    upserting(table).write(2, GIVEN)
    assert table.ids() == [2, 4, 5]


def test_neither_writer_loses_a_change_of_the_other(table: JvmTable) -> None:
    write_before(table)
    table.sql("ALTER TABLE {t} ADD COLUMN theirs INT")
    for epoch in range(2, 6):
        update = partial(table.sql, f"UPDATE {{t}} SET theirs = {epoch} WHERE id = 3")
        upserting(table).write(epoch, rows((2, epoch, False), name=[str(epoch)]), between=update)
    assert table.read("name, theirs", "{t} WHERE id IN (2, 3)") == [("5", None), ("c", 5)]
