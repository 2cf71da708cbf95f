"""The base of all write modes: the target's name, and how a step takes possession of a directory on a disk."""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from outfall.capabilities import CleanUpContext, TargetContext
from outfall.file.first_contact import FoundFiles, check_deletable, check_usable, delete_existing
from outfall.file.options import FileOptions
from outfall.file.storage.disk import explained
from outfall.file.storage.local import LocalStore
from outfall.file.storage.locks import Patience
from outfall.file.storage.store import FileMarker, FileStore
from outfall.filesystems import make_durably
from outfall.formats import suffix
from outfall.sinks import Sink
from outfall.storage.first_contact import check_existing
from outfall.storage.names import SIDECAR
from outfall.storage.rolling import RollBounds
from outfall.storage.sink import StorageSink
from outfall.target_record import TargetRecord, is_ahead
from outfall.trace_points import reached

AHEAD = (
    "restore the newest recovery log; or, if no query runs on another copy of it, set"
    ' on_rewind="truncate" to roll back the later rows, which are written again when the source replays them'
)
"""The remedy for a target that is ahead of the recovery log."""


class Files(StorageSink, Sink[Any]):
    """A write mode of `FileSink`, with validated options."""

    options: FileOptions

    def __init__(self, options: FileOptions) -> None:
        self.options = options
        self.rolling = RollBounds(options.roll_bytes, options.roll_interval)
        """The bounds at which a file is closed and the next one begins."""

    @property
    def suffix(self) -> str:
        """The suffix of the file names."""
        return suffix(self.options)

    def target(self) -> str:
        return self.options.path if self.options.remote else f"file:{self.options.path}"

    def place(self) -> str:
        return f"{self.options.path}/" if self.options.remote else f"file:{_identity(self.options.path)}"

    def _check_existing(self, store: FileStore, context: TargetContext[Any]) -> None:
        """Reject a directory with existing data, unless `on_existing` allows it."""
        found = FoundFiles(store, self.options, context.incarnation)
        check_existing(found, self.options.on_existing, context.step_id)

    def _may_roll_back(self, found: TargetRecord, context: TargetContext[Any]) -> bool:
        """Return whether the target is ahead of the recovery log and `on_rewind` allows rolling it back.

        A target that was opened by a BEGIN missing from the log counts as ahead, even if its number is low. Each
        attempt to roll back is a BEGIN too, so the number may have caught up.
        """
        unknown = found.generation >= min(context.begun, default=0) and found.token != context.begun.get(
            found.generation
        )
        return self.options.on_rewind == "truncate" and (
            is_ahead(found, context) or (found.token is not None and unknown)
        )


def _identity(path: str) -> str:
    """Identify a directory independently of its spelling: each level by its inode if it exists, else by its name."""
    real = PurePath(os.path.realpath(path))
    levels = []
    for level in (*reversed(real.parents), real):
        try:
            status = os.stat(level)
        except OSError:
            levels.append(level.name)
        else:
            levels.append(f"{status.st_dev}:{status.st_ino}")
    return "".join(f"{level}/" for level in levels)


class LocalFiles(Files):
    """Files on a disk shared by driver and executors. A step takes possession under a lock."""

    patience = Patience()
    """The timeout for locks."""
    innermost: str = SIDECAR
    """The directory to create before anything is written."""

    @property
    def store(self) -> LocalStore:
        """The directory."""
        return LocalStore(self.options.path, self.patience)

    def check_connection(self) -> Sequence[str]:
        path = place = self.options.path
        check_usable(path)
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        with explained("writing to", place), tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        missing = "" if place == path else f"; {path} will be created"
        return [f"files can be created in {place}{missing}"]

    def open_target(self, context: TargetContext[Any]) -> None:
        store = self.store
        with explained("opening", store.root):
            first = context.completed is None
            innermost = store.at(self.innermost)
            if first or not os.path.isdir(innermost):
                make_durably(innermost)
            if not store.check_ours(context.incarnation, context.completed):
                self._open_first(store, context)
            elif first:
                # The driver that created the marker may have died before its name was durable.
                store.sync([SIDECAR])
            self._enter(context)

    def _open_first(self, store: LocalStore, context: TargetContext[Any]) -> None:
        """Take possession under a lock, which excludes a second query and a stale driver."""
        reached("file: opening")
        with store.opening():
            if store.check_ours(context.incarnation, context.completed):
                return
            self._check_existing(store, context)
            if self.options.on_existing == "overwrite":
                delete_existing(store, self.options, context)
            self._claim(context)
            store.create_marker(FileMarker.of(context))

    def withdraw(self, context: CleanUpContext) -> None:
        store = self.store
        with explained("leaving", store.root), store.opening():
            self._leave(context)
            store.remove_marker(context.incarnation)

    def _leave(self, context: CleanUpContext) -> None:
        """Remove empty files that `_claim` and the tasks created in addition to the marker."""

    @abstractmethod
    def _claim(self, context: TargetContext[Any]) -> None:
        """Take over files that have their own record of a writer."""

    @abstractmethod
    def _enter(self, context: TargetContext[Any]) -> None:
        """Record durably that this BEGIN opened the target last, unless another driver did so in the meantime.

        With `on_rewind="truncate"`, first roll back the later data that `check_target` found. Only data in the same
        state is rolled back: BEGIN was appended directly after the entries that were read before the check, so any
        difference is the work of another driver.

        Raises:
            FencedError: another driver opened the target in the meantime.
        """

    def _check_place(self, context: TargetContext[Any]) -> bool:
        """Return whether this step has opened the directory; reject one that contradicts the recovery log."""
        store = self.store
        check_usable(store.root)
        ours = store.check_ours(context.incarnation, context.completed)
        if not ours:
            self._check_existing(store, context)
        return ours

    def _check_existing(self, store: FileStore, context: TargetContext[Any]) -> None:
        if self.options.on_existing == "overwrite":
            check_deletable(self.store, self.options, context.step_id)
        super()._check_existing(store, context)
