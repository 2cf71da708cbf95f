"""The benchmark beside Spark's own Kafka sink runs, at a size that takes seconds. Nothing is asserted of times."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import jvm_kafka
from benchmarks.common import Given
from benchmarks.jvm_session import LIMITS
from outfall.testing.benchmark.rows import Scratch
from tests.integration.support.kafka_server import ADDRESS
from tests.peers.serve import PEERS


@pytest.mark.long
def test_kafka(
    spark: SparkSession, sqlite_catalog: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PEERS["kafka-4.3"]() as variables:
        monkeypatch.setenv(ADDRESS, variables[ADDRESS])
        result = jvm_kafka.measure(spark, Given(rows=300, pairs=1), Scratch(str(tmp_path)), sqlite_catalog)
    ours = [line for line in result.lines if line.ratios]
    assert {name for line in ours for name in line.ratios} == set(jvm_kafka.WANTED)
    assert len(ours) == 2 * len(LIMITS)
    assert all(line.figure.median > 0 for line in result.lines)


def test_without_a_broker_the_way_to_one_is_told(
    spark: SparkSession, sqlite_catalog: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    with pytest.raises(SystemExit, match=r"tests\.peers\.serve kafka-4\.3 python -m benchmarks\.jvm_kafka"):
        jvm_kafka.measure(spark, jvm_kafka.DEFAULT, Scratch(str(tmp_path)), sqlite_catalog)
