"""Both doors on Spark Connect; a process of its own, since Connect and classic sessions do not share one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.file import FileSink
from outfall.recovery import history
from outfall.spark import write, write_stream
from tests.integration.support.connect_port import take_port
from tests.integration.support.reading import forget_commit, found_ids, write_source


def run(writer: DataStreamWriter) -> None:
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def main(root: Path) -> None:
    take_port()
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    source = write_source(root / "source")

    def stream(name: str) -> DataStreamWriter:
        df = spark.readStream.schema("id int, k string").option("maxFilesPerTrigger", 1).json(str(source))
        checkpoint = root / f"{name}-checkpoint"
        match name:
            case "growing":
                return write_stream(df, FileSink(root / name, parts=3), key="k", checkpoint=checkpoint)
            case "whole":
                return write_stream(df, FileSink(root / name), checkpoint=checkpoint)
            case _:
                options = {"sink": "file", "path": str(root / name), "checkpointLocation": str(checkpoint)}
                return df.writeStream.format("outfall").options(**options)

    report = {}
    for name in sys.argv[2:]:
        run(stream(name))
        forget_commit(root / f"{name}-checkpoint", 1)
        run(stream(name))
        skipped = sum(item.skipped for item in history(str(root / f"{name}-checkpoint")))
        report[name] = {"ids": found_ids(root / name), "skipped": skipped}
    write(spark.range(10), FileSink(root / "batch"))
    report["batch"] = {"ids": found_ids(root / "batch"), "skipped": 0}
    (root / "report.json").write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
