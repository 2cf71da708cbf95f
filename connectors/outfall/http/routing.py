"""Rows that say the same, in one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMN = "__outfall_content"


def by_content(df: DataFrame) -> DataFrame:
    """Repartition so that equal rows meet: by a hash of all columns, which Spark makes in the JVM.

    Records whose JSON is equal come from equal rows, since JSON leaves nothing of them out; and Spark gives equal
    values equal hashes. Maps, which it does not hash, count as their JSON. How many partitions there are is Spark's
    choice (`spark.sql.shuffle.partitions`), and may change from run to run.
    """
    values = ", ".join(_value(field) for field in df.schema.fields)
    hashed = df.selectExpr("*", f"xxhash64({values}) AS {_COLUMN}")
    return hashed.repartition(_COLUMN).drop(_COLUMN)


def _value(field: Any) -> str:
    name = "`" + field.name.replace("`", "``") + "`"
    return f"to_json({name})" if "map<" in field.dataType.simpleString() else name
