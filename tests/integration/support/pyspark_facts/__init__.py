"""A data source that writes down who calls it. Spark finds it by the name of this module."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tests.integration.support.probes import PROPERTIES, record, task


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task reports: its partition, its rows and which pickle of the writer it was given."""

    partition: int
    rows: int
    pickle: int


class _Recorder:
    def __init__(self, options: Mapping[str, str], overwrite: bool, source_is_made: bool) -> None:
        self.log = options["log"]
        self.fail = options.get("fail")
        self.pickles = 0
        record(
            self.log,
            "new writer",
            options=dict(options),
            overwrite=overwrite,
            directory=os.getcwd(),
            source_is_made=source_is_made,
        )

    def __getstate__(self) -> dict[str, Any]:
        if self.fail == "pickle":
            raise RuntimeError("refused before the first row\nand here is why")
        self.pickles += 1
        record(self.log, "pickle")
        return dict(self.__dict__)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        rows = sum(batch.num_rows for batch in iterator)
        ids = {name: task().getLocalProperty(name) for name in PROPERTIES}
        record(self.log, "write", partition=task().partitionId(), retry=task().attemptNumber(), rows=rows, **ids)
        if self.fail == "write" and task().partitionId() == 1:
            raise RuntimeError("write failed")
        if self.fail == "once" and task().attemptNumber() == 0:
            raise RuntimeError("write failed once")
        return Written(task().partitionId(), rows, self.pickles)

    def commit(self, messages: Sequence[Any], batch_id: int | None = None) -> None:
        self._ended("commit", messages, batch_id)
        if self.fail == "commit":
            raise RuntimeError("commit failed after it had done its work")

    def abort(self, messages: Sequence[Any], batch_id: int | None = None) -> None:
        self._ended("abort", messages, batch_id)

    def _ended(self, what: str, messages: Sequence[Written | None], batch_id: int | None) -> None:
        said = [message and vars(message) for message in messages]
        record(self.log, what, messages=said, batch_id=batch_id, pickle=self.pickles)


class StreamRecorder(_Recorder, DataSourceStreamArrowWriter):
    """Made by `streamWriter`."""


class BatchRecorder(_Recorder, DataSourceArrowWriter):
    """Made by `writer`."""


class DefaultSource(DataSource):
    """Takes the options `log`, a file, and `fail`: pickle, write, once or commit."""

    def __init__(self, options: dict[str, str]) -> None:
        """Remember that it was made in this process."""
        super().__init__(options)
        self.is_made = True

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"is_made": False}

    @classmethod
    def name(cls) -> str:
        return "facts"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamRecorder(self.options, overwrite, self.is_made)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchRecorder(self.options, overwrite, self.is_made)
