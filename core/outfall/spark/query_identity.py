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

    gateway: Any = df.sparkSession.sparkContext._jvm
    frame: Any = df
    try:
        active = frame._jdf.sparkSession().sharedState().activeStreamingQueries()
        query = active.get(gateway.java.util.UUID.fromString(query_id))
        if query is None:
            return None
        unchanged = frame._jdf.queryExecution().logical().nodeName() == "LogicalRDD"
        mode = str(query.outputMode().toString()).lower() if unchanged else None
        return str(query.runId().toString()), str(query.resolvedCheckpointRoot()), mode
    except Py4JError:
        return None


def query_in(df: DataFrame, checkpoint: str) -> str | None:
    """Return the query id in a checkpoint; `None` if there is none.

    It is in the file `metadata` (`StreamMetadata` in Spark's sources), which Spark writes before a query's first batch.
    """
    found = _text(df, checkpoint, "metadata")
    try:
        parsed = parse_json(found) if found else None
    except ValueError:
        return None
    return parsed.get("id") if isinstance(parsed, dict) else None


def is_open_in(df: DataFrame, checkpoint: str, batch: int) -> bool:
    """Return whether a checkpoint says that Spark runs this batch now.

    Spark writes `offsets/N` before it runs batch N, and `commits/N` after it (`OffsetSeqLog` and `CommitLog` in its
    sources).
    """
    return bool(_text(df, checkpoint, f"offsets/{batch}")) and _text(df, checkpoint, f"commits/{batch}") is None


def _text(df: DataFrame, checkpoint: str, name: str) -> str | None:
    """Return the text of a file of a checkpoint; `None` if it cannot be read.

    The file is read through Spark, so that the path has the same meaning as for the query.
    """
    from pyspark.errors import PySparkException

    escaped = re.sub(r"([\[\]{}*?\\])", r"\\\1", checkpoint.rstrip("/"))
    try:
        row = df.sparkSession.read.text(f"{escaped}/{name}", wholetext=True).first()
    except PySparkException:
        return None
    return None if row is None else str(row[0])


def is_connect(df: DataFrame) -> bool:
    """Return whether the rows belong to a session of Spark Connect."""
    return ".connect." in type(df).__module__
