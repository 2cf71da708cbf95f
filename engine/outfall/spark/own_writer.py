"""Spark's own writer, for sinks that let it write the rows: the rows of an epoch, written to files and counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outfall.errors import ConfigurationError, TransientError
from outfall.spark.query_identity import is_connect
from outfall.spark.routing import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COUNTED_WITHIN = 60.0
"""Seconds for which the number of rows is waited for after Spark's job. Spark reports it over its listener bus."""

_COMMITTERS = {
    # Version 2 lets a failed task leave files where the job's are.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.outputcommitter.factory.class": "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitterFactory",
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    "spark.sql.sources.outputCommitterClass": "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter",
}
"""Settings of Hadoop that a writer takes as options: Hadoop's own committer, whatever the platform prefers."""

_PROTOCOL = "spark.sql.sources.commitProtocolClass"
_OWN_PROTOCOL = "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"


class SparkRows:
    """The rows of an epoch as a DataFrame, for `SupportsSparkWriter`. Created by the engine, on the driver."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df

    def save(self, url: str, *, format: str, options: Mapping[str, str], partition_by: Sequence[str] = ()) -> int:
        """Let Spark write the rows into a directory that does not exist, and return their number.

        The directory has what Spark's job committed, and nothing of attempts that failed. Spark syncs nothing.

        Args:
            url: The directory, as Spark takes it.
            format: Spark's name of the format.
            options: The options of Spark's writer.
            partition_by: Columns that become directories.

        Raises:
            ConfigurationError: The session has a commit protocol other than Spark's, or lacks the package of Avro.
            TransientError: The rows were not counted.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        _check_protocol(self._df.sparkSession)
        observation = Observation()
        counted = self._df.observe(observation, sf.count(sf.lit(1)).alias("rows"))
        writer = counted.write.format(format).mode("error").options(**options).options(**_COMMITTERS)
        with _missing_package_named(self._df.sparkSession):
            (writer.partitionBy(*partition_by) if partition_by else writer).save(url)
        return _count(observation)

    def run_on_executors(self, check: Callable[[], None]) -> None:
        """Run a function in tasks on the executors that there are now: each of their cores gets one, if Spark can.

        The function is picklable. What it raises fails the job.
        """
        session = self._df.sparkSession
        tasks = default_parallelism(self._df)
        map_in_arrow(session.range(0, tasks, 1, tasks), _Checking(check), "nothing boolean").collect()


@dataclass(frozen=True)
class _Checking:
    check: Callable[[], None]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            self.check()
        return iter(())


def default_parallelism(df: DataFrame) -> int:
    """Return the number of parallel tasks, or of shuffle partitions on Connect, where the former is unknown."""
    session = df.sparkSession
    if is_connect(df):
        return int(session.conf.get("spark.sql.shuffle.partitions") or 200)
    return session.sparkContext.defaultParallelism


def _count(observation: Any) -> int:
    found: list[dict[str, Any]] = []
    # Spark's own call waits forever, and the listener bus may have dropped the event.
    waiting = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(_COUNTED_WITHIN)
    if not found:
        raise TransientError(
            "Spark did not report how many rows it wrote",
            why="its listener bus is behind, or has dropped the event",
            do="start the query again; if it happens often, raise spark.scheduler.listenerbus.eventqueue.capacity",
        )
    return int(found[0].get("rows", 0))


@contextmanager
def _missing_package_named(session: SparkSession) -> Iterator[None]:
    """Name the package for Avro. Spark detects that it is missing when it plans the job, before a row is written."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        if "Failed to find data source: avro" not in str(error):
            raise
        version = session.version
        package = f"org.apache.spark:spark-avro_{'2.12' if version.startswith('3.') else '2.13'}:{version}"
        raise ConfigurationError(
            "Spark cannot write Avro files in this session",
            why="its package spark-avro is not loaded",
            do=f"start the session with spark.jars.packages={package}, with the Scala version of your Spark, or choose"
            " another format",
        ) from error


def _check_protocol(session: SparkSession) -> None:
    value = session.conf.get(_PROTOCOL, _OWN_PROTOCOL)
    if value != _OWN_PROTOCOL:
        raise ConfigurationError(
            f"{_PROTOCOL} is {value}",
            why='with writer="spark", the files of an attempt must be committed by Spark\'s own protocol',
            do="omit writer, or start the session without this setting",
        )
