"""A job that knows nothing of this repository: all that it imports is in the environment that was shipped with it."""

from __future__ import annotations

import os
import sys

import pyspark
from pyspark.sql import SparkSession

import outfall.errors
from outfall.file import FileSink
from outfall.spark import write_stream


def main(source: str, home: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    for name in ("objects", "options"):
        df = spark.readStream.schema("id int, k string").option("maxFilesPerTrigger", 1).json(source)
        if name == "objects":
            writer = write_stream(df, FileSink(f"{home}/{name}"), checkpoint=f"{home}/{name}-chk")
        else:
            options = {"sink": "file", "path": f"{home}/{name}", "checkpointLocation": f"{home}/{name}-chk"}
            writer = df.writeStream.format("outfall").options(**options)
        writer.trigger(availableNow=True).start().awaitTermination()
    print("driver:", sys.executable, outfall.errors.__file__, pyspark.__file__, flush=True)
    print("secret reached the driver:", os.environ.get("DB_SECRET") == "s3cr3t-of-tests", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
