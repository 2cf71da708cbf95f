"""Whole files: hidden until the commit of their epoch."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    CommitterInitContext,
    SupportsCommitter,
    SweepContext,
    TargetContext,
)
from outfall.file.commit import FileCommitter
from outfall.file.disk import explained
from outfall.file.marker import Marker
from outfall.file.names import FileName
from outfall.file.rolling import Rolling
from outfall.file.sink import AHEAD, FileSink, may_take_back
from outfall.file.store import FileStore, StagedFile
from outfall.file.whole_writer import WholeFileWriter
from outfall.formats import check_schema
from outfall.formats.partition_paths import PartitionPaths
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.target_record import TargetRecord, check_record
from outfall.trace_points import reached

log = logging.getLogger(__name__)


class WholeFileSink(FileSink, DynamicSink[Any], SupportsCommitter[StagedFile]):
    """`FileSink(path)`: see there. What lies where is its store's business."""

    _ahead: Marker | None = None
    """The marker that `check_target` saw to be ahead."""

    @property
    @abstractmethod
    def store(self) -> FileStore:
        """Where the files lie, opened anew."""

    @cached_property
    def rolling(self) -> Rolling:
        """When a file is closed and the next one begun."""
        return Rolling.of(self.options)

    @property
    def buckets(self) -> PartitionPaths | None:
        """Which directory a row goes to; `None` when all go to the root."""
        return PartitionPaths.of(self.options)

    def kind(self) -> str:
        return "file/whole"

    def check_schema(self, schema: pa.Schema) -> None:
        buckets = self.buckets
        check_schema(self.options, schema if buckets is None else buckets.stored_schema(schema))

    def build(self, step_id: str, worker_index: int, worker_count: int) -> WholeFileWriter:
        context, store = self._writer(), self.store
        with explained("opening", store.root):
            store.check_shared(context.incarnation)
        return WholeFileWriter(store, self.options, context, self.suffix, rolling=self.rolling, buckets=self.buckets)

    def create_committer(self, context: CommitterInitContext) -> FileCommitter:
        return FileCommitter(self.store, context)

    def committable_serializer(self) -> ModelSerializer[StagedFile]:
        return ModelSerializer(StagedFile)

    def sweep(self, context: SweepContext) -> int:
        store = self.store
        with explained("sweeping", store.staging):
            old = _older(store, context)
            for name in old:
                store.unstage(str(name))
                reached("file: swept")
        return len(old)

    def find_leftovers(self, context: SweepContext) -> Sequence[str]:
        store = self.store
        with explained("looking into", store.staging):
            return [f"{store.staging}/{name}" for name in sorted(map(str, _older(store, context)))]

    def _check_marker(self, found: Marker, records: Sequence[TargetRecord], context: TargetContext[Any]) -> None:
        """Refuse a marker that is not what the recovery data says; remember one that is ahead, if that may be.

        What the recovery data has begun to publish is finished before the target is checked.
        """
        later = any(may_take_back(self.options, record, context) for record in records)
        self._ahead = found if later else None
        if not later:
            for record in records:
                check_record(self.options.path, record, context, ahead=AHEAD)

    def _unpublish(self, context: TargetContext[Any]) -> None:
        last = last_epoch(context)
        store = self.store
        # Also what a later attempt staged and may yet publish, or would stand in the way of ours by its name.
        for staged in store.staged_names(context.incarnation):
            store.unstage(str(staged))
        paths = [path for path, name in store.published(context.incarnation) if name.epoch > last]
        store.unpublish(paths)
        log.warning(
            "step %r: on_rewind=truncate deleted %d published files of epochs after %d in %s",
            context.step_id, len(paths), last, self.options.path,
        )  # fmt: skip


def _older(store: FileStore, context: SweepContext) -> list[FileName]:
    """Our staged files of older generations."""
    return [name for name in store.staged_names(context.incarnation) if name.generation < context.generation]


def last_epoch(context: TargetContext[Any]) -> int:
    """Return the last completed epoch, -1 before the first."""
    return -1 if context.completed is None else context.completed
