"""Spark's checkpoint of a query on a local disk: which of its files are whole, and how they are made durable.

```
metadata                 the query's id                       written once
sources/<source>/<n>     what a source notes for itself       before offsets; `<n>.compact` holds those before it too
offsets/<batch>          where each source's batch ends       before the batch runs, so before BEGIN
state/<operator>/…       version n+1 is made by batch n       while the batch runs
commits/<batch>          the batch is done                    after the batch, so after COMPLETED
```
Each has a checksum beside it, `.<name>.crc`. Spark syncs none of them, so a loss of power can leave any of them empty,
cut short or gone, as long as nobody else has made them durable. Free of Spark.
"""

from __future__ import annotations

import ctypes
import json
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
from outfall.location import LOCAL, Location
from outfall.recovery.location import explained, recovery_location

_NUMBERED = re.compile(r"([0-9]+)(\.compact)?")
_STATE_FILE = re.compile(r"([0-9]+)(?:_[0-9a-fA-F-]+)?\.(delta|snapshot|zip|changelog)")
_CRC_HEADER = 8
_AT_ONCE = 8
"""Files that are synced side by side: a disk takes a flush for several of them at the time of one."""


@dataclass(frozen=True)
class StateFile:
    """A file in `state`."""

    path: str
    """Below the checkpoint."""
    version: int | None
    """The version it is of; `None` for what is of no single version, such as a schema."""
    kind: str
    """`delta`, `snapshot`, `zip`, `changelog`; empty for what has no version."""


