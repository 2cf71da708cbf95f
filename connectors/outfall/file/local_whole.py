"""Whole files on a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from outfall.capabilities import TargetContext
from outfall.file.disk import explained
from outfall.file.flock import locked
from outfall.file.local import LocalFileSink
from outfall.file.local_store import LocalStore, last_publisher
from outfall.file.marker import marker_held, read_marker
from outfall.file.whole import WholeFileSink, last_epoch
from outfall.target_record import check_opening
from outfall.trace_points import reached


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
                found = read_marker(self.layout, self.patience, context.incarnation)
                self._check_marker(found, [found.record], context)
        return {}

    def _claim(self, context: TargetContext[Any]) -> None:
        # Of late tasks of a job that was taken back, or of a query that was overwritten: nobody can publish them.
        for name in self.store.staged_without_marker():
            if name.incarnation != context.incarnation:
                self.store.unstage(str(name))

    def _enter(self, context: TargetContext[Any]) -> None:
        with ExitStack() as stack:
            if self._ahead is not None:
                # Whoever publishes has looked at the marker: it is waited for, or its files would come after this.
                stack.enter_context(locked(self.layout.publishing, self.patience, holder=last_publisher))
            file, found = stack.enter_context(marker_held(self.layout, self.patience, context.incarnation))
            after = found.opened(context)
            if found == self._ahead:
                self._unpublish(context)
                after = after.rewound(last_epoch(context))
            else:
                check_opening(self.options.path, found.record, context)
            if after != found:
                file.write(after.line())
                file.sync()
            reached("file: marker entered")
        self._ahead = None
