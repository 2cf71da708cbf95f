"""The location of a table: in deltalake, as a filesystem for tasks, and the durability of its log on disks."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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

from outfall.errors import OutfallError, TargetError
from outfall.filesystems import make_durably, sync_directory
from outfall.location import LOCAL, Location
from outfall.options import known_values, resolve_secret
from outfall.redaction import Redaction
from outfall.store_errors import Operation, explained
from outfall.tables.allowed import pattern_of
from outfall.tables.area import DataArea

LOG = "_delta_log"

_PIECE = 1 << 20
"""Bytes of a file per write to deltalake."""

_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳|\n\s+0: .*", re.DOTALL)
"""Colors and stack traces in deltalake's errors."""
_LONGEST = 500


@dataclass(frozen=True)
class TableLocation:
    """A table's directory. Picklable; stores secrets as they were given, and resolves them where they are used."""

    location: Location
    storage_options: Mapping[str, SecretStr] = field(repr=False)

    @property
    def url(self) -> str:
        """The table's name for users and recovery data."""
        return self.location.url()

    @property
    def uri(self) -> str:
        """The table's name for deltalake, which parses it as a URL."""
        return Path(self.location.path).as_uri() if self.is_disk else self.url

    @property
    def is_disk(self) -> bool:
        """Whether files are on a filesystem of this host."""
        return self.location.scheme == LOCAL

    @property
    def area(self) -> DataArea:
        """The location of data files: the table's directory."""
        return DataArea(self.url, self.open)

    def open(self) -> tuple[pafs.FileSystem, str]:
        """Return the filesystem, and the table's directory in it."""
        if self.is_disk:
            return pafs.LocalFileSystem(), self.location.path.rstrip("/")
        with self.translated_errors("opening"):
            return _store(self.uri, tuple(self.options().items())), ""

    def options(self) -> dict[str, str]:
        """Return deltalake's storage options; raise `ConfigurationError` if a secret's variable or file is not here."""
        return {name: resolve_secret(value) for name, value in self.storage_options.items()}

    def load(self, version: int | None = None) -> DeltaTable | None:
        """Load the table, by default its newest version; `None` if it does not exist.

        Raises `TransientError` if the store cannot be reached, and `TargetError` if the location has no readable table.
        """
        with self.translated_errors("loading"):
            try:
                return DeltaTable(self.uri, version=version, storage_options=self.options())
            except TableNotFoundError:
                return None

    @contextmanager
    def translated_errors(self, doing: str) -> Iterator[None]:
        """Convert deltalake's errors to Outfall errors."""
        try:
            yield
        except OSError as error:
            raise self.explained(error, doing) from None
        except DeltaError as error:
            raise TargetError(
                f"{doing} {self.url} failed", why=self.summary(error), do="check the table's log (_delta_log)"
            ) from None

    def explained(self, error: Exception, doing: str) -> OutfallError:
        """Convert an error of the store: a `TargetError` if the store would refuse the request again."""
        return explained(
            error,
            f"{doing} {self.url} failed",
            url=self.url,
            operation=Operation.READ,
            why=self.summary(error),
            do="check that the store is reachable from here, with the address and the credentials in"
            " storage_options or the environment",
        )

    def summary(self, error: BaseException) -> str:
        """Return the text of a deltalake error: in one line, without secrets."""
        text = " ".join(_NOISE.sub(" ", str(error)).split())[:_LONGEST]
        return f"{type(error).__name__}: {Redaction(known_values(*self.storage_options.values())).hide(text)}"

    def directories(self, entry: Sequence[str]) -> Iterator[str]:
        """Yield the directories below this one that match an entry of `allowed_tables`; links are left out.

        Raises `TransientError` if the store cannot be reached.
        """
        filesystem, root = self.open()
        found = [""]
        for part in entry:
            wanted, above, found = pattern_of(part), found, []
            for place in above:
                with self.translated_errors("listing"):
                    listed = filesystem.get_file_info(pafs.FileSelector(f"{root}/{place}", allow_not_found=True))
                found += [
                    f"{place}{info.base_name}/"
                    for info in listed
                    if info.type == pafs.FileType.Directory
                    and wanted.fullmatch(info.base_name)
                    and not (self.is_disk and os.path.islink(info.path))
                ]
        yield from (name.rstrip("/") for name in found)

    def has_log(self, path: str) -> bool:
        """Return whether a directory below this one is a table, also one that cannot be read.

        Raises `TransientError` if the store cannot be reached.
        """
        filesystem, root = self.open()
        with self.translated_errors("listing"):
            return bool(filesystem.get_file_info(pafs.FileSelector(f"{root}/{path}{LOG}", allow_not_found=True)))

    def table_within(self) -> str | None:
        """Return a table below this directory, which is not a table; `None` if there is none.

        Raises `TransientError` if the store cannot be reached.
        """
        filesystem, root = self.open()
        with self.translated_errors("listing"):
            found = filesystem.get_file_info(pafs.FileSelector(root or "/", allow_not_found=True, recursive=True))
        inner = (info.path.removeprefix(root).strip("/").rpartition(f"/{LOG}/")[0] for info in found)
        return next((path for path in inner if path), None)

    # --- the log

    def entry(self, version: int) -> bytes | None:
        """Return a version's log entry; `None` if cleaned up. Raises `TransientError` if the store is unreachable."""
        filesystem, root = self.open()
        with self.translated_errors("reading the log of"):
            try:
                with filesystem.open_input_stream(f"{root}/{LOG}/{version:020}.json") as stream:
                    data: bytes = stream.read()
                    return data
            except FileNotFoundError:
                return None

    def written(self, paths: Collection[str]) -> float:
        """Return when the oldest of some files was written, in milliseconds since 1970; 0 if one does not exist.

        Raises `TransientError` if the store cannot be reached.
        """
        filesystem, root = self.open()
        with self.translated_errors("checking files of"):
            found = filesystem.get_file_info([f"{root}/{path}" for path in paths])
        return min(((info.mtime_ns or 0) / 1e6 for info in found), default=0.0)

    def make_durable(self, version: int) -> None:
        """Make a version durable, on a disk: its log entry, its checkpoint, and their names.

        After that, everything that depends on the version survives a power loss. deltalake syncs nothing. Raises
        `TargetError` if the disk failed: a second attempt proves nothing, because the data may be lost (fsync(2)).
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
                do="check that disk, and start the query again",
            ) from error

    def make_durably(self) -> None:
        """Create the directories of a new table, on a disk."""
        if self.is_disk:
            make_durably(str(Path(self.location.path, LOG)))


def check_no_links(base: str | None, parts: Sequence[str]) -> None:
    """Reject a directory below `base`, on a disk, that a link leads to: it may be anywhere.

    Raises `TargetError`.
    """
    path = base
    for part in parts if path is not None else ():
        path = f"{path}/{part}"
        if os.path.islink(path):
            raise TargetError(
                f"{path} is a link",
                why="rows name tables below a directory, and a link may lead out of it",
                do="give the table a directory, or name the one that the link leads to in path",
            )


@lru_cache(maxsize=8)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    """Open a store, once per process: each has its own connections."""
    return pafs.PyFileSystem(_Store(uri, dict(options)))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Store(DeltaStorageHandler):
    """deltalake's own object store as a pyarrow filesystem, so that tasks need no second client or credentials."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        return pa.PythonFile(_InPieces(super().open_output_stream(path, metadata)), mode="w")


class _InPieces:
    """Passes bytes to deltalake's stream.

    pyarrow passes its own buffers to Python files, which deltalake does not accept. Buffered data of a stream is
    converted to bytes.
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
        """No operation: the data is uploaded when the file is closed."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()
