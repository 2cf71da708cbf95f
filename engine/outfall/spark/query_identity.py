"""Identifies the query of a batch, and its run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outfall.errors import ConfigurationError
from outfall.serde import parse_json
from outfall.spark.task_function import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB_GROUP = "spark.jobGroup.id"


@dataclass(frozen=True)
class RunningQuery:
    """The identity of a batch's query."""

    query_id: str | None
    """Spark's query id, which is in the checkpoint and the same after restarts; `None` for a batch job."""
    run: str | None
    """Unique per run of a query in this process."""
    checkpoint: str | None = None
    """The location of its checkpoint, if known."""
    output_mode: str | None = None
    """Its output mode, if known and if the rows are those of the batch."""


NO_QUERY = RunningQuery(None, None)
"""The identity of a batch job."""


def running_query(df: DataFrame) -> RunningQuery:
    """Return the query of a micro-batch on a classic session. Called on the thread of the foreachBatch function.

    Raises `ConfigurationError` if the thread is another one, or there is no stream. Without the query id, a batch of
    another query could be mistaken for a replay, and its rows would be dropped.
    """
    context = df.sparkSession.sparkContext
    query_id = context.getLocalProperty(QUERY_ID)
    if query_id is None:
        raise ConfigurationError(
            "this thread has no Spark query id",
            why="the function was called on a thread other than the stream's, or outside a stream",
            do="call it on the thread of foreachBatch; or start the other thread with"
            " pyspark.inheritable_thread_target(…), created inside the foreachBatch function; or use"
            " outfall.spark.write for rows that are not streaming",
        )
    active = _active(df, query_id)
    if active is None:
        return RunningQuery(query_id, context.getLocalProperty(JOB_GROUP))
    return RunningQuery(query_id, *active)


def is_stream_thread() -> bool:
    """Return whether this is the thread of a stream in a classic session, on which Spark calls foreachBatch."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return context is not None and context.getLocalProperty(QUERY_ID) is not None


def _active(df: DataFrame, query_id: str) -> tuple[str, str, str | None] | None:
    """Return run, checkpoint and output mode of an active query from Spark; `None` if they are not available.

    The job group of the stream's thread is the run, but the user may set it. The mode is returned only for unchanged
    rows, because a user's function may transform them.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    frame: Any = df
    try:
        query = active_query(df, query_id)
        if query is None:
            return None
        unchanged = frame._jdf.queryExecution().logical().nodeName() == "LogicalRDD"
        mode = str(query.outputMode().toString()).lower() if unchanged else None
        return str(query.runId().toString()), str(query.resolvedCheckpointRoot()), mode
    except Py4JError:
        return None


def active_query(df: DataFrame, query_id: str) -> Any:
    """Return Spark's object of an active query on a classic session; `None` if there is none."""
    gateway: Any = df.sparkSession.sparkContext._jvm
    frame: Any = df
    active = frame._jdf.sparkSession().sharedState().activeStreamingQueries()
    uuid = getattr(gateway, "java.util.UUID")  # looked up once, and not for each package of its name
    return active.get(uuid.fromString(query_id))


def query_in(df: DataFrame, checkpoint: str) -> str | None:
    """Return the query id in a checkpoint; `None` if there is none.

    It is in the file `metadata` (`StreamMetadata` in Spark's sources), which Spark writes before a query's first batch.
    The file is read through Spark, so that the path has the same meaning as for the query.
    """
    from pyspark.errors import PySparkException

    try:
        row = df.sparkSession.read.text(f"{_escaped(checkpoint)}/metadata", wholetext=True).first()
        found = parse_json(row[0]) if row else None
    except (PySparkException, ValueError):
        return None
    return found.get("id") if isinstance(found, dict) else None


def is_open_in(df: DataFrame, checkpoint: str, batch: int) -> bool:
    """Return whether a checkpoint says that Spark runs this batch now.

    Spark writes `offsets/N` before it runs batch N, and `commits/N` after it (`OffsetSeqLog` and `CommitLog` in its
    sources). Raises Spark's error if the checkpoint cannot be listed.
    """
    begun, committed = (_numbers(df, f"{_escaped(checkpoint)}/{log}") for log in ("offsets", "commits"))
    return max(begun, default=-1) == batch and batch not in committed


def _numbers(df: DataFrame, directory: str) -> set[int]:
    rows = df.sparkSession.read.format("binaryFile").load(directory).select("path").collect()
    names = (row["path"].rpartition("/")[2] for row in rows)
    return {int(name) for name in names if name.isdecimal()}


def _escaped(path: str) -> str:
    """Return a path in which Spark finds no wildcards."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path.rstrip("/"))


def is_connect(df: DataFrame) -> bool:
    """Return whether the rows belong to a session of Spark Connect."""
    return ".connect." in type(df).__module__
