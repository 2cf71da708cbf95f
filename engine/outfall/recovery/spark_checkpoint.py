"""Spark's checkpoint of a query on a local disk: detects damaged files, and syncs files before BEGIN.

```
metadata                 the query id                         written once
sources/<source>/<n>     the notes of a source                before offsets; `<n>.compact` includes earlier ones
offsets/<batch>          the end offset of each source        before the batch runs, and therefore before BEGIN
state/<operator>/…       batch n creates version n+1          while the batch runs
commits/<batch>          the batch is done                    after the batch, and therefore after COMPLETED
```
Each file has a checksum next to it, `.<name>.crc`. Spark syncs none of them. After a power loss, any of them may be
empty, truncated or missing, unless they were synced by another program. This module does not depend on Spark.
"""

from __future__ import annotations

import ctypes
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from outfall.errors import ConfigurationError, RecordError
from outfall.filesystems import read_regular
from outfall.location import LOCAL, Location
from outfall.recovery.local_log import LARGEST
from outfall.recovery.location import recovery_location, translated_errors
from outfall.serde import parse_json

_NUMBERED = re.compile(r"([0-9]+)(\.compact)?")
_STATE_FILE = re.compile(r"([0-9]+)(?:_[0-9a-fA-F-]+)?\.(delta|snapshot|zip|changelog)")
_CRC_HEADER = 8
_AT_ONCE = 8
"""The number of files that are synced in parallel: a disk flushes several of them in the time of one."""


@dataclass(frozen=True)
class StateFile:
    """A file in `state`."""

    path: str
    """Relative to the checkpoint."""
    version: int | None
    """The version of the file; `None` if it belongs to no single version, such as a schema."""
    kind: str
    """`delta`, `snapshot`, `zip`, `changelog`; empty for a file without a version."""


