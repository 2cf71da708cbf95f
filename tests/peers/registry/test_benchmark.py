"""The benchmark beside Spark's own `from_avro` runs, at a size that takes seconds. Nothing is asserted of times."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import jvm_avro
from benchmarks.common import Given
from outfall.testing.benchmark.rows import Scratch


@pytest.mark.long
def test_avro(spark: SparkSession, sqlite_catalog: dict[str, str], tmp_path: Path) -> None:
    result = jvm_avro.measure(spark, Given(rows=300, pairs=1), Scratch(str(tmp_path)), sqlite_catalog)
    assert [list(line.ratios) for line in result.lines] == [[], list(jvm_avro.WANTED)]
