"""Recorded events as the records of Kafka's source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the records of a file."""
    lines = Path(__file__).with_name("events").joinpath(f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def frame(spark: SparkSession, records: list[dict[str, Any]]) -> DataFrame:
    """Return records as Kafka's source has them. In SQL, since rows from Python would need its workers."""
    if not records:
        nothing = {"key": "", "value": "", "topic": "", "partition": 0, "offset": 0}
        return frame(spark, [nothing]).where("false")
    names = ("key", "value", "topic", "partition", "offset")
    rows = ", ".join(f"({', '.join(_literal(record[name]) for name in names)})" for record in records)
    kinds = "cast(key AS binary) key, cast(value AS binary) value, topic, partition, cast(offset AS bigint) offset"
    return spark.sql(f"SELECT {kinds} FROM VALUES {rows} AS t({', '.join(names)})")


def _literal(value: Any) -> str:
    if not isinstance(value, str):
        return "NULL" if value is None else str(value)
    return "'{}'".format(value.replace("\\", "\\\\").replace("'", "\\'"))
