"""Which limits Spark's Arrow batches get, and how small batches are joined."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from outfall.spark.arriving_rows import JOINED_BYTES, JOINED_ROWS, joined
from outfall.spark.arrow_batches import (
    BYTES_SETTING,
    MOST_ROWS,
    MOST_UNKNOWN_ROWS,
    Job,
    Limits,
    decide,
    other_operator,
)

TEXTS = st.ArrayType(st.StringType())
MIXED = st.StructType().add("id", "long").add("text", "string").add("at", "timestamp").add("tags", TEXTS)
FIXED = st.StructType().add("id", "long").add("amount", "decimal(38,2)").add("on", "date").add("ntz", "timestamp_ntz")


def limits(columns: st.StructType = MIXED, **known: Any) -> Limits:
    return decide(Job(columns, **{"spark": (4, 3), **known}))


@pytest.mark.parametrize(
    ("known", "rows"),
    [
        ({}, MOST_UNKNOWN_ROWS),
        ({"spark": (4, 0)}, MOST_UNKNOWN_ROWS),
        ({"widest_row": 400}, MOST_ROWS),
        ({"columns": FIXED}, MOST_ROWS),
        ({"columns": FIXED, "resumable": False}, MOST_ROWS),
    ],
)
def test_batches_have_few_rows_until_their_width_is_known_and_no_limit_of_bytes(
    known: dict[str, Any], rows: int
) -> None:
    assert limits(**known).rows == rows


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ({"spark": (3, 5)}, "before 4.0"),
        ({"setting": BYTES_SETTING}, BYTES_SETTING),
        ({"other": "the operator ArrowEvalPython"}, "ArrowEvalPython"),
        ({"begun_before": True, "widest_row": 10}, "begun before"),
        ({"widest_row": 20_000_000}, "too wide"),
        ({"widest_row": 200_000}, "too wide"),
        ({"resumable": False}, "'text'"),
        ({"columns": st.StructType().add("id", "long").add("image", "binary")}, "'image'"),
        ({"columns": st.StructType().add("deep", st.ArrayType(TEXTS))}, "'deep'"),
        (
            {"columns": st.StructType().add("deep", st.MapType(st.StringType(), st.StructType().add("a", TEXTS)))},
            "'deep'",
        ),
        ({"columns": st.StructType().add("in", st.StructType().add("a", "binary"))}, "'in'"),
        ({"columns": st.StructType([st.StructField(f"c{i}", st.LongType()) for i in range(20_000)])}, "too wide"),
    ],
)
def test_spark_s_own_limits_stay_with_the_reason(known: dict[str, Any], reason: str) -> None:
    found = limits(**known)
    assert found.rows is None
    assert reason in str(found)


@pytest.mark.parametrize(("width", "rows"), [(419, 10_000), (1024, 4000), (8000, 500), (41_900, 100), (42_000, None)])
def test_wider_rows_of_earlier_epochs_mean_fewer_rows(width: int, rows: int | None) -> None:
    assert limits(widest_row=width).rows == rows


@pytest.mark.parametrize(("columns", "rows"), [(1, 500), (5, 500), (6, 600), (19, 1900), (21, 2000)])
def test_batches_of_more_columns_have_more_rows(columns: int, rows: int) -> None:
    texts = st.StructType([st.StructField(f"c{number}", st.StringType()) for number in range(columns)])
    assert limits(texts).rows == rows
    assert limits(st.StructType().add("all", texts)).rows == rows


def test_known_rows_decide_instead_of_the_types() -> None:
    binary = st.StructType().add("key", "binary")
    assert limits(binary, widest_row=40).rows == MOST_ROWS


OWN = "MapInArrow EpochFunction(c0#7L, c1#8)#12, [response#13], false\n"


@pytest.mark.parametrize(
    "plan",
    [
        OWN + "+- *(1) Range (0, 25000, step=1, splits=2)\n",
        OWN + "+- Exchange hashpartitioning(p#2, 4)\n   +- MapInArrow PartFunction(a#1)#2, [a#3], false\n",
        "AdaptiveSparkPlan isFinalPlan=false\n+- "
        + OWN
        + "   +- FileScan parquet [PythonName#1,Pandas#2] Batched: true\n",
    ],
)
def test_a_plan_with_outfall_s_functions_has_no_other_operator(plan: str) -> None:
    assert other_operator(plan) is None


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("+- *(3) Project [a#1]\n   +- ArrowEvalPython [f(b#2)#1], [a#1], 200\n", "ArrowEvalPython"),
        ("+- BatchEvalPython [f(b#2)#1], [a#1]\n", "BatchEvalPython"),
        ("+- MapInArrow f(b#2)#1, [a#1], false\n", "MapInArrow"),
        ("+- PythonMapInArrow f(b#2)#1, [a#1], false\n", "PythonMapInArrow"),
        ("+- FlatMapGroupsInPandas [id#0L], f(id#0L)#39, [id#40L]\n", "FlatMapGroupsInPandas"),
        ("+- TransformWithStateInPySpark f(id#0L)#39\n", "TransformWithStateInPySpark"),
        ("+- MapPartitionsInRWithArrow f, [a#1]\n", "MapPartitionsInRWithArrow"),
        (
            "+- InMemoryTableScan [id#40L]\n      +- InMemoryRelation [id#40L], StorageLevel(disk, memory)\n"
            "            +- *(2) MapInPandas f(id#0L)#39, [id#40L]\n",
            "MapInPandas",
        ),
        ("+- BatchScan mine[] class org.apache.spark.sql.execution.datasources.v2.python.PythonScan\n", "PythonScan"),
        ("+- *(1) Ra... 120 more characters", "maxPlanStringLength"),
    ],
)
def test_another_python_operator_is_found(rest: str, found: str) -> None:
    assert found in str(other_operator(OWN + rest))


def batches(*sizes: int, text: str = "x") -> list[pa.RecordBatch]:
    numbers = iter(range(sum(sizes)))
    kinds = pa.schema({"n": pa.int64(), "s": pa.string()})
    return [pa.RecordBatch.from_pydict({"n": [next(numbers) for _ in range(n)], "s": [text] * n}, kinds) for n in sizes]


def test_small_batches_are_joined_in_their_order() -> None:
    found = list(joined(batches(*[500] * 41)))
    assert [batch.num_rows for batch in found] == [JOINED_ROWS, JOINED_ROWS, 500]
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(20_500))


def test_large_batches_are_not_copied_and_end_those_before() -> None:
    wide = batches(3, text="x" * (JOINED_BYTES // 2))
    found = list(joined([*batches(10, 10), *wide, *batches(10)]))
    assert [batch.num_rows for batch in found] == [20, 3, 10]
    assert found[1] is wide[0]


def test_joined_batches_end_by_bytes() -> None:
    found = list(joined(batches(*[1] * 9, text="x" * (JOINED_BYTES // 4))))
    assert [batch.num_rows for batch in found] == [4, 4, 1]


def test_batches_without_columns_or_rows_pass() -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    assert [batch.num_rows for batch in joined([rows, rows])] == [3, 3]
    assert [batch.num_rows for batch in joined(batches(0, 0, 2))] == [2]
    assert list(joined([])) == []
