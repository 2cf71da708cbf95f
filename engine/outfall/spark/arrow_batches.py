"""Decides which limits the Arrow batches have in which Spark sends the rows of an epoch to its Python workers.

Since 4.0, Spark also ends a batch by its bytes, which it computes for each row and each column. That is half of what a
row costs in the JVM. Where it is safe, Outfall lets Spark end batches by a number of rows instead: few while the width
of the rows is not known, and then as many as fit into 4 MiB. Small batches are joined in the worker
(`outfall.spark.arriving_rows`). Spark reads the limits in each task, from the settings of the session or
else from the local properties of the thread that starts the job, so nobody else's jobs have them.

They hold for all Python operators of the job. So the plan is searched for others, and where it cannot be seen
completely, Spark's own limits stay. A batch that does not fit into memory ends the JVM in local mode, and an executor
in a cluster. So rows of unknown width get them only if a log will show that the epoch is begun again.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StringType, StructType

from outfall.spark.arriving_rows import JOINED
from outfall.spark.job_properties import job_properties
from outfall.spark.query_identity import active_query, is_connect
from outfall.spark.version_check import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
MOST_ROWS = 10_000
"""Rows per batch if their width is known: Spark's own limit."""
MOST_UNKNOWN_ROWS = 500
"""Rows per batch of at most five columns if their width is not known: 100 kB in each stay below Spark's own limit."""
_MOST_UNKNOWN_ROWS_OF_MANY_COLUMNS = 2000
"""The same for twenty columns or more, in proportion between. The work per batch grows with its columns."""
FEWEST_ROWS = 100
"""Batches have a multiple of it. With fewer, the work per batch would cost more than Spark's count of the bytes."""
_MOST_BYTES = 4 << 20
"""Bytes of a batch as far as is known. Rows may be 16 times as wide before it reaches Spark's own limit since 4.1."""
_COLUMN_BYTES = 16
"""Bytes of a column of a fixed length, assumed for others too if no earlier epoch has shown the width of a row."""

_FIXED = {"boolean", "date", "timestamp", "timestamp_ntz", "time", "void", "interval"} | {
    f"{unit}interval" for unit in ("daytime", "day-time", "yearmonth", "year-month")
}
"""Spark's names of types with values of a fixed length, besides numbers."""

_NODE = re.compile(r"^[\s:|+*()\d-]*(\w+) ?(\S*)", re.MULTILINE)
_OTHER = re.compile(r"Python|Pandas|PySpark|Arrow")
_OURS = ("EpochFunction(", "PartFunction(")
_RDD = "ExistingRDD"
_CUT = ("more characters", "Truncated plan")
"""The end of the text of a plan that is longer than `spark.sql.maxPlanStringLength`."""


@dataclass(frozen=True)
class Job:
    """What is known about the job of an epoch before it runs."""

    columns: StructType
    """The columns that the tasks receive, with the user's names."""
    spark: tuple[int, int] = field(default_factory=pyspark_version)
    setting: str | None = None
    """A limit that the user has set, whose name this is."""
    other: str | None = None
    """Another Python operator in the job, or a part of the plan that cannot be seen."""
    begun_before: bool = False
    """Whether the epoch was begun before and not completed."""
    widest_row: int = 0
    """The bytes per row in the widest batch of the step's last epochs with these columns; 0 if unknown."""
    resumable: bool = True
    """Whether the step has a log that outlives the job."""


@dataclass(frozen=True)
class Limits:
    """The limits of the batches in one job."""

    rows: int | None
    """The number of rows in a batch, without a limit of bytes; `None` for Spark's own limits."""
    reason: str

    def __str__(self) -> str:
        """Return what was decided, and why."""
        own = "Spark's own limits" if self.rows is None else f"{self.rows} rows without Spark's count of the bytes"
        return f"{own}: {self.reason}"


