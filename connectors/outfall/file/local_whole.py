"""Whole files on a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import TargetContext
from outfall.file.disk import explained
from outfall.file.local import LocalFileSink
from outfall.file.local_store import LocalStore
from outfall.file.locked import held
from outfall.file.marker import Marker, read_marker
from outfall.file.whole import WholeFileSink, last_epoch


class LocalWholeFileSink(LocalFileSink, WholeFileSink):
    """`FileSink("/path")`: see there."""

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.layout, self.patience)

    @property
    def innermost(self) -> str:
        return self.layout.staging

    def requires(self) -> Sequence[str]:
        return ("a path that all hosts share, on one filesystem, where rename is atomic",
                "readers that skip names starting with _ or . as Spark's do")  # fmt: skip

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        with explained("checking", self.options.path):
            if self._check_place(context):
                self._check_ahead(read_marker(self.layout, context.incarnation), context)
        return {}

    def _claim(self, context: TargetContext[Any]) -> None:
        # Of late tasks of a job that was taken back, or of a query that was overwritten: nobody can publish them.
        for name in self.store.staged_without_marker():
            if name.incarnation != context.incarnation:
                self.store.unstage(str(name))

    def _take_back(self, context: TargetContext[Any]) -> None:
        if self._ahead is None:
            return
        with held(self.layout.marker(context.incarnation), self.patience, create=False) as file:
            if Marker.parse(file.read()) == self._ahead:
                self._unpublish(context)
                file.write(self._ahead.rewound(context.generation, last_epoch(context)).line())
                file.sync()
        self._ahead = None
