"""Whole files: hidden until the commit of their epoch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import (
    CommitterInitContext,
    SupportsCommitter,
    SupportsSweep,
    SweepContext,
    TargetContext,
)
from outfall.file.commit import FileCommitter
from outfall.file.disk import explained, sync_directory
from outfall.file.locked import held
from outfall.file.marker import Marker, check_shared, read_marker
from outfall.file.names import FileName
from outfall.file.sink import FileSink, ahead
from outfall.file.whole_part import StagedFile, WholeFile
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.steps import reached

log = logging.getLogger(__name__)


class WholeFileSink(FileSink, DynamicSink[Any], SupportsCommitter[StagedFile], SupportsSweep):
    """`FileSink(path)`: see there."""

    _ahead: Marker | None = None
    """The marker that `check_target` saw to be ahead."""

    @property
    def innermost(self) -> str:
        return self.layout.staging

    def kind(self) -> str:
        return "file/whole"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> WholeFile:
        context = self._writer()
        check_shared(self.layout, context.incarnation)
        name = str(FileName.of(context, self.suffix))
        return WholeFile(self.layout, name, self.options, context)

    def create_committer(self, context: CommitterInitContext) -> FileCommitter:
        return FileCommitter(self.layout, context, self.patience)

    def committable_serializer(self) -> ModelSerializer[StagedFile]:
        return ModelSerializer(StagedFile)

    def requires(self) -> Sequence[str]:
        return ("a path that all hosts share, on one filesystem, where rename is atomic",
                "readers that skip names starting with _ or . as Spark's do")  # fmt: skip

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        with explained("checking", self.options.path):
            if self._check_place(context):
                self._ahead = self._find_ahead(context)
        return {}

    def sweep(self, context: SweepContext) -> int:
        with explained("sweeping", self.layout.staging):
            names = [name for name in _names(self.layout.staging, context.incarnation)
                     if name.generation < context.generation]  # fmt: skip
            for name in names:
                os.unlink(self.layout.staged(str(name)))
                reached("file: swept")
        return len(names)

    def _find_ahead(self, context: TargetContext[Any]) -> Marker | None:
        """The marker, if it knows of a publication that the recovery data does not know to be completed.

        What the recovery data has begun to publish is finished before the target is checked.
        """
        found = read_marker(self.layout, context.incarnation)
        if found is None or not (found.generation > context.last_generation or found.epoch > _last(context)):
            return None
        if self.options.on_rewind == "error":
            raise ahead(self.options.path, f"generation {found.generation} has published epoch {found.epoch}", context)
        return found

    def _take_back(self, context: TargetContext[Any]) -> None:
        if self._ahead is None:
            return
        with held(self.layout.marker(context.incarnation), self.patience, create=False) as file:
            if Marker.parse(file.read()) == self._ahead:
                self._unpublish(context)
                file.write(self._ahead.rewound(context.generation, _last(context)).line())
                file.sync()
        self._ahead = None

    def _unpublish(self, context: TargetContext[Any]) -> None:
        names = [name for name in _names(self.layout.path, context.incarnation) if name.epoch > _last(context)]
        for name in names:
            os.unlink(self.layout.data(str(name)))
            reached("file: publication taken back")
        sync_directory(self.layout.path)
        log.warning(
            "step %r: on_rewind=truncate deleted %d published files of epochs after %d in %s",
            context.step_id, len(names), _last(context), self.options.path,
        )  # fmt: skip


def _last(context: TargetContext[Any]) -> int:
    return -1 if context.completed is None else context.completed


def _names(directory: str, incarnation: str) -> list[FileName]:
    """Our files in a directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [found for name in names if (found := FileName.parse(name)) and found.incarnation == incarnation]
