"""Both APIs on Spark Connect; a process of its own, since Connect and classic sessions do not share one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.errors import reason
from outfall.file import FileSink
from outfall.recovery import history
from outfall.schema_registry import RegistryDeserializer
from outfall.schema_registry.wire import head
from outfall.sinks import DynamicSink
from outfall.spark import EpochListener, deserialize, write, write_stream
from outfall.spark.debezium import changes
from tests.integration.support.connect_port import take_port
from tests.integration.support.reading import forget_commit, found_ids, write_source
from tests.integration.support.repr_sink import ReprWriter
from tests.integration.support.schema_registry import model_registry


def run(writer: DataStreamWriter) -> None:
    for _ in range(10):
        try:
            query = writer.trigger(availableNow=True).start()
            break
        except SparkConnectException as error:
            # The server gives its Python process ten seconds to start, which a busy machine may not keep.
            if "failed to connect back" not in str(error):
                raise
    assert query.awaitTermination(600)


class TagSink(DynamicSink[Any]):
    """Writes down which tags Spark shows of its job."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def build(self, step_id: str, worker_index: int, worker_count: int) -> ReprWriter:
        context = TaskContext.get()
        assert context is not None
        self._path.write_text(str(context.getLocalProperty("spark.job.tags")))
        return ReprWriter(self._path.with_suffix(".rows"))


def another_query(root: Path, read: Callable[[], DataFrame]) -> list[str]:
    """Write a second query into the step of a first one: with a new checkpoint, with none, and with the first one's.

    Returns:
        How each was refused.
    """
    texts = []
    for checkpoint, named in (("one", "one"), ("two", "two"), (None, None), ("three", "one")):
        given = None if named is None else root / f"kept-{named}"
        writer = write_stream(read(), FileSink(root / "kept"), checkpoint=given, recovery=str(root / "kept-recovery"))
        if checkpoint != named:
            writer = writer.option("checkpointLocation", str(root / f"kept-{checkpoint}"))
        try:
            run(writer)
        except StreamingQueryException as error:
            texts.append(reason(error))
    return texts


def deserialized(spark: SparkSession) -> int | None:
    """Read a message by a schema of a registry."""
    with model_registry() as registry:
        rows = spark.createDataFrame([(head(registry.register("numbers", '"long"')) + b"\x02",)], "value binary")
        found = deserialize(rows, RegistryDeserializer(registry.url, subject="numbers")).first()
        return int(found[0]) if found else None


def changed(spark: SparkSession) -> list[str] | None:
    """Make a change of an event of Debezium."""
    event = '{"before": null, "after": {"id": 7}, "op": "c", "source": {"schema": "s", "table": "t"}}'
    records = spark.sql(
        "SELECT cast('{}' AS binary) key, cast(value AS binary) value, 's.t' topic, 1 partition, 3L offset"
        f" FROM VALUES ('{event}') AS t(value)"
    )
    found = changes(records, "id BIGINT", order=1).first()
    return [str(part) for part in found] if found else None


def main(root: Path) -> None:
    take_port()
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    source = write_source(root / "source")

    def read() -> DataFrame:
        return spark.readStream.schema("id int, k string").option("maxFilesPerTrigger", 1).json(str(source))

    def stream(name: str) -> DataStreamWriter:
        df = read()
        checkpoint = root / f"{name}-checkpoint"
        match name:
            case "growing":
                return write_stream(df, FileSink(root / name, parts=3), key="k", checkpoint=checkpoint)
            case "by spark":
                return write_stream(df, FileSink(root / name, format="parquet", writer="spark"), checkpoint=checkpoint)
            case "whole":
                return write_stream(df, FileSink(root / name), checkpoint=checkpoint)
            case _:
                options = {"sink": "file", "path": str(root / name), "checkpointLocation": str(checkpoint)}
                return df.writeStream.format("outfall").options(**options)

    seen: Queue[list[int | None]] = Queue()
    listener = EpochListener(
        str(root / "whole-checkpoint"),
        on_epoch=lambda it: seen.put([it.epoch.batch, it.progress.batchId, it.epoch.rows]),
    )
    spark.streams.addListener(listener)
    report: dict[str, Any] = {}
    for name in sys.argv[2:]:
        run(stream(name))
        forget_commit(root / f"{name}-checkpoint", 1)
        run(stream(name))
        skipped = sum(item.skipped for item in history(str(root / f"{name}-checkpoint")))
        report[name] = {"ids": found_ids(root / name), "skipped": skipped}
    # Reports come some time after their batch.
    report["listened"] = [seen.get(timeout=60) for _ in range(3)]
    # The listener stays: on Connect, removeListener waits forever if an event arrives meanwhile.
    report["kept"] = {"texts": another_query(root, read), "ids": found_ids(root / "kept")}
    write(spark.range(10), FileSink(root / "batch"))
    report["batch"] = {"ids": found_ids(root / "batch"), "skipped": 0}
    write(spark.range(1), TagSink(root / "tags"), step_id="tagged")
    report["tags"] = {"of the task": (root / "tags").read_text(), "left": sorted(spark.getTags())}
    report["deserialized"] = deserialized(spark)
    report["changed"] = changed(spark)
    if "options" in report:
        # It has no URL, so the job ends in the process that plans, which has then warned.
        job = spark.range(1).write.format("outfall").option("sink", "http").option("bearer_token", "s3cr3tpw")
        try:
            job.mode("append").save()
        except SparkConnectException as error:
            report["kept"]["texts"].append(reason(error))
    (root / "report.json").write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
