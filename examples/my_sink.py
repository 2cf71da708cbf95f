"""A custom sink: running totals in small JSON files.

Guarantee: at least once. After crashes and replays, the totals are correct. The sink has no fencing: a zombie attempt
that continues after the next epoch overwrites a file with old totals, until another epoch has rows for that part. With
`SupportsWriterContext`, a partition can detect that it is stale; `docs/writing-a-sink.md` has an exactly-once sink.

    python examples/my_sink.py

Run it twice: the second run finds the last day written, and counts nothing again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from outfall.recovery import history
from outfall.sinks import FixedPartitionedSink, StatefulSinkPartition
from outfall.spark import write

Totals = dict[str, int]


class MilesSink(FixedPartitionedSink[dict[str, Any], Totals]):
    """Miles flown per carrier, with one file per part."""

    def __init__(self, directory: Path, parts: int) -> None:
        self.directory, self.parts = directory, parts

    def list_parts(self) -> list[str]:
        return [f"miles-{number}.json" for number in range(self.parts)]

    def build_part(self, step_id: str, for_part: str, resume_state: Totals | None) -> MilesPart:
        return MilesPart(self.directory / for_part, resume_state or {})


class MilesPart(StatefulSinkPartition[dict[str, Any], Totals]):
    """Adds to the totals of the last recorded epoch, which exclude failed attempts."""

    def __init__(self, path: Path, totals: Totals) -> None:
        self.path, self.totals = path, dict(totals)

    def write_batch(self, values: list[dict[str, Any]]) -> None:
        for row in values:
            self.totals[row["carrier"]] = self.totals.get(row["carrier"], 0) + row["distance"]

    def snapshot(self) -> Totals:
        """Write the whole file, so that a replay replaces it, and sync it before the state is recorded."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with temporary.open("w") as file:
            json.dump(self.totals, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        return self.totals


DAYS = {
    20130101: [("UA", 1400), ("UA", 1416), ("AA", 1089), ("B6", 1576)],
    20130102: [("UA", 719), ("DL", 762), ("B6", 1028), ("AA", 733)],
}


def main(directory: Path) -> None:
    """Write each day as an epoch, starting with the last recorded one, which may be unfinished."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory.mkdir(parents=True, exist_ok=True)
    recovery = str(directory / "recovery")
    last = max((epoch.epoch for epoch in history(recovery)), default=0)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    for day in (day for day in DAYS if day >= last):
        rows = spark.createDataFrame(DAYS[day], "carrier string, distance int")
        result = write(rows, MilesSink(directory, parts=2), key="carrier", epoch=day, recovery=recovery)
        print(day, "was written before" if result.skipped else f"{result.counts['rows']} rows")
    for path in sorted(directory.glob("miles-*.json")):
        print(path.name, path.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outfall-demo/miles").absolute())
