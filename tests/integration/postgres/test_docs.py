"""The blocks of docs/postgres.md, against a real server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.documents import ROOT, blocks
from tests.integration.project.test_docs import ROWS, SCHEMA, finish_queries, runs_here

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def test_blocks_run(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    spark.createDataFrame([tuple(row.values()) for row in ROWS], SCHEMA).write.mode("append").json(str(source))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "dsn").write_text(dsn)
    flights = spark.readStream.schema(SCHEMA).json(str(source))
    # As a source of Kafka brings them.
    events = flights.selectExpr("'flights' AS topic", "0 AS partition", "CAST(flight AS long) AS offset", "carrier")
    names: dict[str, Any] = {"flights": flights, "events": events}
    found = [block for block in blocks(ROOT / "docs" / "postgres.md") if runs_here(block)]
    for block in found:
        replace(block, code=block.code.replace("postgresql://app@db/warehouse", dsn)).run(names, tmp_path)
        finish_queries(spark)
    with psycopg.connect(dsn) as connection:
        carriers = connection.execute("SELECT carrier, count FROM carriers ORDER BY 1").fetchall()
        counted = connection.execute("SELECT count(*) FROM flights").fetchone()
        delivered = connection.execute("SELECT count(*) FROM events").fetchone()
    assert carriers == [("AA", 5), ("B6", 5), ("DL", 5), ("UA", 5)]
    by_options = any(block.needs_format_api for block in found)
    assert counted == (len(ROWS) * (3 if by_options else 2),)
    assert delivered == (len(ROWS),)
