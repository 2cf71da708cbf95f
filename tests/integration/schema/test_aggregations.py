"""What Spark does when an aggregation changes under its checkpoint: the cells of the page about schema changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from outfall.delta import DeltaSink
from outfall.spark import write_stream
from tests.schema_changes import AGGREGATIONS
from tests.unit.support.delta_reader import newest

FIRST = [{"k": "a", "j": "p", "n": 5}, {"k": "b", "j": "p", "n": 1}]
SECOND = [{"k": "a", "j": "p", "n": 3}, {"k": "c", "j": "p", "n": 9}]

Query = Callable[[DataFrame], DataFrame]


def total(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(f.sum("n").alias("total"))


QUERIES: dict[str, Query] = {
    "function": lambda rows: rows.groupBy("k").agg(f.max("n").alias("total")),
    "grouping": lambda rows: rows.groupBy(f.col("j").alias("k")).agg(f.sum("n").alias("total")),
    "aggregate": lambda rows: rows.groupBy("k").agg(f.sum("n").alias("total"), f.count("*").alias("rows")),
    "column": lambda rows: rows.groupBy("k", "j").agg(f.sum("n").alias("total")),
}


def run(spark: SparkSession, folder: Path, query: Query) -> None:
    source = spark.readStream.schema("k string, j string, n bigint").json(str(folder / "in"))
    sink = DeltaSink(
        folder / "table",
        write_mode="upsert",
        key_columns="k",
        create_table="if_missing",
        schema_evolution="add_columns",
    )
    writer: Any = write_stream(query(source), sink, checkpoint=str(folder / "chk")).outputMode("update")
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.thorough
def test_a_changed_aggregation_does_what_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    for change, (_, goes_on, *_) in AGGREGATIONS.items():
        (folder := tmp_path / change).joinpath("in").mkdir(parents=True)
        (folder / "in" / "0.json").write_text("\n".join(map(json.dumps, FIRST)))
        run(spark, folder, total)
        (folder / "in" / "1.json").write_text("\n".join(map(json.dumps, SECOND)))
        if goes_on is None:
            with pytest.raises(Exception, match=r"(?i)state.*schema"):
                run(spark, folder, QUERIES[change])
            run(spark, folder, total)
            goes_on = {"a": 8, "b": 1, "c": 9}
        else:
            run(spark, folder, QUERIES[change])
        assert totals(folder) == goes_on, change


def totals(folder: Path) -> dict[str, int]:
    return {row["k"]: row["total"] for row in newest(folder / "table").rows()}
