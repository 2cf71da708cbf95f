"""What all ways of writing files share: what the target is called, and on a disk how a step takes possession of it."""

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
    "restore the newest recovery data; or, if no query runs on another copy of it, set"
    ' on_rewind="truncate": the later rows are taken back, and written again as the source brings them'
)
"""What to do about a target that is later than the recovery data."""


class Files(StorageSink, Sink[Any]):
    """What a `FileSink` holds: one way of writing files, whose options are right."""

    options: FileOptions

    def __init__(self, options: FileOptions) -> None:
        self.options = options
        self.rolling = RollBounds(options.roll_bytes, options.roll_interval)
        """When a file is closed and the next one begun."""

    @property
    def suffix(self) -> str:
        """The end of the files' names."""
        return suffix(self.options)

    def target(self) -> str:
        return self.options.path if self.options.remote else f"file:{self.options.path}"

    def place(self) -> str:
        return f"{self.options.path}/" if self.options.remote else f"file:{_identity(self.options.path)}"

    def _check_existing(self, store: FileStore, context: TargetContext[Any]) -> None:
        """Refuse a directory that holds what is not ours, unless `on_existing` says what to do with it."""
        found = FoundFiles(store, self.options, context.incarnation)
        check_existing(found, self.options.on_existing, context.step_id)

    def _may_roll_back(self, found: TargetRecord, context: TargetContext[Any]) -> bool:
        """Tell whether the target is later than the recovery data, and `on_rewind` says what to do about it.

        So is one that a BEGIN opened which the recovery data does not have, be its number as low as it may: each try to
        take the later rows back is a BEGIN, too, and they may be as many by now as there were.
        """
        unknown = found.generation >= min(context.begun, default=0) and found.token != context.begun.get(
            found.generation
        )
        return self.options.on_rewind == "truncate" and (
            is_ahead(found, context) or (found.token is not None and unknown)
        )


def _identity(path: str) -> str:
    """Name a directory by what it is, not by how it is spelled: each level by its inode, as far as there is one."""
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
    """Files on a disk that driver and executors share. Possession is taken under a lock."""

    patience = Patience()
    """How long to wait for locks."""
    innermost: str = SIDECAR
    """The directory to make before anything is written."""

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
        missing = "" if place == path else f"; {path} will be made"
        return [f"files can be made in {place}{missing}"]

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
                # Whoever created the marker may have died before its name was durable.
                store.sync([SIDECAR])
            self._enter(context)

    def _open_first(self, store: LocalStore, context: TargetContext[Any]) -> None:
        """Take possession under a lock, so that neither a second query nor an older driver that wakes late does too."""
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
        """Remove what `_claim` and the tasks have made beside the marker, as far as it is empty by now."""

    @abstractmethod
    def _claim(self, context: TargetContext[Any]) -> None:
        """Take over what carries its own record of a writer."""

    @abstractmethod
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
