"""A table as the engine of its own format sees it and changes it: Spark's SQL, in the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession


class JvmTable:
    """A table by its name in SQL, such as ``delta.`/a/directory` ``."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self.name = name

    def run(self, *statements: str) -> list[Any]:
        """Run statements that have `{t}` in place of the table; returns the rows of the last."""
        found: Sequence[Any] = ()
        for text in statements:
            found = self._spark.sql(text.replace("{t}", self.name)).collect()
        return list(found)

    def column(self, expression: str = "id", rest: str = "") -> list[Any]:
        """Return the values of an expression over all rows, sorted."""
        return sorted((row[0] for row in self.run(f"SELECT {expression} FROM {{t}} {rest}")), key=repr)

    def ids(self) -> list[int]:
        """Return the column `id`, sorted."""
        return sorted(self.column())
