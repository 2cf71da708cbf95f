"""Brings each row to the one task that writes its part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StructField, StructType

from outfall.sinks import FixedPartitionedSink
from outfall.spark.map_in_arrow import map_in_arrow
from outfall.spark.murmur3 import partition_salts
from outfall.spark.task_function import KEY_COLUMN, NULL_KEY_PART, PART_COLUMN, PartFunction
from outfall.spark.version_check import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def route(
    df: DataFrame,
    sink: Any,
    parts: int,
    *,
    key: Column | None,
    null_key: str,
    tasks: int,
    order_by: Sequence[Column],
) -> DataFrame:
    """Add the part column, and repartition so that each part's rows are in one task.

    Args:
        df: the rows, under names that differ.
        sink: a fixed sink.
        parts: how many parts it has.
        key: the column that routes; `None` only for a single part.
        null_key: "error" or "empty".
        tasks: how many tasks write at most; part i goes to task i modulo this number.
        order_by: columns by which the rows of each part are sorted.
    """
    routed = _with_part(df, sink, parts, key=key, null_key=null_key)
    routed = _repartition(routed, min(parts, tasks))
    return routed.sortWithinPartitions(PART_COLUMN, *order_by) if order_by else routed


def _with_part(df: DataFrame, sink: Any, parts: int, *, key: Column | None, null_key: str) -> DataFrame:
    if key is None:
        return df.withColumn(PART_COLUMN, sf.lit(0))
    text = key.cast("string")
    text = sf.coalesce(text, sf.lit("")) if null_key == "empty" else text
    if getattr(type(sink), "part_fn", None) is FixedPartitionedSink.part_fn:
        part = sf.pmod(sf.crc32(text), sf.lit(parts)).cast("int")
        return df.withColumn(PART_COLUMN, sf.coalesce(part, sf.lit(NULL_KEY_PART)))
    keyed = df.withColumn(KEY_COLUMN, text)
    schema = StructType([*df.schema.fields, StructField(PART_COLUMN, IntegerType())])
    return map_in_arrow(keyed, PartFunction(sink, parts), schema)


def _repartition(df: DataFrame, tasks: int) -> DataFrame:
    task: Column = sf.pmod(sf.col(PART_COLUMN), sf.lit(tasks)).cast("int")
    if pyspark_version() >= (4, 1):
        return df.repartitionById(tasks, task)
    # Before repartitionById a row's partition is the hash of a column: give it one that hashes to where we want it.
    salts = sf.array(*[sf.lit(salt) for salt in partition_salts(tasks)])
    return df.repartition(tasks, sf.element_at(salts, task + 1))
