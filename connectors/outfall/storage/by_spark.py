"""Files that Spark's own writer encodes, and that the driver takes over.

Spark writes into a directory of the attempt. When its job has ended, the driver moves the files out of it. From there
on they are files like those of a task. What a late task of Spark writes remains in the attempt's directory, which is
never published. A later driver removes it by its generation.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import struct
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

from outfall.capabilities import WriterInitContext
from outfall.errors import ConfigurationError, OutfallError, UnsharedTargetError
from outfall.sinks import StatelessSinkPartition
from outfall.storage.names import BY_SPARK, AttemptName, is_hidden

_log = logging.getLogger(__name__)

_THREADS = 16
"""Files that the driver reads and syncs at the same time: it waits for the disk."""

COUNTED = ("orc", "parquet")
"""Formats whose files record their number of rows."""

C = TypeVar("C")


class SparkStore(Protocol):
    """Where Spark writes. Paths are relative to the root."""

    @property
    def root(self) -> str:
        """The directory, for messages."""

    def for_spark(self, path: str) -> str:
        """Return the URL of a path for Spark."""

    def tree(self, directory: str) -> list[tuple[str, int]]:
        """Return each file in a directory and below, relative to it, with its length, without hidden files."""

    def opened(self, path: str) -> AbstractContextManager[Any]:
        """Open a file for reading."""

    def adopt(self, path: str, to: str, size: int) -> None:
        """Move a file of this length durably. Its new name is not durable yet. May be called in threads."""

    def remove_tree(self, directory: str) -> bool:
        """Remove a directory and all that is in it; return whether it existed. Links are not followed."""


@dataclass(frozen=True)
class SparkFile:
    """A file that Spark wrote."""

    path: str
    """Relative to the attempt's directory."""
    size: int
    """Bytes."""
    rows: int | None
    """`None` if the format does not record it."""
    footer: Any = None
    """Of a Parquet file."""


class SparkWriter(StatelessSinkPartition[Any], Generic[C]):
    """Lets Spark write the rows of an epoch, and takes the files over. Used once, on the driver."""

    def __init__(self, store: SparkStore, context: WriterInitContext, *, into: str, format: str, share: str) -> None:
        """Move files `into` a directory. `share` says how to give all hosts the same one, for errors."""
        self._context = context
        self._into = into
        self._directory = f"{into}/{AttemptName.of(context, 0, BY_SPARK)}"
        self._files: dict[str, SparkFile] = {}
        """The files that have rows, by the names under which they are moved."""
        self._where = store
        self._format = format
        self._share = share
        self._handed_over = False

    def write_batch(self, values: list[Any]) -> None:
        """Raise `ConfigurationError`: the rows of this writer do not come to Python."""
        raise ConfigurationError(
            'writer="spark" takes no rows from Python', do="use outfall.spark.write_stream or write"
        )

    def prepare_commit(self) -> list[C]:
        """Make the names of the files durable, and return the files as committables."""
        with self._translated_errors("syncing"):
            committables = self._hand_over()
        self._handed_over = True
        return committables

    def close(self) -> None:
        """Remove the attempt's directory, and the files of a failed attempt. The next clean-up removes what remains."""
        try:
            self._where.remove_tree(self._directory)
            if not self._handed_over:
                self._discard(list(self._files))
        except (OSError, OutfallError) as error:
            _log.info("files of Spark's writer remain in %s/%s: %s", self._where.root, self._directory, error)

    # --- of a target

    @abstractmethod
    def _name(self, index: int, path: str) -> str:
        """Return the name under which a file is moved."""

    @abstractmethod
    def _hand_over(self) -> list[C]:
        """Make the names of the files durable, and return the files as committables."""

    @abstractmethod
    def _discard(self, names: Sequence[str]) -> None:
        """Remove files of these names, as far as they exist."""

    @abstractmethod
    def _translated_errors(self, doing: str) -> AbstractContextManager[None]:
        """Translate an `OSError`."""

    # --- the files

    @property
    def _url(self) -> str:
        """The attempt's directory, for Spark."""
        return self._where.for_spark(self._directory)

    def _take_over(self, rows: int) -> None:
        """Move the files that have rows, once they have as many as Spark's tasks wrote."""
        with self._translated_errors("taking over"), ThreadPoolExecutor(_THREADS) as pool:
            files = list(pool.map(lambda found: self._read(*found), self._where.tree(self._directory)))
            self._check(rows, files)
            kept = [file for file in files if file.size and file.rows != 0 and rows]
            self._files = {self._name(index, file.path): file for index, file in enumerate(kept)}
            moves = [pool.submit(self._move, *each) for each in self._files.items()]
            for move in moves:
                move.result()
        self._context.metrics.add("bytes", sum(file.size for file in kept))

    def _read(self, path: str, size: int) -> SparkFile:
        if self._format not in COUNTED or not size:
            return SparkFile(path, size, None if size else 0)
        with self._where.opened(f"{self._directory}/{path}") as file:
            try:
                if self._format == "orc":
                    return SparkFile(path, size, int(pyarrow.orc.ORCFile(file).nrows))
                footer = pq.read_metadata(file)
            except pa.ArrowException as error:
                raise OSError(errno.EIO, f"{path}, which Spark wrote, cannot be read: {error}") from error
        return SparkFile(path, size, footer.num_rows, footer)

    def _move(self, name: str, file: SparkFile) -> None:
        self._where.adopt(f"{self._directory}/{file.path}", f"{self._into}/{name}", file.size)

    def _check(self, rows: int, files: Sequence[SparkFile]) -> None:
        """Compare the files with the number of rows that Spark's tasks wrote."""
        if self._format in COUNTED:
            found = sum(file.rows or 0 for file in files)
            if found != rows:
                raise self._missing(f"its files have {found} rows, but its tasks wrote {rows}")
        elif rows and not any(file.size for file in files):
            raise self._missing(f"its tasks wrote {rows} rows, but there is no file")

    def _missing(self, why: str) -> UnsharedTargetError:
        return UnsharedTargetError(
            f"files that Spark wrote are missing in {self._where.root}/{self._directory}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=f"{why}: a host has another directory under this path, or another program removed files",
            do=self._share,
        )


