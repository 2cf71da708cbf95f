"""Writes epochs of rows of one width in a Spark of its own, and reports the peak memory of the JVM and of the worker.

wide_rows.py OUT RECOVERY own|outfall EPOCH:ROWS:WIDTH…
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from outfall.spark import write
from outfall.spark.arrow_batches import BYTES_SETTING
from tests.integration.support.seen_limits import SeenSink, seen


def main(out: str, recovery: str, limits: str, *epochs: str) -> None:
    """Write, and leave the report after each epoch in OUT.json."""
    builder: Any = SparkSession.builder.master("local[1]")
    spark = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "512m").getOrCreate()
    if limits == "own":
        spark.conf.set(BYTES_SETTING, "64m")
    report: dict[str, Any] = {"limits": {}}
    for epoch, rows, width in (map(int, each.split(":")) for each in epochs):
        notes = Path(out, str(epoch))
        df = spark.range(0, rows, 1, 1).selectExpr("id", f"repeat('x', {width}) as text")
        assert write(df, SeenSink(notes), epoch=epoch, recovery=recovery).counts["rows"] == rows
        status = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/status").read_text()
        report["jvm"] = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        report["worker"] = max(note["peak"] for note in seen(notes))
        report["limits"][epoch] = seen(notes)[-1]["limits"]
        Path(f"{out}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
