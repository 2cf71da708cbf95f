"""The base of all write modes: the target's name, and how a step takes possession of a directory on a disk."""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from outfall.capabilities import TargetContext
from outfall.file.first_contact import check_usable
from outfall.file.options import FileOptions
from outfall.file.possession import DirectoryPort
from outfall.file.stores.disk import translated_errors
from outfall.file.stores.local import LocalStore
from outfall.file.stores.locks import Patience
from outfall.filesystems import make_durably
from outfall.formats import suffix
from outfall.possession.possession import find_moved
from outfall.sinks import Sink
from outfall.storage.names import SIDECAR
from outfall.storage.rolling import RollBounds
from outfall.storage.sink import StorageSink
from outfall.target_record import TargetRecord


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

    @abstractmethod
    def port(self, incarnation: str) -> DirectoryPort[Any, Any]:
        """Return the directory as the target of one step."""

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        with translated_errors("checking", self.options.path):
            return find_moved(self.port(context.incarnation), context)

    def place(self) -> str:
        return f"{self.options.path}/" if self.options.remote else f"file:{_identity(self.options.path)}"


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
        with translated_errors("writing to", place), tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        missing = "" if place == path else f"; {path} will be created"
        return [f"files can be created in {place}{missing}"]

    def make_directory(self, context: TargetContext[Any]) -> None:
        """Create the directory durably, in the first epoch or if it is missing."""
        innermost = self.store.at(self.innermost)
        if context.completed is None or not os.path.isdir(innermost):
            make_durably(innermost)
