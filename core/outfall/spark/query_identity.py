"""Which query a batch comes from, and which run of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outfall.errors import ConfigurationError
from outfall.spark.task_function import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB_GROUP = "spark.jobGroup.id"


@dataclass(frozen=True)
class RunningQuery:
    """What tells a batch's query from others."""

    query_id: str | None
    """Spark's id, which stands in the checkpoint and survives restarts; `None` for a batch job."""
    run: str | None
    """Differs between the runs of a query in this process."""
    checkpoint: str | None = None
    """Where its checkpoint is, as far as that is known."""
    output_mode: str | None = None
    """Its output mode, where that is known and the rows are the query's as they come."""


NO_QUERY = RunningQuery(None, None)
"""What a batch job is of."""


def running_query(df: DataFrame) -> RunningQuery:
    """Recognise the query of a micro-batch on a classic session. Called on the thread that its function runs on.

    Raises:
        ConfigurationError: the thread is another one, or there is no stream. Without its query's id a batch of another
            query could not be told from one that comes again, and its rows would be dropped.
    """
    context = df.sparkSession.sparkContext
    query_id = context.getLocalProperty(QUERY_ID)
    if query_id is None:
        raise ConfigurationError(
            "Spark tells this thread no query id",
            why="the function was called on a thread of its own, which has not the properties of the stream's, or"
            " outside a stream",
            do="call it on the thread of foreachBatch; or give the other thread pyspark.inheritable_thread_target(…),"
            " made inside the foreachBatch function; or write what is no stream with outfall.spark.write",
        )
    active = _active(df, query_id)
    if active is None:
        return RunningQuery(query_id, context.getLocalProperty(JOB_GROUP))
    return RunningQuery(query_id, *active)


def _active(df: DataFrame, query_id: str) -> tuple[str, str, str | None] | None:
    """Run, checkpoint and output mode that Spark itself has of an active query; `None` where it cannot be asked.

    The stream's thread has the run as its job group, which is the user's to set. The mode is told only of rows that
    nobody has changed: a function of the user's may make something else of them.
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
    """Return the query id that Spark wrote into a checkpoint; `None` where there is none.

    The file is `metadata` (`StreamMetadata` in Spark's sources), written before a query's first batch. It is read
    through Spark, which sees what a path means to the query.
    """
    from pyspark.errors import PySparkException

    escaped = re.sub(r"([\[\]{}*?\\])", r"\\\1", checkpoint.rstrip("/"))
    try:
        row = df.sparkSession.read.text(f"{escaped}/metadata", wholetext=True).first()
        found = json.loads(row[0]) if row else None
    except (PySparkException, ValueError):
        return None
    return found.get("id") if isinstance(found, dict) else None


def is_connect(df: DataFrame) -> bool:
    """Whether the rows belong to a session of Spark Connect."""
    return ".connect." in type(df).__module__
