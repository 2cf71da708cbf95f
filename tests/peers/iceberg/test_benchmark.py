"""The benchmark beside both formats' own engines runs, at a size that takes seconds. Nothing is asserted of times."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import jvm_tables
from benchmarks.common import Given
from benchmarks.jvm_session import LIMITS
from outfall.testing.benchmark.rows import Scratch


@pytest.mark.long
def test_tables(
    spark: SparkSession, sqlite_catalog: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm_tables, "WARM_UP", 0)
    result = jvm_tables.measure(spark, Given(rows=300, pairs=1), Scratch(str(tmp_path)), sqlite_catalog)
    ours = [line for line in result.lines if line.ratios]
    assert {name for line in ours for name in line.ratios} == set(jvm_tables.WANTED)
    # Speed and bytes of both sinks, with and without the limit.
    assert len(ours) == 2 * 2 * len(LIMITS)
    assert all(line.figure.median > 0 for line in result.lines)


def test_another_spark_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import jvm_session

    monkeypatch.setattr(jvm_session, "SPARK", "4.0.0")
    with pytest.raises(SystemExit, match=r"needs pyspark 4\.0\.0.*nox -s peers_bench"):
        jvm_session.main_beside("", jvm_tables.DEFAULT, jvm_tables.measure)
