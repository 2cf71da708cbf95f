"""Upserts and deletes beside Delta's own engine: rows that it wrote, what it does meanwhile, and what it reads."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from outfall.errors import TargetLostError
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.delta_epochs import Shore
from tests.peers.delta.test_second_writer import DELETION_VECTORS, PROPERTY, WHEN, Deed, in_turn
from tests.peers.support.jvm_tables import JvmTable

pytestmark = pytest.mark.spark

UPSERT = {"write_mode": "upsert", "key_columns": "id", "order_column": "seq", "delete_marker": "gone"}

COLUMNS = (
    "id BIGINT, seq BIGINT, p STRING, d DECIMAL(38,2), small DECIMAL(5,1), t TIMESTAMP, n TIMESTAMP_NTZ, day DATE,"
    " bin BINARY, f FLOAT, x DOUBLE, tiny TINYINT, flag BOOLEAN, s STRUCT<a: INT, b: STRUCT<c: STRING>>,"
    " l ARRAY<STRUCT<e: INT>>, m MAP<STRING, STRUCT<v: DECIMAL(5,1)>>, v VARCHAR(5), c CHAR(3)"
)
VALUES = (
    "SELECT id, 1, p, 123456789012345678.91, 1.5, TIMESTAMP '9999-12-31 00:00:00.000001', TIMESTAMP_NTZ '2024-02-29"
    " 23:59:59.999999', DATE '1582-10-04', X'00FF', CAST('NaN' AS FLOAT), CAST('-Infinity' AS DOUBLE), -1, true,"
    " named_struct('a', 1, 'b', named_struct('c', 'x')), array(named_struct('e', 1), NULL),"
    " map('k', named_struct('v', 2.5)), 'abc', 'ab ' FROM VALUES"
)


def rows(*given: tuple[int, int, bool], **more: list[object]) -> pa.RecordBatch:
    ids, orders, gone = zip(*given, strict=True)
    return batch(id=list(ids), seq=list(orders), gone=list(gone), **more)


@pytest.mark.parametrize("encoding", ["INT96", "TIMESTAMP_MICROS"])
def test_rows_that_the_jvm_wrote_are_the_same_after_their_files_were_rewritten(
    delta: SparkSession, shore: Shore, jvm: JvmTable, encoding: str
) -> None:
    jvm.run(f"CREATE TABLE {{t}} ({COLUMNS}) USING delta PARTITIONED BY (p)")
    delta.conf.set("spark.sql.parquet.outputTimestampType", encoding)
    try:
        jvm.run(f"INSERT INTO {{t}} {VALUES} (1L, 'a b/%'), (2L, 'a b/%'), (3L, NULL), (4L, NULL) AS v(id, p)")
        jvm.run("INSERT INTO {t} (id, seq, p) VALUES (5, 1, 'a b/%'), (6, 1, NULL)")
    finally:
        delta.conf.unset("spark.sql.parquet.outputTimestampType")
    jvm.run("ALTER TABLE {t} ADD COLUMNS (s.z STRING, l.element.z INT, m.value.z INT, more INT)")
    version = shore.table.version()
    driver = shore.driver(**UPSERT)
    result = driver.write(0, rows((1, 2, False), (4, 2, True), (7, 1, False), p=["a b/%", None, "new"]))
    assert {name: result.counts[f"rows_{name}"] for name in ("inserted", "updated", "deleted")} == {
        "inserted": 1, "updated": 1, "deleted": 1,
    }  # fmt: skip
    assert jvm.ids() == [1, 2, 3, 5, 6, 7]
    columns = ", ".join(f"to_json(named_struct('v', {name}))" for name in shore.newest.columns if name != "seq")
    before, after = (
        sorted(map(repr, jvm.run(f"SELECT {columns} FROM {{t}}{of} WHERE id IN (1, 2, 3, 5, 6)")))
        for of in (f" VERSION AS OF {version}", "")
    )
    assert before == after
    assert jvm.ids() == sorted(shore.table.to_pyarrow_table(columns=["id"])["id"].to_pylist())
    # Bounds hide none of them.
    for condition in ("d >= 123456789012345678.91", "f > 1e30", "t > '9999-01-01'", "n > '2024-02-29 23:59:59.999'",
                      "x < 0", "c = 'ab'", "day < '1600-01-01'"):  # fmt: skip
        assert jvm.column("id", f"WHERE {condition}") == [1, 2, 3], condition


GOES_ON = [
    Deed("append", ("INSERT INTO {t} (id, seq, name) VALUES (70, 1, 'x')",), (2, 3, 4, 5, 70)),
    Deed("append_of_our_key", ("INSERT INTO {t} (id, seq, name) VALUES (2, 0, 'x')",), (2, 2, 3, 4, 5)),
    Deed("merge", (
        "MERGE INTO {t} t USING (SELECT id FROM VALUES (1L), (2L), (71L) AS v(id)) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET name = 'm' WHEN NOT MATCHED THEN INSERT (id, seq, name) VALUES (s.id, 1, 'm')",
    ), (2, 3, 4, 5, 71)),
    Deed("update_to_newer", ("UPDATE {t} SET seq = 100 WHERE id = 1",), (1, 2, 3, 4, 5)),
    Deed("delete", ("DELETE FROM {t} WHERE id <= 2",), (2, 3, 4, 5)),
    Deed("overwrite", ("INSERT OVERWRITE {t} (id, seq, name) VALUES (80, 1, 'o')",), (2, 5, 80)),
    Deed("optimize", ("OPTIMIZE {t}",), (2, 3, 4, 5)),
    Deed("order", ("OPTIMIZE {t} ZORDER BY (id)",), (2, 3, 4, 5)),
    Deed("add_column", ("ALTER TABLE {t} ADD COLUMNS (more STRING FIRST)",), (2, 3, 4, 5)),
    Deed("restore_to_now", ("RESTORE TABLE {t} TO VERSION AS OF 2",), (2, 3, 4, 5)),
]  # fmt: skip
REFUSED = [
    Deed("deletion_vectors", (DELETION_VECTORS, "DELETE FROM {t} WHERE id = 3"), (1, 2, 4), "deletionVectors"),
    Deed("change_data_feed", (f"{PROPERTY} ('delta.enableChangeDataFeed'='true')",), (1, 2, 3, 4), "change data feed"),
    Deed("restore", ("RESTORE TABLE {t} TO VERSION AS OF 1",), (1, 2, 3), "rolled it back", TargetLostError),
]  # fmt: skip


def upserting(shore: Shore) -> BatchDriver:
    return shore.driver("log", create_table="if_missing", **UPSERT)


def write_before(shore: Shore) -> None:
    driver = upserting(shore)
    driver.write(0, rows(*((number, 1, False) for number in (1, 2, 3)), name=["a", "b", "c"]))
    driver.write(1, rows((4, 1, False), name=["d"]))


GIVEN = rows((1, 5, True), (2, 5, False), (5, 5, False), name=["", "ours", "e"])


@WHEN
@pytest.mark.parametrize("deed", in_turn(GOES_ON))
def test_an_upsert_goes_on_from_what_they_did(shore: Shore, jvm: JvmTable, deed: Deed, within: bool) -> None:
    write_before(shore)
    if not within:
        deed.do(jvm)
    upserting(shore).write(2, GIVEN, between=(lambda: deed.do(jvm)) if within else lambda: None)
    assert jvm.ids() == list(deed.left)
    assert jvm.column("name", "WHERE id = 2") == ["ours"] * deed.left.count(2)
    assert shore.left_over() == set()


@WHEN
@pytest.mark.parametrize("deed", in_turn(REFUSED))
def test_an_upsert_is_refused_and_nothing_of_it_is_in_the_table(
    shore: Shore, jvm: JvmTable, deed: Deed, within: bool
) -> None:
    write_before(shore)
    if not within:
        deed.do(jvm)
    with pytest.raises(deed.error, match=deed.match):
        upserting(shore).write(2, GIVEN, between=(lambda: deed.do(jvm)) if within else lambda: None)
    with pytest.raises(deed.error, match=deed.match):
        upserting(shore).write(2, GIVEN)
    assert jvm.ids() == list(deed.left)


def test_neither_writer_loses_a_change_of_the_other(shore: Shore, jvm: JvmTable) -> None:
    write_before(shore)
    jvm.run("ALTER TABLE {t} ADD COLUMNS (theirs INT)")
    for epoch in range(2, 6):
        update = partial(jvm.run, f"UPDATE {{t}} SET theirs = {epoch} WHERE id = 3")
        upserting(shore).write(epoch, rows((2, epoch, False), name=[str(epoch)]), between=update)
    assert jvm.run("SELECT name, theirs FROM {t} WHERE id IN (2, 3) ORDER BY id") == [("5", None), ("c", 5)]
