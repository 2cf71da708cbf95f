"""Iceberg's Java library reads what was sent, with its filters, aggregates and metadata tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from outfall.iceberg.columns import new_schema
from tests.integration.filters.test_filters import compares_with_zero, files, misled, write
from tests.integration.support import awkward, filtering
from tests.integration.support.awkward import CASES, ICEBERG
from tests.peers.support.jvm_iceberg import JvmTable

NOT_IN_SPARK = "time"
"""A column of a type that Spark does not know: it reads no column of a table with one, whoever wrote it."""

SENT = [case for case in CASES if ICEBERG in case.sinks and case.name != NOT_IN_SPARK]
FLAT = [case.name for case in SENT if not pa.types.is_nested(case.kind)]

QUICK = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings without what takes longer than to read a small file."""


@pytest.fixture(scope="module")
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    for name, earlier in before.items():
        spark.conf.set(name, str(earlier))


@pytest.fixture(scope="module", params=["truncate(16)", pytest.param("full", marks=pytest.mark.long)])
def awkward_table(
    request: pytest.FixtureRequest,
    quick: SparkSession,
    sqlite_catalog: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> JvmTable:
    """Files of every type and every odd value, with bounds of either kind."""
    folder = tmp_path_factory.mktemp("awkward")
    table = JvmTable(quick, sqlite_catalog, folder)
    properties = {"write.metadata.metrics.default": request.param}
    table.catalog.create_table(table.name, new_schema(sent()[0][0].schema), properties=properties)
    write(table.sink(), folder / "log", sent())
    return table


def sent() -> list[list[pa.RecordBatch]]:
    """The rows of each task."""
    return [[chunk.select([case.name for case in SENT]) for chunk in task] for task in files(ICEBERG)]


def test_the_jvm_reads_every_value_that_was_sent(awkward_table: JvmTable, tmp_path: Path) -> None:
    awkward_table.sql("SELECT * FROM {t}").write.parquet(str(tmp_path / "read"))
    read = pq.read_table(tmp_path / "read", use_threads=False)
    chunks = [chunk for task in sent() for chunk in task]
    assert read.num_rows == sum(chunk.num_rows for chunk in chunks)
    for name in read.column_names:
        # Their text, because NaN is not equal to itself.
        wanted = [value for chunk in chunks for value in map(repr, chunk.column(name).to_pylist())]
        assert Counter(map(repr, read.column(name).to_pylist())) == Counter(wanted), name


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_jvm_finds_by_filters_what_is_there(awkward_table: JvmTable, every: bool) -> None:
    given = [
        each
        for each in awkward.filters(ICEBERG, every=every)
        if each.path[0] != NOT_IN_SPARK and not compares_with_zero(each)
    ]
    some = given if every else given[::20]
    rows = awkward_table.sql("SELECT * FROM {t}")
    assert misled(lambda filters: filtering.by_spark(rows, filters), some) == {}


def _unnamed(value: Any) -> Any:
    return list(map(_unnamed, value.values())) if isinstance(value, dict) else value


def test_aggregates_that_the_jvm_takes_from_bounds_are_those_of_the_rows(awkward_table: JvmTable) -> None:
    found: dict[str, list[str]] = {}
    for pushed in ("false", "true"):
        awkward_table.spark.conf.set(PUSHED, pushed)
        found[pushed] = [
            repr(awkward_table.sql(f"SELECT CAST(struct({each}) AS STRING) AS x FROM {{t}}").first())
            for each in (f"count({name}), min({name}), max({name})" for name in FLAT)
        ]
        plan = str(awkward_table.sql("SELECT max(number) FROM {t}")._jdf.queryExecution())
        assert ("LocalTableScan" in plan) == (pushed == "true")
    awkward_table.spark.conf.unset(PUSHED)
    assert found["true"] == found["false"]


PUSHED = "spark.sql.iceberg.aggregate-push-down.enabled"
