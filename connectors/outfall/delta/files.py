"""Where a table lies: how deltalake is told, how tasks reach its files, and how a disk keeps its log."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pydantic import SecretStr

from outfall.errors import TargetError, TransientError
from outfall.filesystems import make_durably, sync_directory
from outfall.location import LOCAL, Location
from outfall.options import resolve_secret
from outfall.redaction import Redaction
from outfall.tables.area import DataArea

LOG = "_delta_log"

_PIECE = 1 << 20
"""Bytes of a file that deltalake is given at a time."""

_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳|\n\s+0: .*", re.DOTALL)
"""Colours and stack traces in deltalake's errors."""
_LONGEST = 500


@dataclass(frozen=True)
class TablePlace:
    """A table's directory. Pickles; holds secrets as they were given, and resolves them where they are used."""

    location: Location
    storage_options: Mapping[str, SecretStr] = field(repr=False)

    @property
    def url(self) -> str:
        """The table's name, for people and for recovery data."""
        return self.location.url()

    @property
    def uri(self) -> str:
        """The table's name for deltalake, which reads it as a URL."""
        return Path(self.location.path).as_uri() if self.is_disk else self.url

    @property
    def is_disk(self) -> bool:
        """Whether files are on a filesystem of this host."""
        return self.location.scheme == LOCAL

    @property
    def area(self) -> DataArea:
        """Where data files lie: in the table's directory."""
        return DataArea(self.url, self.open)

    def open(self) -> tuple[pafs.FileSystem, str]:
        """Return the filesystem, and the table's directory in it."""
        if self.is_disk:
            return pafs.LocalFileSystem(), self.location.path.rstrip("/")
        with self.explained("opening"):
            return _store(self.uri, tuple(self.options().items())), ""

    def options(self) -> dict[str, str]:
        """Return the storage options as deltalake takes them.

        Raises:
            ConfigurationError: a secret's variable or file does not exist here.
        """
        return {name: resolve_secret(value) for name, value in self.storage_options.items()}

    def load(self, version: int | None = None) -> DeltaTable | None:
        """Load the table, by default its newest version; `None` where there is none.

        Raises:
            TransientError: the store cannot be asked.
            TargetError: what lies there is no table that can be read.
        """
        with self.explained("loading"):
            try:
                return DeltaTable(self.uri, version=version, storage_options=self.options())
            except TableNotFoundError:
                return None

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Turn deltalake's errors into ours."""
        try:
            yield
        except OSError as error:
            raise TransientError(
                f"{doing} {self.url} failed",
                why=self.told(error),
                do="see that the store is reachable from here, at the address and with the credentials that"
                " storage_options or the environment give",
            ) from None
        except DeltaError as error:
            raise TargetError(
                f"{doing} {self.url} failed", why=self.told(error), do="look at the table's log (_delta_log)"
            ) from None

    def told(self, error: BaseException) -> str:
        """Return what an error of deltalake says: in one line, without secrets."""
        text = " ".join(_NOISE.sub(" ", str(error)).split())[:_LONGEST]
        return f"{type(error).__name__}: {Redaction(self.options().values()).hide(text)}"

    # --- the log

    def entry(self, version: int) -> bytes | None:
        """Return the log entry that made a version; `None` where it was cleaned up.

        Raises:
            TransientError: the store cannot be asked.
        """
        filesystem, root = self.open()
        with self.explained("reading the log of"):
            try:
                with filesystem.open_input_stream(f"{root}/{LOG}/{version:020}.json") as stream:
                    data: bytes = stream.read()
                    return data
            except FileNotFoundError:
                return None

    def written(self, paths: Collection[str]) -> float:
        """Return when the oldest of some files was written, in milliseconds since 1970; 0 where one does not exist.

        Raises:
            TransientError: the store cannot be asked.
        """
        filesystem, root = self.open()
        with self.explained("looking at files of"):
            found = filesystem.get_file_info([f"{root}/{path}" for path in paths])
        return min(((info.mtime_ns or 0) / 1e6 for info in found), default=0.0)

    def settle(self, version: int) -> None:
        """Make a version durable, on a disk: its log entry, the checkpoint that was made of it, and their names.

        Whatever stands on the version is then there after a loss of power. deltalake syncs nothing.

        Raises:
            TargetError: the disk failed. A second try says nothing: what was to be written may be lost (fsync(2)).
        """
        if not self.is_disk:
            return
        log = Path(self.location.path, LOG)
        try:
            for path in [*log.glob(f"{version:020}.*"), log / "_last_checkpoint"]:
                with suppress(FileNotFoundError):  # an entry may be cleaned up once there is a checkpoint
                    _sync(path)
            sync_directory(str(log))
        except OSError as error:
            raise TargetError(
                f"version {version} of {self.url} may not be durable",
                why=f"{type(error).__name__}: {error}",
                do="look at that disk, and start the query again",
            ) from error

    def make_durably(self) -> None:
        """Make the directories of a table that is to be created, on a disk."""
        if self.is_disk:
            make_durably(str(Path(self.location.path, LOG)))


@lru_cache(maxsize=8)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    """Open a store, once in a process: each has connections of its own."""
    return pafs.PyFileSystem(_Store(uri, dict(options)))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Store(DeltaStorageHandler):
    """deltalake's own object store as a filesystem of pyarrow, so that tasks need no second client or credentials."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        return pa.PythonFile(_InPieces(super().open_output_stream(path, metadata)), mode="w")


class _InPieces:
    """Gives deltalake's stream bytes.

    pyarrow hands Python's files the very buffer that it was given, which deltalake does not take; of what waits in a
    buffered stream it makes bytes.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = pa.BufferedOutputStream(stream, _PIECE)
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for start in range(0, len(view), _PIECE - 1):
            self._stream.write(view[start : start + _PIECE - 1])
        return len(view)

    def flush(self) -> None:
        """Nothing: what is written is uploaded when the file is closed."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()
