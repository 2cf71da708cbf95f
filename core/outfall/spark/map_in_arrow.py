"""`DataFrame.mapInArrow`, also where pandas is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outfall.spark.query_identity import is_connect
from outfall.spark.version_check import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, function: ArrowFunction, schema: StructType | str) -> DataFrame:
    """Run a function over each partition's Arrow batches.

    PySpark refuses `mapInArrow` where pandas is missing, although neither the driver nor the workers use it there. Only
    then is the call made by the way that PySpark makes it itself, behind that check; Connect cannot do without pandas.
    """
    if find_spec("pandas") is not None or is_connect(df):
        return df.mapInArrow(function, schema)
    return _without_pandas(df, function, schema)


def _without_pandas(df: DataFrame, function: ArrowFunction, schema: StructType | str) -> DataFrame:
    from pyspark.sql import udf

    frame: Any = df
    if pyspark_version() >= (4, 0):
        from pyspark.sql.classic.dataframe import DataFrame as Classic
        from pyspark.util import PythonEvalType

        call = udf._create_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        column: Any = call(*[frame[name] for name in frame.columns])
        return Classic(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
    from pyspark.sql import DataFrame as Frame

    eval_type = import_module("pyspark.rdd").PythonEvalType.SQL_MAP_ARROW_ITER_UDF  # gone from pyspark.rdd in 4.x
    call = udf._create_udf(function, schema, eval_type)
    column = call(*[frame[name] for name in frame.columns])
    old: Any = Frame
    result: DataFrame = old(frame._jdf.pythonMapInArrow(column._jc.expr(), False), frame.sparkSession)
    return result