# --- a directory on a disk


def local_tree(root: str) -> list[tuple[str, int]]:
    """Return each file below a directory, relative to it, with its length, without hidden files.

    Raises `OSError` for a link, which Spark does not create, and for a file that does not have the length that Spark
    gave it.
    """
    found = []
    for place, directories, files in os.walk(root):
        directories[:] = [name for name in directories if not is_hidden(name)]
        paths = [f"{place}/{name}" for name in files if not is_hidden(name)]
        for path in (*paths, *(f"{place}/{name}" for name in directories)):
            if os.path.islink(path):
                raise OSError(errno.ELOOP, f"{path} is a symbolic link, which Spark does not create")
        found += [(os.path.relpath(path, root), _checked_size(path)) for path in paths]
    return sorted(found)


def adopt_local(path: str, to: str, size: int) -> None:
    """Make a file durable and move it. Raises `OSError` if it does not have this length any more, or is a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
        found = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if found != size:
        raise OSError(errno.EIO, f"{path} has {found} bytes, but had {size} when it was listed")
    os.rename(path, to)


def remove_local_tree(path: str) -> bool:
    """Remove a directory and all that is in it; return whether it existed. A link is removed, and not followed."""
    if os.path.islink(path):
        os.unlink(path)
        return True
    existed = os.path.isdir(path)
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path):
        # A late task has added files meanwhile, or there is an error to report.
        shutil.rmtree(path)
    return existed


_SUMS = struct.Struct(">4si")
_SUM = struct.Struct(">I")


def _checked_size(path: str) -> int:
    """Return the length of a file. Raises `OSError` if Hadoop's checksum file next to it belongs to another length.

    Hadoop writes the CRC-32 of each 512 bytes to a hidden file (`org.apache.hadoop.fs.ChecksumFileSystem`). Their
    number and the last one tell the length; the others would take a read of the whole file.
    """
    size = os.lstat(path).st_size
    try:
        with open(f"{os.path.dirname(path)}/.{os.path.basename(path)}.crc", "rb") as sums:
            head = sums.read(_SUMS.size)
            length = sums.seek(0, os.SEEK_END)
            sums.seek(max(_SUMS.size, length - _SUM.size))
            last = sums.read()
    except FileNotFoundError:  # a session may do without them
        return size
    magic, chunk = _SUMS.unpack(head) if len(head) == _SUMS.size else (b"", 0)
    if magic != b"crc\0" or chunk <= 0:
        return size
    count = -(-size // chunk)
    fits = length == _SUMS.size + _SUM.size * count
    if fits and count:
        with open(path, "rb") as file:
            file.seek((count - 1) * chunk)
            fits = _SUM.pack(zlib.crc32(file.read())) == last
    if not fits:
        raise OSError(errno.EIO, f"{path} has {size} bytes, and its checksums belong to another length")
    return size
