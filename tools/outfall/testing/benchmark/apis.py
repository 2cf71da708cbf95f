"""A sink object through either API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outfall.capability_checks import is_fixed
from outfall.recovery import history
from outfall.source_options import check_for_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FORMAT = "outfall_benchmark"  # of given_sink, which only Spark 4.1 can import


class Api(ABC):
    """Brings rows to a sink."""

    @abstractmethod
    def write(self, df: DataFrame, sink: Any, scratch: Path) -> int | None:
        """Write rows as one epoch.

        Args:
            df: the rows.
            sink: where they go.
            scratch: an empty directory for the recovery log.

        Returns:
            The bytes that the sink counted, if it counts them.
        """

    @abstractmethod
    def stream(self, df: DataFrame, sink: Any, checkpoint: Path) -> DataStreamWriter:
        """Make the writer of a stream."""


@dataclass(frozen=True)
class PythonApi(Api):
    """`outfall.spark.write` and `write_stream`."""

    key: str | None = None
    """Routes the rows of a sink with parts. Others, the empty sink among them, get them as they come."""

    def write(self, df: DataFrame, sink: Any, scratch: Path) -> int | None:
        from outfall.spark import write

        return write(df, sink, key=self._key(sink), epoch=0, recovery=str(scratch)).counts.get("bytes")

    def stream(self, df: DataFrame, sink: Any, checkpoint: Path) -> DataStreamWriter:
        from outfall.spark import write_stream

        return write_stream(df, sink, key=self._key(sink), checkpoint=checkpoint)

    def _key(self, sink: Any) -> str | None:
        return self.key if is_fixed(sink) else None


class FormatApi(Api):
    """`format("outfall")`, for sinks that have no name there."""

    def write(self, df: DataFrame, sink: Any, scratch: Path) -> int | None:
        options = self._register(df, sink) | {"epoch": "0", "recovery": str(scratch)}
        df.write.format(_FORMAT).options(**options).mode("append").save()
        return history(str(scratch))[-1].counts.get("bytes")

    def stream(self, df: DataFrame, sink: Any, checkpoint: Path) -> DataStreamWriter:
        options = self._register(df, sink) | {"checkpointLocation": str(checkpoint)}
        return df.writeStream.format(_FORMAT).options(**options)

    def _register(self, df: DataFrame, sink: Any) -> dict[str, str]:
        """Have the session know the format, and return the options that bring the sink to it."""
        from outfall.testing.benchmark.given_sink import GivenSinkSource, options_of

        check_for_options(sink, type(sink).__name__)
        df.sparkSession.dataSource.register(GivenSinkSource)
        return options_of(sink)
