"""Whole files in an object store or in HDFS, by way of fsspec.

An attempt writes a file on a disk of its own host and uploads it to staging. Publishing it is a rename where the
filesystem has one that is atomic (HDFS), and elsewhere a copy within the store, whose result appears at once and whole.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from outfall.capabilities import CommitterInitContext
from outfall.errors import TargetLostError, UnsharedTargetError
from outfall.file.layout import SPARK_LOG, is_hidden
from outfall.file.marker import Marker, unreadable_marker
from outfall.file.names import FileName
from outfall.file.store import FileStore, StagedFile
from outfall.filesystems import ExplainedClient, open_filesystem
from outfall.location import Location
from outfall.target_record import TargetRecord, check_publishing
from outfall.trace_points import reached

_PARALLEL = 16
"""Requests that are under way at once while an epoch is published; each waits, and none works."""

_SIDECAR = "_outfall"

_CLAIM = re.compile(r"([0-9a-f]+)-g(\d+)-(\w*)\.claim")

RENAMES = frozenset({"hdfs"})
"""Schemes of filesystems whose rename is atomic. fsspec's rename is a copy and a removal for the others."""


class RemoteStore(FileStore):
    """A directory of a remote filesystem."""

    parallel = _PARALLEL
    scratch_is_staging = False

    def __init__(self, location: Location) -> None:
        """Open the filesystem; credentials come from its own environment and fsspec's configuration.

        Raises:
            ImportError: a package is missing; the text names it.
            ConfigurationError: its client cannot be made, as without credentials.
        """
        self.root = location.url()
        self.staging = f"{self.root}/_outfall/staging"
        self.publishes_by_copy = location.scheme not in RENAMES
        filesystem, path = open_filesystem(location, "writing to")
        self._fs = ExplainedClient(filesystem, self.root)
        self._path = path.rstrip("/")
        self._scratch: str | None = None

    # --- in tasks

    def check_shared(self, incarnation: str) -> None:
        if self._marker_data(incarnation) is None:
            raise UnsharedTargetError(
                f"host {socket.gethostname()} does not see the driver's {self.root}",
                why=f"the marker {self._marker(incarnation)}, which the driver wrote, is not there",
                do="give driver and executors the same endpoint and credentials; a memory:// URL is one process's own;"
                " if they do share it, another query has overwritten this directory",
            )

    def scratch(self, name: str) -> str:
        if self._scratch is None:
            # Spark's own scratch space where there is one: it goes with the executor, however that ends.
            place = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
            self._scratch = tempfile.mkdtemp(prefix="outfall-", dir=place if os.path.isdir(place) else None)
        return os.path.join(self._scratch, name)

    def stage(self, name: str, fd: int) -> None:
        path = self.scratch(name)
        reached("file: syncing")
        self._fs.put_file(path, self._staged(name))
        reached("file: synced")
        os.unlink(path)

    def sync_staged(self) -> None:
        """Nothing: what is uploaded is durable, with its name."""

    def drop(self, name: str) -> None:
        with suppress(Exception):  # one that stays behind is swept
            self._fs.rm_file(self._staged(name))

    def release(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    # --- on the driver

    def advance(self, context: CommitterInitContext) -> None:
        found = self.read_marker(context.incarnation)
        if found is None:
            raise self._overwritten(context.incarnation)
        for seen in self.records(found):
            check_publishing(self.root, seen, context)
        after = found.advanced(context.epoch)
        if after != found:
            self.write_marker(after)

    def confirm(self, context: CommitterInitContext, files: Sequence[StagedFile]) -> None:
        if self.read_marker(context.incarnation) is None:
            # Who overwrites removes the marker first and lists the files then: what it has not seen is among these.
            self.unpublish([file.path for file in files])
            raise self._overwritten(context.incarnation)

    def staged_size(self, name: str) -> int | None:
        return self._size(self._staged(name))

    def published_size(self, path: str) -> int | None:
        return self._size(self._data(path))

    def publish(self, file: StagedFile) -> None:
        staged, published = self._staged(file.name), self._data(file.path)
        if not self.publishes_by_copy:
            self._fs.makedirs(posixpath.dirname(published), exist_ok=True)
            self._fs.mv(staged, published)
            return
        self._fs.cp_file(staged, published)
        reached("file: copied")
        copied = self._size(published)
        if copied != file.size:
            raise OSError(f"the copy {published} has {copied} bytes, and {file.size} were recorded")
        with suppress(FileNotFoundError):
            self._fs.rm_file(staged)

    def sync_published(self, files: Sequence[StagedFile]) -> None:
        """Nothing: what has appeared is durable."""

    def unstage(self, name: str) -> bool:
        return self._remove(self._staged(name))

    def sync_unstaged(self) -> None:
        """Nothing: what is removed is so durably."""

    def staged_names(self, incarnation: str) -> list[FileName]:
        return [name for _, name in _ours(self._list(self._data("_outfall/staging")), incarnation)]

    def published(self, incarnation: str) -> Iterator[tuple[str, FileName]]:
        yield from _ours(self.visible(), incarnation)

    def unpublish(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._remove(self._data(path))
            reached("file: publication taken back")

    def probe(self) -> None:
        """Write a file where readers do not look, and remove it."""
        path = self._data(f"_outfall/probe-{uuid.uuid4().hex}")
        self._fs.pipe_file(path, b"\n")
        self._fs.rm_file(path)

    # --- possession

    def visible(self) -> Iterator[str]:
        """Yield what readers see: paths relative to the root."""
        return (path for path in self._below() if not any(map(is_hidden, path.split("/"))))

    def others_around(self) -> Iterator[str]:
        """Yield the markers of queries that write to a directory below this one, or above it."""
        for path in self._below():
            *directories, sidecar, name = ["", *path.split("/")]
            if sidecar == _SIDECAR and any(directories) and not any(map(is_hidden, directories)) and _is_marker(name):
                yield f"{self.root}/{path}"
        above = posixpath.dirname(self._path)
        while above.strip("/"):
            # Who may not look there cannot write there either.
            with suppress(PermissionError):
                found = [posixpath.basename(path) for path in self._list(f"{above}/{_SIDECAR}")]
                yield from (f"{above}/{_SIDECAR}/{name}" for name in found if _is_marker(name))
            above = posixpath.dirname(above)

    def _below(self) -> Iterator[str]:
        self._fs.invalidate_cache()
        for path in self._fs.find(self._path):
            relative = path.rstrip("/")[len(self._path) :].lstrip("/")
            if relative:
                yield relative

    def has_spark_log(self) -> bool:
        """Whether Spark's own streaming file sink has written here."""
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._data(SPARK_LOG)))

    def delete_spark_log(self) -> None:
        """Delete the log of Spark's own sink."""
        if self.has_spark_log():
            with suppress(FileNotFoundError):
                self._fs.rm(self._data(SPARK_LOG), recursive=True)
            reached("file: log of Spark deleted")

    def markers(self) -> list[str]:
        """Return the incarnations of all steps that write here, or did."""
        return sorted(name.removesuffix(".json") for name in self._sidecar_names() if _is_marker(name))

    def read_marker(self, incarnation: str) -> Marker | None:
        """Return a step's marker, `None` when there is none.

        Raises:
            TargetLostError: it cannot be read.
        """
        data = self._marker_data(incarnation)
        if data is None:
            return None
        found = Marker.parse(data.decode(errors="replace"))
        if found is None:
            raise unreadable_marker(self._marker(incarnation))
        return found

    def records(self, marker: Marker) -> list[TargetRecord]:
        """Return what is said of a step here: under which BEGINs it was opened, and up to which epoch it published.

        Each BEGIN says so in an object of its own name, since nothing keeps two drivers from replacing one object at
        once. More than one is there while a driver looks for others.
        """
        found = [
            TargetRecord(int(match[2]), match[3], marker.record.epoch)
            for match in map(_CLAIM.fullmatch, self._sidecar_names())
            if match is not None and match[1] == marker.incarnation
        ]
        return sorted(found, key=lambda record: record.generation) or [marker.record]

    def claim(self, incarnation: str, record: TargetRecord) -> None:
        """Say that a BEGIN opens the directory."""
        self._fs.pipe_file(self._claim(incarnation, record), b"\n")

    def unclaim(self, incarnation: str, record: TargetRecord) -> None:
        """Take back that a BEGIN opens the directory."""
        self._remove(self._claim(incarnation, record))

    def write_marker(self, marker: Marker) -> None:
        """Write a step's marker. Two drivers of the step may do so at once; the next reader sees one of the two."""
        self._fs.makedirs(self._data("_outfall"), exist_ok=True)
        self._fs.pipe_file(self._marker(marker.incarnation), marker.line().encode())

    def remove_marker(self, incarnation: str) -> None:
        """Remove a step's marker, so that it stops."""
        found = self.records(Marker(incarnation, "", "", ""))
        self._remove(self._marker(incarnation))
        for record in found:
            self.unclaim(incarnation, record)

    # --- names

    def _overwritten(self, incarnation: str) -> TargetLostError:
        return TargetLostError(
            f"{self._marker(incarnation)} does not exist",
            why="the target's directory was moved, deleted or overwritten while the query ran",
            do="restore the directory, or start the query with a new checkpoint",
        )

    def _data(self, path: str) -> str:
        return f"{self._path}/{path}"

    def _staged(self, name: str) -> str:
        return self._data(f"_outfall/staging/{name}")

    def _marker(self, incarnation: str) -> str:
        return self._data(f"_outfall/{incarnation}.json")

    def _marker_data(self, incarnation: str) -> bytes | None:
        try:
            data: bytes = self._fs.cat_file(self._marker(incarnation))
        except FileNotFoundError:
            return None
        return data

    def _claim(self, incarnation: str, record: TargetRecord) -> str:
        return self._data(f"{_SIDECAR}/{incarnation}-g{record.generation}-{record.token or ''}.claim")

    def _sidecar_names(self) -> list[str]:
        return [posixpath.basename(path) for path in self._list(self._data(_SIDECAR))]

    def _list(self, directory: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            names: list[str] = self._fs.ls(directory, detail=False)
        except FileNotFoundError:
            return []
        return names

    def _size(self, path: str) -> int | None:
        self._fs.invalidate_cache()
        try:
            info: dict[str, Any] = self._fs.info(path)
        except FileNotFoundError:
            return None
        return int(info["size"])

    def _remove(self, path: str) -> bool:
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            return False
        return True


def _is_marker(name: str) -> bool:
    return name.endswith(".json") and not is_hidden(name)


def _ours(paths: Iterator[str] | list[str], incarnation: str) -> Iterator[tuple[str, FileName]]:
    for path in paths:
        name = FileName.parse(posixpath.basename(path))
        if name is not None and name.incarnation == incarnation:
            yield path, name
