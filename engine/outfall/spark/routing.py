"""Routes each row to the one task that writes its part, and runs a Python function over the rows of a task.

Hides differences between releases of PySpark: without `repartitionById`, a row's partition is the hash of a column, and
`mapInArrow` checks pandas although it does not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StructField, StructType

from outfall.capability_checks import routes_by_default
from outfall.spark.query_identity import is_connect
from outfall.spark.task_function import KEY_COLUMN, PART_COLUMN, PartFunction, rejected_part
from outfall.spark.version_check import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_MASK = 0xFFFFFFFF
_SEED = 42


def route(
    df: DataFrame,
    sink: Any,
    parts: int,
    *,
    key: str | None,
    null_key: str,
    tasks: int,
    order_by: Sequence[Column],
) -> DataFrame:
    """Add the part column, and repartition so that the rows of each part are in one task.

    The rows have unique column names, and the sink is fixed, with this number of parts. The key is an expression in
    SQL, `None` only for a single part; `null_key` is "error" or "empty". At most `tasks` tasks write, part i in task i
    modulo this number. `order_by` sorts the rows of each part.
    """
    routed = _with_part(df, sink, parts, key=key, null_key=null_key)
    routed = _repartition(routed, min(parts, tasks))
    return routed.sortWithinPartitions(PART_COLUMN, *order_by) if order_by else routed


def _with_part(df: DataFrame, sink: Any, parts: int, *, key: str | None, null_key: str) -> DataFrame:
    # As text: a call of a function of PySpark for each part of an expression costs milliseconds in each epoch.
    if key is None:
        return df.withColumn(PART_COLUMN, sf.lit(0))
    text = f"cast({key} AS string)"
    text = f"coalesce({text}, '')" if null_key == "empty" else text
    if routes_by_default(sink):
        part = f"coalesce(cast(pmod(crc32({text}), {parts}) AS int), {rejected_part(crc32(b'') % parts)})"
        return df.withColumn(PART_COLUMN, sf.expr(part))
    keyed = df.withColumn(KEY_COLUMN, sf.expr(text))
    schema = StructType([*df.schema.fields, StructField(PART_COLUMN, IntegerType())])
    return map_in_arrow(keyed, PartFunction(sink, parts), schema)


def _repartition(df: DataFrame, tasks: int) -> DataFrame:
    # What a part rejects is in its task: see `rejected_part`.
    task = f"cast(pmod(if({PART_COLUMN} < 0, -1 - {PART_COLUMN}, {PART_COLUMN}), {tasks}) AS int)"
    if pyspark_version() >= (4, 1):
        return df.repartitionById(tasks, sf.expr(task))
    # Without repartitionById, a row's partition is the hash of a column. Use values whose hash is the right partition.
    salts = ", ".join(map(str, partition_salts(tasks)))
    return df.repartition(tasks, sf.expr(f"element_at(array({salts}), {task} + 1)"))


def map_in_arrow(df: DataFrame, function: ArrowFunction, schema: StructType | str) -> DataFrame:
    """Run a function over the Arrow batches of each partition.

    PySpark's `mapInArrow` rejects an absent pandas and warns of pandas 3, although neither driver nor workers use it
    there. A classic session gets the same call as PySpark behind that check. Connect does not work without pandas.
    """
    return df.mapInArrow(function, schema) if is_connect(df) else _map_in_arrow_unchecked(df, function, schema)


def _map_in_arrow_unchecked(df: DataFrame, function: ArrowFunction, schema: StructType | str) -> DataFrame:
    from pyspark.sql import udf

    frame: Any = df
    if pyspark_version() >= (4, 0):
        from pyspark.sql.classic.dataframe import DataFrame as Classic
        from pyspark.util import PythonEvalType

        call = udf._create_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        column: Any = call(*[frame[name] for name in frame.columns])
        return Classic(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
    from pyspark.sql import DataFrame as Frame

    eval_type = import_module("pyspark.rdd").PythonEvalType.SQL_MAP_ARROW_ITER_UDF  # not in pyspark.rdd of 4.x
    call = udf._create_udf(function, schema, eval_type)
    column = call(*[frame[name] for name in frame.columns])
    old: Any = Frame
    result: DataFrame = old(frame._jdf.pythonMapInArrow(column._jc.expr(), False), frame.sparkSession)
    return result


def hash_int(value: int) -> int:
    """Return Spark's `hash` of an INT column: a signed 32-bit integer.

    It is MurmurHash3 x86_32 (Austin Appleby, public domain) with seed 42.
    """
    k = (value & _MASK) * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) & _MASK
    h = _SEED ^ (k * 0x1B873593 & _MASK)
    h = (h << 13 | h >> 19) & _MASK
    h = (h * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def partition_salts(partitions: int) -> list[int]:
    """Return for each partition the smallest int that `repartition(partitions, column)` sends there."""
    found: dict[int, int] = {}
    value = 0
    while len(found) < partitions:
        found.setdefault(hash_int(value) % partitions, value)
        value += 1
    return [found[index] for index in range(partitions)]
