"""Delta's own engine reads what our sink wrote, with data skipping, and counts from statistics alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from outfall.delta import DeltaSink
from outfall.errors import ConfigurationError
from tests.integration.delta.test_types import NESTED, PLAIN, same
from tests.integration.filters.test_filters import compares_with_zero, files, misled, write
from tests.integration.support import awkward, filtering
from tests.integration.support.awkward import DELTA
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.peers.support.jvm_tables import JvmTable

pytestmark = pytest.mark.spark

STRUCTS = {
    "delta.checkpointInterval": "1",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "false",
}
IN_THE_SLICE = {
    "decimal(9,2)-decimal128(5, 1)", "double-double", "timestamp_ntz-timestamp[us]", "delta.enableChangeDataFeed",
    "delta.checkpointInterval",
}  # fmt: skip
LIVES_IN = ["log", "our_checkpoint", "their_checkpoint"]


def in_turn(cases: Sequence[Any], name: Callable[[Any], str]) -> list[Any]:
    """Return cases as parameters by their names, those that are not in the slice marked as long."""
    marks = [() if name(case) in IN_THE_SLICE else pytest.mark.long for case in cases]
    given = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, id=name(case if len(case) > 1 else case[0]), marks=each)
            for case, each in zip(given, marks, strict=True)]  # fmt: skip


def awkward_table(shore: Shore, jvm: JvmTable, lives_in: str) -> JvmTable:
    """Write values of which bounds may be wrong, and let the log have them, or a checkpoint of either library."""
    configuration = {"delta.checkpointInterval": "1" if lives_in == "our_checkpoint" else "1000"}
    sink = DeltaSink(shore.path, create_table="if_missing", configuration=configuration)
    write(sink, shore.directory / "log", files(DELTA))
    if lives_in == "their_checkpoint":
        texts = ", ".join(f"'{name}'='{value}'" for name, value in STRUCTS.items())
        jvm.run(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({texts})")
    assert bool(list(shore.path.glob("_delta_log/*.checkpoint.parquet"))) == (lives_in != "log")
    return jvm


def test_the_jvm_reads_every_value_as_it_was_sent(delta: SparkSession, shore: Shore, jvm: JvmTable) -> None:
    awkward_table(shore, jvm, "log")
    found = delta.read.format("delta").load(str(shore.path)).toArrow()
    sent = pa.Table.from_batches([chunk for task in files(DELTA) for chunk in task])
    assert set(found.column_names) == set(sent.column_names)
    for name in sent.column_names:
        wanted = sent.column(name).cast(found.column(name).type)
        assert sorted(map(repr, found.column(name).to_pylist())) == sorted(map(repr, wanted.to_pylist())), name


@pytest.mark.parametrize(
    ("lives_in", "every"), [("log", False), *(pytest.param(each, True, marks=pytest.mark.long) for each in LIVES_IN)]
)
def test_the_jvm_finds_by_a_filter_what_is_there(
    delta: SparkSession, shore: Shore, jvm: JvmTable, lives_in: str, every: bool
) -> None:
    awkward_table(shore, jvm, lives_in)
    rows = delta.read.format("delta").load(str(shore.path))
    given = [each for each in awkward.filters(DELTA, every=False) if not compares_with_zero(each)]
    some = given if every else given[::12]
    assert misled(lambda filters: filtering.by_spark(rows, filters), some) == {}


def test_the_jvm_counts_from_our_statistics_what_it_counts_from_the_rows(
    delta: SparkSession, shore: Shore, jvm: JvmTable
) -> None:
    """Of columns with bounds in each file it reads no file for MIN and MAX."""
    awkward_table(shore, jvm, "log")
    names = ["number", "int8", "int16", "int32", "int64", "double", "float", "date"]
    bounds = ", ".join(f"min(`{name}`) AS l{at}, max(`{name}`) AS m{at}" for at, name in enumerate(names))
    found = []
    for by_statistics in ("true", "false"):
        delta.conf.set("spark.databricks.delta.optimizeMetadataQuery.enabled", by_statistics)
        counted = delta.sql(f"SELECT {bounds}, count(*) AS n FROM {jvm.name}")
        plan = counted._jdf.queryExecution().optimizedPlan().toString()
        assert ("LocalRelation" in plan) == (by_statistics == "true")
        found.append(repr(counted.collect()))
    delta.conf.unset("spark.databricks.delta.optimizeMetadataQuery.enabled")
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("kind", "given", "values"),
    in_turn(PLAIN[:-1], lambda case: f"{case[0]}-{case[1]}"),
)
def test_the_jvm_finds_rows_by_their_partition_and_ours_replaces_those_that_it_wrote(
    delta: SparkSession, shore: Shore, jvm: JvmTable, kind: str, given: pa.DataType, values: list[Any]
) -> None:
    """Also in a session of another time zone, in which a time without a zone would be another one."""
    rows = batch(id=list(range(len(values))), v=pa.array(values, given))
    driver = shore.driver(create_table="if_missing", partition_by="v", write_mode="overwrite_partitions")
    driver.write(0, rows)
    delta.conf.set("spark.sql.session.timeZone", "America/New_York")
    for number, value in enumerate(values):
        literal = "NULL" if value is None else filtering.spark_literal(value, rows.schema.field("v").type)
        # The literal of a time would be one of this session's zone.
        if value is None or not pa.types.is_timestamp(given):
            assert jvm.column("id", f"WHERE v <=> {literal}") == [number], literal
    jvm.run("INSERT INTO {t} SELECT id + 100, v FROM {t}")
    assert len(jvm.ids()) == 2 * len(values)
    driver.write(1, rows)
    assert jvm.ids() == list(range(len(values)))
    found = delta.read.format("delta").load(str(shore.path)).orderBy("id").toArrow().column("v")
    assert all(map(same, pa.array(values, given).cast(found.type).to_pylist(), found.to_pylist())), found


def test_the_jvm_finds_odd_texts_by_their_partition_and_ours_does_not_replace_a_path_that_it_cannot_encode(
    shore: Shore, jvm: JvmTable
) -> None:
    _, given, values = PLAIN[-1]
    rows = batch(id=list(range(len(values))), v=pa.array(values, given))
    driver = shore.driver(create_table="if_missing", partition_by="v", write_mode="overwrite_partitions")
    driver.write(0, rows)
    for number, value in enumerate(values):
        literal = "NULL" if value is None else filtering.spark_literal(value, given)
        assert jvm.column("id", f"WHERE v <=> {literal}") == [number]
    jvm.run("INSERT INTO {t} SELECT id + 100, v FROM {t}")
    with pytest.raises(ConfigurationError, match="cannot replace the file 'v=ä€"):
        driver.write(1, rows)
    assert jvm.ids() == [*range(len(values)), *range(100, 100 + len(values))]


@pytest.mark.parametrize(("kind", "given", "values"), NESTED, ids=str)
def test_the_jvm_reads_nested_values_of_a_table_that_ours_made(
    delta: SparkSession, shore: Shore, kind: Any, given: pa.DataType, values: list[Any]
) -> None:
    driver = shore.driver(create_table="if_missing")
    driver.write(0, batch(id=list(range(len(values))), v=pa.array(values, given)))
    found = delta.read.format("delta").load(str(shore.path)).orderBy("id").toArrow().column("v").to_pylist()
    assert all(map(same, values, found)), found


CONFIGURATIONS = [
    {"delta.appendOnly": "true"},
    {"delta.enableChangeDataFeed": "true"},
    {"delta.dataSkippingNumIndexedCols": "-1"},
    {"delta.dataSkippingStatsColumns": "id", "delta.targetFileSize": "64mb"},
    {"delta.logRetentionDuration": "interval 7 days", "delta.deletedFileRetentionDuration": "interval 7 days"},
    {"delta.setTransactionRetentionDuration": "interval 30 days"},
    {"delta.isolationLevel": "Serializable", "delta.randomizeFilePrefixes": "true"},
    STRUCTS,
]


@pytest.mark.parametrize("configuration", in_turn(CONFIGURATIONS, lambda each: next(iter(each))))
def test_the_jvm_reads_and_writes_a_table_that_ours_made_with_properties(
    shore: Shore, jvm: JvmTable, configuration: dict[str, str]
) -> None:
    driver = shore.driver("log", create_table="if_missing", configuration=configuration)
    at = pa.array([0, None], pa.timestamp("us"))
    driver.write(0, batch(id=[1, 2], at=at))
    jvm.run("INSERT INTO {t} VALUES (70, NULL)")
    if "delta.appendOnly" not in configuration:
        jvm.run("DELETE FROM {t} WHERE id = 1", "UPDATE {t} SET id = 20 WHERE id = 2")
    driver.write(1, batch(id=[3], at=at[:1]))
    assert jvm.ids() == ([1, 2, 3, 70] if "delta.appendOnly" in configuration else [3, 20, 70])
    assert DeltaTable(shore.path).version() >= 3


def test_the_jvm_finds_padded_and_short_texts_of_columns_that_it_declared(shore: Shore, jvm: JvmTable) -> None:
    jvm.run("CREATE TABLE {t} (id BIGINT NOT NULL, c CHAR(3), v VARCHAR(3)) USING delta")
    shore.driver().write(0, batch(id=[1, 2], c=["ab ", None], v=["ab", "ä€𝄞"]))
    assert jvm.column("id", "WHERE c = 'ab'") == [1]
    assert jvm.column("id", "WHERE v = 'ä€𝄞'") == [2]


def test_a_directory_of_a_table_may_have_any_name(shore: Shore, delta: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a b=ü+&'x"
    sink = DeltaSink(path, create_table="if_missing")
    write(sink, shore.directory / "log", [[batch(id=[1, 2])]])
    assert delta.read.format("delta").load(str(path)).count() == 2