@dataclass(frozen=True)
class SparkCheckpoint:
    """The files of one query's checkpoint."""

    root: str

    @classmethod
    def at(cls, location: str | os.PathLike[str] | None) -> SparkCheckpoint | None:
        """Return the checkpoint at a location; `None` where there is none, or not on a local disk."""
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
        """Make durable what a batch stands on: nothing that Spark needs to run it again may be lost after BEGIN.

        Called on the driver, right before BEGIN.

        Args:
            batch: the batch that begins; the newest one that is planned when `None`.
            everything: whether nobody has done this for the batches before.

        Raises:
            RecordError: the batch is not in the checkpoint, or its state is damaged already.
            TransientError, ConfigurationError: the disk failed, or may not be read.
        """
        with explained("syncing Spark's checkpoint", None, self.root):
            planned = self.numbered("offsets")
            number = max(planned, default=0) if batch is None else batch
            if number not in planned:
                raise RecordError(
                    f"Spark brings batch {number}, and offsets/{number} is not in its checkpoint {self.root}",
                    why="files of the checkpoint were moved while the query runs, or Spark writes it asynchronously"
                    " (asyncProgressTrackingEnabled), so that after a crash it would bring other batches",
                    do="stop the query and start it again, without asynchronous progress tracking",
                )
            self._refuse_lost_state(number)
            state = self.path("state")
            for tree in [self.root] * everything + [state] * os.path.isdir(state):
                _sync_filesystem(tree)
            _sync([*self._stands_on(number), *(_levels(self.root) if everything else [])])

    def _stands_on(self, batch: int) -> Iterator[str]:
        """The files and directories by name that are new since the batch before began."""
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
        """Refuse a batch whose state is lost, before BEGIN: after it there is no way back to the batch before."""
        lost = self.lost_state(version)
        if lost:
            raise RecordError(
                f"Spark's state of version {version} is damaged in its checkpoint {self.root}:"
                f" {lost[0]} {self.damage(lost[0]) or 'is missing'}",
                why="the machine lost its power, or the disk failed, before it was on the disk",
                do=f"stop the query, run `outfall repair {self.root}`, and start it again",
            )

    # --- what is there

    def path(self, name: str) -> str:
        """Return the path of a file or directory of the checkpoint."""
        return f"{self.root}/{name}"

    def numbered(self, directory: str) -> dict[int, str]:
        """Return the numbers that a directory holds, ascending, each with its file's name."""
        found = ((_NUMBERED.fullmatch(name), name) for name in _names(self.path(directory)))
        return dict(sorted((int(match[1]), name) for match, name in found if match))

    def strange(self, directory: str) -> list[str]:
        """Return the names in a directory of numbered files that are not Spark's, as far as known."""
        return [name for name in _names(self.path(directory)) if not (name[0] == "." or _NUMBERED.fullmatch(name))]

    def sources(self) -> list[str]:
        """Return the names of the sources that note something."""
        return sorted(name for name in _names(self.path("sources")) if os.path.isdir(self.path(f"sources/{name}")))

    def source_ends(self, batch: int) -> dict[str, int]:
        """Return the newest entry of each source that a batch reads; of sources only that number their entries so.

        Those are Spark's own sources of files. Others (Kafka) note where the query began, once.
        """
        try:
            lines = [json.loads(line) for line in self._lines(f"offsets/{batch}")[2:]]
        except (OSError, ValueError):
            return {}
        return {
            str(index): int(line["logOffset"])
            for index, line in enumerate(lines)
            if isinstance(line, dict) and "logOffset" in line
        }

    def query_id(self) -> str | None:
        """Return the query's id; `None` where it cannot be read."""
        try:
            with open(self.path("metadata"), encoding="utf-8") as file:
                return str(json.load(file)["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def damage(self, name: str, *, thoroughly: bool = False) -> str | None:
        """Say what is wrong with a file, as the end of a sentence; `None` for one that is whole.

        Args:
            name: below the checkpoint.
            thoroughly: whether its bytes are compared with their checksum, and not only their number.
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
        """Return the version in a file's first line, `v1`; empty where there is none."""
        try:
            with open(self.path(name), encoding="utf-8") as file:
                found = file.readline().strip()
        except (OSError, ValueError):
            return ""
        return found if re.fullmatch(r"v[0-9]+", found) else ""

    def log_damage(self, name: str) -> str | None:
        """As `damage`, of a file of `offsets`, `commits` or a source of files, whose text is looked at as well."""
        wrong = self.damage(name, thoroughly=True)
        if wrong is not None:
            return wrong
        try:
            version, *lines = self._lines(name)
            whole = bool(re.fullmatch(r"v[0-9]+", version)) and (bool(lines) or not name.startswith("offsets/"))
            for line in lines:
                if line != "-":
                    json.loads(line)
        except ValueError:
            whole = False
        return None if whole else "is cut short"

    def state_files(self) -> Iterator[StateFile]:
        """Yield all files in `state` but checksums and what is not finished."""
        for directory, _, names in os.walk(self.path("state")):
            for name in names:
                if name[0] != ".":
                    match = _STATE_FILE.fullmatch(name)
                    path = os.path.relpath(f"{directory}/{name}", self.root)
                    yield StateFile(path, int(match[1]), match[2]) if match else StateFile(path, None, "")

    def lost_state(self, version: int, *, thoroughly: bool = False) -> list[str]:
        """Return what a version of the state lacks.

        Args:
            version: that which the batch of this number reads, and the one before it makes.
            thoroughly: whether bytes are compared with checksums, and files that are gone are missed.
        """
        if version < 1:
            return []
        return [name for store in self._stores() for name in self._lost_in(store, version, thoroughly)]

    def shared_state(self, through: int) -> set[str]:
        """Return the files that versions of RocksDB's state up to one consist of, beside those of their own."""
        zips = (file for file in self.state_files() if file.kind == "zip" and (file.version or 0) <= through)
        return {name for file in zips for name, _ in self._members(file.path)}

    def _lost_in(self, store: str, version: int, thoroughly: bool) -> list[str]:
        kinds = ("delta", "changelog", "zip")
        there = [name for kind in kinds if os.path.exists(self.path(name := f"{store}/{version}.{kind}"))]
        lost = [name for name in there if self.damage(name, thoroughly=thoroughly)]
        zips = (name for name in there if name.endswith(".zip"))
        lost += [member for name in zips for member, size in self._members(name) if self._size(member) != size]
        # Spark's own provider writes a delta for each version, of whichever partition.
        before, now = f"{store}/{version - 1}.delta", f"{store}/{version}.delta"
        if thoroughly and os.path.exists(self.path(before)) and now not in there:
            lost.append(now)
        return lost

    def _members(self, name: str) -> Iterator[tuple[str, int]]:
        """The files of RocksDB that a version consists of, with their sizes; none of a version that is damaged."""
        store = os.path.dirname(name)
        try:
            with zipfile.ZipFile(self.path(name)) as archive:
                said = json.loads(archive.read("metadata").split(b"\n", 1)[1])
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
        """The directories that hold versions: of a partition, or of its named stores."""
        for operator in _names(self.path("state")):
            for partition in _names(self.path(f"state/{operator}")):
                if partition.isdecimal():
                    store = f"state/{operator}/{partition}"
                    yield store
                    inner = (f"{store}/{name}" for name in _names(self.path(store)) if name[0] not in "._0123456789")
                    yield from (name for name in inner if os.path.isdir(self.path(name)))

    def _lines(self, name: str) -> list[str]:
        with open(self.path(name), encoding="utf-8") as file:
            return file.read().split("\n")


def has_open_batch(checkpoint: str) -> bool | None:
    """Tell whether Spark has begun a micro-batch in its checkpoint that it has not committed; `None` where unknown.

    Before it plans a micro-batch Spark writes `offsets/N`, and after it `commits/N`. Of a continuous query both have
    the same newest number while it is planned.
    """
    try:
        location = recovery_location(checkpoint)
    except ConfigurationError:
        return None
    with explained("looking at Spark's checkpoint", None, checkpoint):
        if _newest(location, "offsets") > _newest(location, "commits"):
            return True
        # Spark's idea of a path without a scheme may be another filesystem than ours.
        return False if "metadata" in _log_names(location) else None


def checksum_of(name: str) -> str:
    """Return the name of the checksum beside a file."""
    directory, slash, base = name.rpartition("/")
    return f"{directory}{slash}.{base}.crc"


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _mismatch(path: str, checksum: str, size: int, *, thoroughly: bool) -> str | None:
    try:
        with open(checksum, "rb") as file:
            sums = file.read()
    except FileNotFoundError:
        return None
    if len(sums) <= _CRC_HEADER:
        return None  # Hadoop then reads the file without it
    chunk = int.from_bytes(sums[4:_CRC_HEADER], "big")
    if sums[:4] != b"crc\0" or chunk < 1:
        return "has a damaged checksum"
    if len(sums) != _CRC_HEADER + 4 * -(-size // chunk):
        return "is cut short, or its checksum is"
    if thoroughly:
        with open(path, "rb") as file:
            for at in range(_CRC_HEADER, len(sums), 4):
                if zlib.crc32(file.read(chunk)) != int.from_bytes(sums[at : at + 4], "big"):
                    return "does not match its checksum"
    return None


def _levels(directory: str) -> Iterator[str]:
    """The directories above, which somebody may have made just now."""
    while (above := os.path.dirname(directory)) != directory:
        yield above
        directory = above


def _sync(paths: Iterable[str]) -> None:
    """Make files and directories durable; what is not there is passed over, and so is what only its owner may read."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(_sync_one, paths):
            pass


def _sync_one(path: str) -> None:
    with suppress(FileNotFoundError):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except PermissionError:
            if os.path.isdir(path):
                return  # who may not read a level above did not make it
            raise
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_filesystem(path: str) -> None:
    """Make durable everything on the filesystem of a directory."""
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