def decide(job: Job) -> Limits:
    """Return the limits of the batches in a job."""
    own = None
    if job.spark < (4, 0):
        own = "before 4.0, Spark does not count the bytes of a batch"
    elif job.setting is not None:
        own = f"{job.setting} is set"
    elif job.other is not None:
        own = f"the limits would also hold for {job.other}"
    elif job.begun_before:
        own = "the epoch was begun before, and wide rows may have been the reason that it failed"
    elif not job.widest_row and (column := _unbounded(job.columns, job.resumable)):
        own = f"the column {column!r} may be wide, and no earlier epoch has shown how wide"
    if own is not None:
        return Limits(None, own)
    columns = _leaves(job.columns)
    width = job.widest_row or _COLUMN_BYTES * columns
    most = MOST_ROWS
    if not job.widest_row and _unbounded(job.columns, resumable=False):
        most = min(_MOST_UNKNOWN_ROWS_OF_MANY_COLUMNS, max(MOST_UNKNOWN_ROWS, columns * MOST_UNKNOWN_ROWS // 5))
    rows = min(most, _MOST_BYTES // max(1, width) // FEWEST_ROWS * FEWEST_ROWS)
    shown = "the rows of the last epochs" if job.widest_row else "rows with these columns"
    return Limits(rows, f"{shown} are narrow enough") if rows else Limits(None, f"{shown} are too wide")


def _unbounded(columns: StructType, resumable: bool) -> str | None:
    """Return a column whose values may be too long: strings too, if the job cannot run again with other limits."""
    most = 1 if resumable else 0
    return next((field.name for field in columns if _length(field.dataType) > most), None)


def _length(kind: DataType, inside: bool = False) -> int:
    """Return 0 for values of a fixed length, 1 for strings and collections, and 2 for values that are often long.

    These are bytes, collections in collections (`inside` says that `kind` is in one), and types that are not known.
    """
    match kind:
        case StructType():
            return max((_length(field.dataType, inside) for field in kind), default=0)
        case ArrayType():
            return 2 if inside else max(1, _length(kind.elementType, True))
        case MapType():
            return 2 if inside else max(1, _length(kind.keyType, True), _length(kind.valueType, True))
        case StringType():
            return 1
    return 0 if isinstance(kind, NumericType) or kind.typeName() in _FIXED else 2


def _leaves(kind: DataType) -> int:
    return sum(_leaves(field.dataType) for field in kind) if isinstance(kind, StructType) else 1


def other_operator(plan: str) -> str | None:
    """Return an operator in the text of a physical plan that also sends batches to Python or R, if there is one.

    The function of Outfall itself does not count.
    """
    if plan.endswith(" characters") and any(cut in plan[-100:] for cut in _CUT):
        return "a plan that is longer than spark.sql.maxPlanStringLength"
    for name, rest in _NODE.findall(plan):
        if _OTHER.search(name) and not (name.endswith("MapInArrow") and rest.startswith(_OURS)):
            return f"the operator {name}"
    return next((f"the operator {name}" for name in re.findall(r"class \S*\.python\.(\w+)", plan)), None)


def limits_of(df: DataFrame, job: Job, query_id: str | None) -> Limits:
    """Return the limits for a job that collects `df`, the result of the function for the tasks.

    `job` has what is known without Spark. Called on the thread that starts the job.
    """
    if is_connect(df):
        return Limits(None, "on Spark Connect, only the session has settings")
    if decide(job).rows is None:
        return decide(job)
    session = df.sparkSession
    context = session.sparkContext
    for name in (BYTES_SETTING, ROWS_SETTING):
        if session.conf.get(name, None) is not None or context.getLocalProperty(name) is not None:
            return decide(replace(job, setting=name))
    return decide(replace(job, other=_other_in(df, query_id)))


def _other_in(df: DataFrame, query_id: str | None) -> str | None:
    """Return another operator of the job, in its plan or in that of the stream whose rows it has."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    frame: Any = df
    try:
        execution = frame._jdf.queryExecution()
        stream = None if query_id is None else active_query(df, query_id)
        last = None if stream is None else stream.lastExecution()
        plan = str(execution.executedPlan().toString())
        above = "" if last is None else str(last.executedPlan().toString())
        read = plan.count(_RDD)
        if read and (last is None or _RDD in above or read > _reads_of(execution, last.toRdd().id())):
            return "those of an RDD, whose own plan is not visible"
    except Py4JError:
        return "those of a plan that this platform does not show"
    return other_operator(plan) or (other_operator(above) if read else None)


def _reads_of(execution: Any, rdd: int) -> int:
    """Return how often a plan reads the RDD of the stream's batch, and 0 if it reads others."""
    leaves = execution.analyzed().collectLeaves()
    found = [leaves.apply(index) for index in range(leaves.size())]
    read = [leaf.rdd().id() for leaf in found if leaf.nodeName() == "LogicalRDD"]
    return len(read) if all(number == rdd for number in read) else 0


def limited(df: DataFrame, limits: Limits) -> AbstractContextManager[None]:
    """Return a context in which this thread starts jobs with these limits."""
    if limits.rows is None:
        return nullcontext()
    values = {ROWS_SETTING: str(limits.rows), BYTES_SETTING: str(2**31 - 1), JOINED: "true"}
    return job_properties(df.sparkSession.sparkContext, values)
