"""Writes to a sink object with either API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outfall.capability_checks import resolve
from outfall.recovery import history
from outfall.source_options import check_for_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FORMAT = "outfall_benchmark"  # in given_sink, which requires Spark 4.1


class Api(ABC):
    """Writes rows to a sink."""

    @abstractmethod
    def write(self, df: DataFrame, sink: Any, scratch: Path) -> int | None:
        """Write rows as one epoch, with the log in an empty directory. Return the sink's byte counter, if any."""

    @abstractmethod
    def stream(self, df: DataFrame, sink: Any, checkpoint: Path) -> DataStreamWriter:
        """Return the writer of a stream."""


@dataclass(frozen=True)
class PythonApi(Api):
    """`outfall.spark.write` and `write_stream`."""

    key: str | None = None
    """Routing column for sinks with parts. Other sinks, such as the empty sink, get unrouted rows."""

    def write(self, df: DataFrame, sink: Any, scratch: Path) -> int | None:
        from outfall.spark import write

        return write(df, sink, key=self._key(sink), epoch=0, recovery=str(scratch)).counts.get("bytes")

    def stream(self, df: DataFrame, sink: Any, checkpoint: Path) -> DataStreamWriter:
        from outfall.spark import write_stream

        return write_stream(df, sink, key=self._key(sink), checkpoint=checkpoint)

    def _key(self, sink: Any) -> str | None:
        return self.key if resolve(sink).fixed else None


class FormatApi(Api):
    """`format("outfall")`, for sinks without a registered name."""

    def write(self, df: DataFrame, sink: Any, scratch: Path) -> int | None:
        options = self._register(df, sink) | {"epoch": "0", "recovery": str(scratch)}
        df.write.format(_FORMAT).options(**options).mode("append").save()
        return history(str(scratch))[-1].counts.get("bytes")

    def stream(self, df: DataFrame, sink: Any, checkpoint: Path) -> DataStreamWriter:
        options = self._register(df, sink) | {"checkpointLocation": str(checkpoint)}
        return df.writeStream.format(_FORMAT).options(**options)

    def _register(self, df: DataFrame, sink: Any) -> dict[str, str]:
        """Register the format, and return the options for the sink."""
        from outfall.testing.benchmark.given_sink import GivenSinkSource, options_of

        check_for_options(sink, type(sink).__name__)
        df.sparkSession.dataSource.register(GivenSinkSource)
        return options_of(sink)
