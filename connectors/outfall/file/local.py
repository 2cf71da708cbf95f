"""What growing and whole files on a disk share: the directory, and who has taken possession of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from outfall.capabilities import SweepContext, TargetContext
from outfall.file.disk import explained, make_directories, sync_directory
from outfall.file.first_contact import check_existing, check_usable, delete_existing
from outfall.file.flock import Patience, held
from outfall.file.layout import Layout
from outfall.file.marker import check_marker, create_marker, remove_marker
from outfall.file.sink import FileSink
from outfall.trace_points import reached


class LocalFileSink(FileSink):
    """`FileSink` on a disk that driver and executors share."""

    patience = Patience()
    """How long to wait for locks."""

    @property
    def layout(self) -> Layout:
        """The names below the directory."""
        return Layout(self.options.path)

    @property
    def innermost(self) -> str:
        """The directory to make before anything is written."""
        return self.layout.sidecar

    def check_connection(self) -> Sequence[str]:
        check_usable(self.layout)
        place = self.options.path
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        with explained("writing to", place), tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        missing = "" if place == self.options.path else f"; {self.options.path} will be made"
        return [f"files can be made in {place}{missing}"]

    def open_target(self, context: TargetContext[Any]) -> None:
        with explained("opening", self.options.path):
            first = context.completed is None
            if first or not os.path.isdir(self.innermost):
                make_directories(self.innermost)
            if not check_marker(self.layout, context.incarnation, context.completed):
                self._open_first(context)
            elif first:
                # Whoever created the marker may have died before its name was durable.
                sync_directory(self.layout.sidecar)
            self._enter(context)

    def _open_first(self, context: TargetContext[Any]) -> None:
        """Take possession under a lock, so that neither a second query nor an older driver that wakes late does too."""
        layout = self.layout
        reached("file: opening")
        with held(layout.opening, self.patience):
            if check_marker(layout, context.incarnation, context.completed):
                return
            check_existing(layout, self.options, context.step_id, context.incarnation)
            if self.options.on_existing == "overwrite":
                delete_existing(layout, self.options, context, self.patience)
            self._claim(context)
            create_marker(layout, context)

    def withdraw(self, context: SweepContext) -> None:
        with explained("leaving", self.options.path), held(self.layout.opening, self.patience):
            self._leave(context)
            remove_marker(self.layout, context.incarnation)

    def _leave(self, context: SweepContext) -> None:
        """Remove what `_claim` and the tasks have made beside the marker, as far as it is empty by now."""

    def _claim(self, context: TargetContext[Any]) -> None:
        """Take over what carries its own record of a writer."""

    def _enter(self, context: TargetContext[Any]) -> None:
        """Write down, durably, that this BEGIN opened the target last, unless another driver did so meanwhile.

        First take back what `check_target` found to be later than the recovery data, under `on_rewind="truncate"`. Only
        what was seen then: since BEGIN was appended right after the entries that were read before, whatever looks
        different now is another driver's.

        Raises:
            FencedError: another driver opened the target meanwhile.
        """

    def _check_place(self, context: TargetContext[Any]) -> bool:
        """Return whether the directory is ours already; refuse one that is not what the recovery data says."""
        check_usable(self.layout)
        ours = check_marker(self.layout, context.incarnation, context.completed)
        if not ours:
            check_existing(self.layout, self.options, context.step_id, context.incarnation)
        return ours
