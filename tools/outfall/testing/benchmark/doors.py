"""A sink object through either of Spark's doors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outfall.capability_checks import is_fixed
from outfall.recovery import history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT = "outfall_benchmark"


class Door(ABC):
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
class ObjectsDoor(Door):
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


class OptionsDoor(Door):
    """`format("outfall")`, for sinks that have no name there."""

    def write(self, df: DataFrame, sink: Any, scratch: Path) -> int | None:
        self._register(df, sink)
        options = {"sink": "file", "epoch": "0", "recovery": str(scratch)}
        df.write.format(FORMAT).options(**options).mode("append").save()
        return history(str(scratch))[-1].counts.get("bytes")

    def stream(self, df: DataFrame, sink: Any, checkpoint: Path) -> DataStreamWriter:
        self._register(df, sink)
        options = {"sink": "file", "checkpointLocation": str(checkpoint)}
        return df.writeStream.format(FORMAT).options(**options)

    def _register(self, df: DataFrame, sink: Any) -> None:
        from outfall.source_options import check_for_options
        from outfall.spark.data_source import OutfallDataSource

        check_for_options(sink, type(sink).__name__)

        class Source(OutfallDataSource):
            """The same door, but that the sink is given. Spark sends a local class with what it closes over."""

            @classmethod
            def name(cls) -> str:
                return FORMAT

            def make_sink(self, name: str, options: Any) -> Any:
                return sink

        df.sparkSession.dataSource.register(Source)
