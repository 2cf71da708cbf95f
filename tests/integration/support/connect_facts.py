"""Run on a Spark Connect server of its own: what `foreachBatch` and a data source see there.

Usage: connect_facts.py <directory with one file per micro-batch> <empty directory>
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.integration.support.connect_port import take_port
from tests.integration.support.probes import Calls, record


def main(source: str, work: Path) -> None:
    take_port()
    session = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        stream = session.readStream.schema("id int").option("maxFilesPerTrigger", 1).json(source)
        calls = Calls(str(work / "calls"))
        for_each = stream.writeStream.foreachBatch(calls).option("checkpointLocation", str(work / "for_each"))
        for_each.trigger(availableNow=True).start().awaitTermination()
        record(str(work / "client"), "client", own=calls.own)
        facts = stream.writeStream.format("facts").option("log", str(work / "facts"))
        facts = facts.option("checkpointLocation", str(work / "chk")).option("camelCase", "As Typed")
        query = facts.trigger(availableNow=True).start()
        query.awaitTermination()
        record(str(work / "client"), "query", id=str(query.id))
    finally:
        session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