@dataclass(frozen=True)
class SparkCheckpoint:
    """The files of one query's checkpoint."""

    root: str

    @classmethod
    def at(cls, location: str | os.PathLike[str] | None) -> SparkCheckpoint | None:
        """Return the checkpoint at a location; `None` if there is none, or not on a local disk."""
        if location is None:
            return None
        try:
            place = recovery_location(os.fspath(location))
        except ConfigurationError:
            return None
        if place.scheme != LOCAL or not os.path.isdir(f"{place.path}/offsets"):
            return None
        return cls(place.path)

    # --- before BEGIN

    def make_durable(self, batch: int | None, everything: bool) -> None:
        """Sync the files that a batch depends on, so that Spark can run it again after any crash after BEGIN.

        Called on the driver, immediately before BEGIN. The batch is the newest planned one if `None`. `everything` says
        whether the files of earlier batches were never synced. Raises `RecordError` if the batch is not in the
        checkpoint or its state is already damaged, and `TransientError` or `ConfigurationError` if the disk failed or
        cannot be read.
        """
        with translated_errors("syncing Spark's checkpoint", None, self.root):
            planned = self.numbered("offsets")
            number = max(planned, default=0) if batch is None else batch
            if number not in planned:
                raise RecordError(
                    f"Spark runs batch {number}, but offsets/{number} is not in its checkpoint {self.root}",
                    why="files of the checkpoint were moved while the query runs, or Spark writes it asynchronously"
                    " (asyncProgressTrackingEnabled) and would run other batches after a crash",
                    do="stop the query and start it again, without asynchronous progress tracking",
                )
            self._refuse_lost_state(number)
            state = self.path("state")
            for tree in [self.root] * everything + [state] * os.path.isdir(state):
                _sync_filesystem(tree)
            _sync([*self._stands_on(number), *(_levels(self.root) if everything else [])])

    def _stands_on(self, batch: int) -> Iterator[str]:
        """Yield the new files and directories, by name, since the previous batch began."""
        yield from self._with_checksum("metadata")
        for directory, oldest in (("offsets", batch), ("commits", batch - 1)):
            found = self.numbered(directory)
            for number in found:
                if number >= oldest:
                    yield from self._with_checksum(f"{directory}/{found[number]}")
            yield self.path(directory)
        ends = self.source_ends(batch - 1)
        for source in self.sources():
            found = self.numbered(f"sources/{source}")
            for number in found:
                if number > ends.get(source, -1):
                    yield from self._with_checksum(f"sources/{source}/{found[number]}")
            yield self.path(f"sources/{source}")
        yield self.path("sources")
        yield self.root

    def _with_checksum(self, name: str) -> Iterator[str]:
        yield self.path(name)
        yield self.path(checksum_of(name))

    def _refuse_lost_state(self, version: int) -> None:
        """Reject a batch whose state is lost, before BEGIN. After it, Spark cannot return to the batch before."""
        lost = self.lost_state(version)
        if lost:
            raise RecordError(
                f"Spark's state of version {version} is damaged in its checkpoint {self.root}:"
                f" {lost[0]} {self.damage(lost[0]) or 'is missing'}",
                why="the machine lost its power, or the disk failed, before the file was on the disk",
                do=f"stop the query, run `outfall repair {self.root}`, and start it again",
            )

    # --- content

    def path(self, name: str) -> str:
        """Return the path of a file or directory of the checkpoint."""
        return f"{self.root}/{name}"

    def numbered(self, directory: str) -> dict[int, str]:
        """Return the numbers in a directory in ascending order, with their file names."""
        found = ((_NUMBERED.fullmatch(name), name) for name in _names(self.path(directory)))
        return dict(sorted((int(match[1]), name) for match, name in found if match))

    def strange(self, directory: str) -> list[str]:
        """Return the names in a directory of numbered files that are not known to be Spark's."""
        return [name for name in _names(self.path(directory)) if not (name[0] == "." or _NUMBERED.fullmatch(name))]

    def sources(self) -> list[str]:
        """Return the names of the sources with notes."""
        return sorted(name for name in _names(self.path("sources")) if os.path.isdir(self.path(f"sources/{name}")))

    def source_ends(self, batch: int) -> dict[str, int]:
        """Return the newest entry of each source that a batch reads, for sources whose offset is its number.

        These are Spark's own file sources. Other sources (Kafka) write one note with the start of the query.
        """
        try:
            lines = [parse_json(line) for line in self._lines(f"offsets/{batch}")[2:]]
        except (OSError, ValueError):
            return {}
        return {
            str(index): int(line["logOffset"])
            for index, line in enumerate(lines)
            if isinstance(line, dict) and "logOffset" in line
        }

    def query_id(self) -> str | None:
        """Return the query id; `None` if it cannot be read."""
        try:
            return str(parse_json(read_regular(self.path("metadata"), LARGEST).decode())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def damage(self, name: str, *, thoroughly: bool = False) -> str | None:
        """Return the damage of a file as the end of a sentence; `None` if it is complete.

        The name is relative to the checkpoint. `thoroughly` compares the bytes with their checksum, and not only the
        size.
        """
        path = self.path(name)
        try:
            size = os.path.getsize(path)
        except FileNotFoundError:
            return "is missing"
        if size == 0:
            return "is empty"
        return _mismatch(path, self.path(checksum_of(name)), size, thoroughly=thoroughly)

    def format_of(self, name: str) -> str:
        """Return the version in the first line of a file, `v1`; empty if there is none."""
        try:
            found = read_regular(self.path(name), LARGEST).decode().partition("\n")[0].strip()
        except (OSError, ValueError):
            return ""
        return found if re.fullmatch(r"v[0-9]+", found) else ""

    def log_damage(self, name: str) -> str | None:
        """As `damage`, for a file of `offsets`, `commits` or a file source, whose text is checked too."""
        wrong = self.damage(name, thoroughly=True)
        if wrong is not None:
            return wrong
        try:
            version, *lines = self._lines(name)
            whole = bool(re.fullmatch(r"v[0-9]+", version)) and (bool(lines) or not name.startswith("offsets/"))
            for line in lines:
                if line != "-":
                    parse_json(line)
        except ValueError:
            whole = False
        return None if whole else "is truncated"

    def state_files(self) -> Iterator[StateFile]:
        """Yield all files in `state` except checksums and temporary files."""
        for directory, _, names in os.walk(self.path("state")):
            for name in names:
                if name[0] != ".":
                    match = _STATE_FILE.fullmatch(name)
                    path = os.path.relpath(f"{directory}/{name}", self.root)
                    yield StateFile(path, int(match[1]), match[2]) if match else StateFile(path, None, "")

    def lost_state(self, version: int, *, thoroughly: bool = False) -> list[str]:
        """Return the missing and damaged files of a version of the state.

        The batch with the number of the version reads it, and the previous batch created it. `thoroughly` compares
        bytes with checksums, and detects missing files.
        """
        if version < 1:
            return []
        return [name for store in self._stores() for name in self._lost_in(store, version, thoroughly)]

    def shared_state(self, through: int) -> set[str]:
        """Return the shared files of the versions of RocksDB's state up to this one."""
        zips = (file for file in self.state_files() if file.kind == "zip" and (file.version or 0) <= through)
        return {name for file in zips for name, _ in self._members(file.path)}

    def _lost_in(self, store: str, version: int, thoroughly: bool) -> list[str]:
        kinds = ("delta", "changelog", "zip")
        there = [name for kind in kinds if os.path.exists(self.path(name := f"{store}/{version}.{kind}"))]
        lost = [name for name in there if self.damage(name, thoroughly=thoroughly)]
        zips = (name for name in there if name.endswith(".zip"))
        lost += [member for name in zips for member, size in self._members(name) if self._size(member) != size]
        # Spark's own provider writes a delta for each version in each partition.
        before, now = f"{store}/{version - 1}.delta", f"{store}/{version}.delta"
        if thoroughly and os.path.exists(self.path(before)) and now not in there:
            lost.append(now)
        return lost

    def _members(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield the RocksDB files of a version with their sizes; nothing if the version is damaged."""
        store = os.path.dirname(name)
        try:
            with zipfile.ZipFile(self.path(name)) as archive:
                said = parse_json(archive.read("metadata").split(b"\n", 1)[1])
            for directory, key, own in (("SSTs", "sstFiles", "dfsSstFileName"), ("logs", "logFiles", "dfsLogFileName")):
                yield from (
                    (f"{store}/{directory}/{file[own]}", int(file["sizeBytes"])) for file in said.get(key) or ()
                )
        except (zipfile.BadZipFile, OSError, ValueError, KeyError, IndexError):
            return

    def _size(self, name: str) -> int:
        try:
            return os.path.getsize(self.path(name))
        except FileNotFoundError:
            return -1

    def _stores(self) -> Iterator[str]:
        """Yield the directories with versions: those of partitions and of their named stores."""
        for operator in _names(self.path("state")):
            for partition in _names(self.path(f"state/{operator}")):
                if partition.isdecimal():
                    store = f"state/{operator}/{partition}"
                    yield store
                    inner = (f"{store}/{name}" for name in _names(self.path(store)) if name[0] not in "._0123456789")
                    yield from (name for name in inner if os.path.isdir(self.path(name)))

    def _lines(self, name: str) -> list[str]:
        return read_regular(self.path(name), LARGEST).decode().split("\n")


def newest_batches(checkpoint: str) -> tuple[int, int] | None:
    """Return the newest micro-batches that Spark has begun and committed, -1 if there is none; `None` if unknown.

    Spark writes `offsets/N` before it plans a micro-batch, and `commits/N` after it. In a continuous query, both have
    the same newest number while it is planned.
    """
    try:
        location = recovery_location(checkpoint)
    except ConfigurationError:
        return None
    # Without a client for the filesystem on this host, the log is elsewhere.
    with suppress(ImportError), translated_errors("reading Spark's checkpoint", None, checkpoint):
        begun, committed = _newest(location, "offsets"), _newest(location, "commits")
        # Spark may interpret a path without a scheme as a path on another filesystem.
        return (begun, committed) if begun > committed or "metadata" in _log_names(location) else None
    return None


def open_batch(checkpoint: str) -> int | None:
    """Return the micro-batch that Spark has begun and not committed; `None` if there is none, or it is unknown."""
    begun, committed = newest_batches(checkpoint) or (-1, -1)
    return begun if begun > committed else None


def checksum_of(name: str) -> str:
    """Return the name of the checksum of a file."""
    directory, slash, base = name.rpartition("/")
    return f"{directory}{slash}.{base}.crc"


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _mismatch(path: str, checksum: str, size: int, *, thoroughly: bool) -> str | None:
    try:
        sums = read_regular(checksum, LARGEST)
    except FileNotFoundError:
        return None
    if len(sums) <= _CRC_HEADER:
        return None  # Hadoop then reads the file without it
    chunk = int.from_bytes(sums[4:_CRC_HEADER], "big")
    if sums[:4] != b"crc\0" or chunk < 1:
        return "has a damaged checksum"
    if len(sums) != _CRC_HEADER + 4 * -(-size // chunk):
        return "is truncated, or its checksum is"
    if thoroughly:
        with open(path, "rb") as file:
            for at in range(_CRC_HEADER, len(sums), 4):
                if zlib.crc32(file.read(chunk)) != int.from_bytes(sums[at : at + 4], "big"):
                    return "does not match its checksum"
    return None


def _levels(directory: str) -> Iterator[str]:
    """Yield the parent directories, which another process may have just created."""
    while (above := os.path.dirname(directory)) != directory:
        yield above
        directory = above


def _sync(paths: Iterable[str]) -> None:
    """Sync files and directories. Missing ones are skipped, and directories that only their owner may read."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(_sync_one, paths):
            pass


def _sync_one(path: str) -> None:
    with suppress(FileNotFoundError):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except PermissionError:
            if os.path.isdir(path):
                return  # a process that may not read a parent directory has not created it
            raise
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_filesystem(path: str) -> None:
    """Sync the whole filesystem of a directory."""
    syncfs: Any = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)


def _newest(location: Location, log: str) -> int:
    return max((int(name) for name in _log_names(location, log) if name.isdecimal()), default=-1)


def _log_names(location: Location, *below: str) -> Sequence[str]:
    directory = location.child(*below)
    if location.scheme == LOCAL:
        return os.listdir(directory) if os.path.isdir(directory) else ()
    from outfall.recovery.object_log import ObjectStore

    return ObjectStore(location).names(directory)
