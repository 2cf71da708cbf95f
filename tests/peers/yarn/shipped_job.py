"""A job that knows nothing of this repository: all that it imports is in the environment that was shipped with it."""

from __future__ import annotations

import sys

import pyspark
from pydantic import SecretStr
from pyspark.sql import SparkSession

import outfall.errors
from outfall.file import FileSink
from outfall.options import resolve_secret
from outfall.spark import write_stream


def knows_secret() -> bool:
    return resolve_secret(SecretStr("env:DB_SECRET")) == "s3cr3t-of-tests"


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
    in_task = spark.sparkContext.parallelize([0], 1).map(lambda _: knows_secret()).collect()
    print("the secret is known:", knows_secret(), in_task, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
