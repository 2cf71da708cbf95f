"""Sinks of tables whose epochs another process records, so that the suite can lose files: it has one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outfall.capabilities import CommittableMessage
from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from outfall.tables.data_file import EpochFiles, TaskFiles
from outfall.tables.sink import TableSink


class RecordedElsewhere(TableSink):
    """Has each file looked at before it is committed, as if its epoch were somebody else's."""

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[TaskFiles]]
    ) -> Sequence[CommittableMessage[EpochFiles]]:
        gathered = super().add_pre_commit_topology(results)
        return [replace(each, value=each.value.model_copy(update={"recorded_by": "another"})) for each in gathered]


class DeltaRecordedElsewhere(RecordedElsewhere, DeltaSink):
    pass


class IcebergRecordedElsewhere(RecordedElsewhere, IcebergSink):
    pass
