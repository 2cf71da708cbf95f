"""Upserts beside MERGE in the JVM are measured as users run both."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import jvm_merge
from benchmarks.common import Given
from outfall.testing.benchmark.rows import Scratch

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_both_engines_upsert_the_same_changes(
    delta: SparkSession, sqlite_catalog: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm_merge, "WARM_UP", 0)
    result = jvm_merge.measure(delta, Given(rows=4000, pairs=1), Scratch(str(tmp_path)), sqlite_catalog)
    assert [(line.label, set(line.ratios)) for line in result.lines] == [
        case
        for ours in (jvm_merge.Delta.ours, jvm_merge.Iceberg.ours)
        for case in [(ours, {jvm_merge.PEER}), (jvm_merge.PEER, set())] * 2
    ]
