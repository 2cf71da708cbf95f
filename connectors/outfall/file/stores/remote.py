"""A directory in an object store or in HDFS, accessed through fsspec.

An attempt writes a file on a disk of its own host and uploads it to staging. A file is published by a rename if the
filesystem has an atomic one (HDFS), otherwise by a copy within the store, whose result appears atomically.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from outfall.file.stores.store import STAGING, FileRecord, FileStore, StagedFile, is_record
from outfall.filesystems import ExplainedClient, open_filesystem
from outfall.location import HDFS, Location
from outfall.storage.layout import LAYOUT
from outfall.storage.names import BY_SPARK, SIDECAR, SPARK_LOG, AttemptName, is_hidden
from outfall.store_errors import Meaning, StoreError
from outfall.target_record import TargetRecord
from outfall.trace_points import reached

_PARALLEL = 16
"""Parallel requests while an epoch is published. They wait for the network and use little CPU."""

_CLAIM = re.compile(r"([0-9a-f]+)-g(\d+)-(\w*?)(?:-e(\d+))?\.claim")
_LAYOUT = re.compile(r"directory(?:-(\d+))?\.layout")

log = logging.getLogger(__name__)

_telling = threading.Lock()
_undeletable: set[str] = set()
"""Directories in which this process may not delete, so that it does not try again and warns once."""

RENAMES = frozenset({HDFS})
"""Schemes of filesystems with an atomic rename. For others, fsspec's rename is a copy and a removal."""


def _is_folder_marker(path: str, found: Mapping[str, Any]) -> bool:
    """Return whether an object stands for a directory, as consoles make it. Readers skip it.

    Its name ends in `/`, which adlfs removes: there, it is an empty object whose name has no suffix.
    """
    return path.endswith("/") or (not found.get("size") and "." not in posixpath.basename(path))


class RemoteStore(FileStore):
    """A directory of a remote filesystem. It has no locks. Writes, removals and renames are durable on return."""

    parallel = _PARALLEL
    scratch_is_staging = False
    share = (
        "give the driver and executors the same endpoint and credentials; a memory:// URL exists in one process only"
    )

    def __init__(self, location: Location) -> None:
        """Open the filesystem. Credentials come from its environment and from fsspec's configuration.

        Raises `ImportError` if a package is missing, with its name, and `ConfigurationError` if the client cannot be
        created, for example without credentials.
        """
        self._location = location
        self.root = location.url()
        self.publishes_by_copy = location.scheme not in RENAMES
        filesystem, path = open_filesystem(location, "writing to")
        self._fs = ExplainedClient(filesystem, location.scheme)
        self._path = path.rstrip("/")
        self._scratch: str | None = None

    def __reduce__(self) -> tuple[type[RemoteStore], tuple[Location]]:
        """Let another process open the filesystem again, because clients cannot be pickled."""
        return type(self), (self._location,)

    def at(self, path: str) -> str:
        """Return the path of a file in the filesystem."""
        return f"{self._path}/{path}"

    # --- files

    def size(self, path: str) -> int | None:
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self.at(path))["size"])
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> bool:
        try:
            self._fs.rm_file(self.at(path))
        except FileNotFoundError:
            return False
        return True

    def names(self, directory: str) -> list[str]:
        return self._names(self.at(directory))

    def _names(self, directory: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return [posixpath.basename(path) for path in self._fs.ls(directory, detail=False)]
        except FileNotFoundError:
            return []

    def files(self) -> Iterator[str]:
        return (path for path in self._below() if not is_hidden(path))

    def _below(self) -> Iterator[str]:
        self._fs.invalidate_cache()
        for path, found in self._fs.find(self._path, detail=True).items():
            relative = path[len(self._path) :].lstrip("/")
            if relative and not _is_folder_marker(relative, found):
                yield relative

    def tidy(self, path: str) -> bool:
        """Remove a file on whose removal nothing depends; return whether it was removed.

        Where credentials or a policy do not allow that, the file remains, and a warning is logged once per process.
        """
        if self.root in _undeletable:
            return False
        try:
            return self.remove(path)
        except PermissionError as error:
            with _telling:
                if self.root in _undeletable:  # another thread was faster
                    return False
                _undeletable.add(self.root)
            log.warning(
                "%s: files below %s/ that are no longer needed remain, since they may not be deleted (%s). Rows are not"
                " affected. To save their space, grant the right to delete there, and start the query again",
                self.root, SIDECAR, error,
            )  # fmt: skip
            return False

    # --- writing

    def scratch(self, name: str) -> str:
        if self._scratch is None:
            # Spark's scratch space, if there is one, is removed with the executor, even after a crash.
            place = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
            self._scratch = tempfile.mkdtemp(prefix="outfall-", dir=place if os.path.isdir(place) else None)
        return os.path.join(self._scratch, name)

    def stage(self, name: str, fd: int) -> None:
        path = self.scratch(name)
        reached("file: syncing")
        self._fs.put_file(path, self.at(f"{STAGING}/{name}"))
        reached("file: synced")
        os.unlink(path)

    def drop(self, name: str) -> None:
        with suppress(Exception):  # the clean-up removes files that remain
            self.unstage(name)

    def release(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def for_spark(self, path: str) -> str:
        return f"{self.root}/{path}"

    def tree(self, directory: str) -> list[tuple[str, int]]:
        self._fs.invalidate_cache()
        try:
            found: dict[str, Any] = self._fs.find(self.at(directory), detail=True)
        except FileNotFoundError:
            return []
        files = {path.partition(f"/{directory}/")[2]: int(info["size"]) for path, info in found.items()}
        return sorted((path, size) for path, size in files.items() if not is_hidden(path))

    def adopt(self, path: str, to: str, size: int) -> None:
        self._fs.mv(self.at(path), self.at(to))

    def remove_tree(self, directory: str) -> bool:
        path = self.at(directory)
        try:
            # Some clients report no error when they remove a missing file.
            self._fs.info(path)
            self._fs.rm(path, recursive=True)
        except FileNotFoundError:
            return False
        return True

    def opened(self, path: str) -> AbstractContextManager[Any]:
        opened: AbstractContextManager[Any] = self._fs.open(self.at(path), "rb")
        return opened

    # --- publishing

    def publish(self, file: StagedFile) -> None:
        staged, published = self.at(f"{STAGING}/{file.name}"), self.at(file.path)
        if not self.publishes_by_copy:
            self._fs.makedirs(posixpath.dirname(published), exist_ok=True)
            self._fs.mv(staged, published)
            return
        self._fs.cp_file(staged, published)
        reached("file: copied")
        copied = self.size(file.path)
        if copied != file.size:
            raise OSError(f"the copy {published} has {copied} bytes, but {file.size} were recorded")
        self.tidy(f"{STAGING}/{file.name}")

    def publish_rest(self, file: StagedFile) -> None:
        self.tidy(f"{STAGING}/{file.name}")

    def clean_up(self, name: AttemptName) -> bool:
        # A directory of Spark's writer is in HDFS only, where who may write may also delete.
        return self.unstage(name) if str(name).endswith(BY_SPARK) else self.tidy(f"{STAGING}/{name}")

    # --- possession

    def has_record(self, incarnation: str) -> bool:
        # Read it, because reading is one request that no client answers from a listing or a cache.
        return self.content(f"{SIDECAR}/{incarnation}.json") is not None

    def read_record(self, incarnation: str) -> FileRecord | None:
        path = f"{SIDECAR}/{incarnation}.json"
        data = self.content(path)
        return None if data is None else FileRecord.parse(data, self.at(path))

    def content(self, path: str) -> bytes | None:
        try:
            data: bytes = self._fs.cat_file(self.at(path))
        except FileNotFoundError:
            return None
        return data

    def create_record(self, record: FileRecord) -> None:
        if not self.publishes_by_copy:
            # Not in an object store: it has no directories, and its client would create a missing bucket.
            self._fs.makedirs(self.at(SIDECAR), exist_ok=True)
        self.write_record(record)

    def read_layout(self) -> bytes | None:
        layouts = self._layouts()
        return self.content(layouts[max(layouts)]) if layouts else None

    def write_layout(self, data: bytes) -> None:
        """Write the layout under the next number, because credentials or a policy may not allow to replace one."""
        before = self._layouts()
        number = max(before, default=-1) + 1
        self._fs.pipe_file(self.at(f"{SIDECAR}/directory-{number}.layout" if number else LAYOUT), data)
        reached("file: layout written")
        for path in before.values():
            self.tidy(path)

    def remove_layout(self) -> None:
        # The newest last: without it, an older one would count.
        for _, path in sorted(self._layouts().items()):
            self.remove(path)

    def _layouts(self) -> dict[int, str]:
        found = (match for match in map(_LAYOUT.fullmatch, self.names(SIDECAR)) if match)
        return {int(match[1] or 0): f"{SIDECAR}/{match[0]}" for match in found}

    def write_record(self, record: FileRecord) -> None:
        """Write a step's record. If two drivers do so at once, the next reader finds one of the two."""
        self._fs.pipe_file(self.at(f"{SIDECAR}/{record.incarnation}.json"), record.line().encode())

    def remove_record(self, incarnation: str) -> None:
        claims = self.claims(incarnation)
        super().remove_record(incarnation)
        for begun in claims:
            self.unclaim(incarnation, begun)

    def claims(self, incarnation: str) -> list[TargetRecord]:
        """Return the claims of a step, in their order. Each is an object with its own name, so none is replaced.

        Without an epoch: a BEGIN that opened the directory. With one: the epoch that was published after that BEGIN.
        """
        found = [match for match in map(_CLAIM.fullmatch, self.names(SIDECAR)) if match and match[1] == incarnation]
        claims = (TargetRecord(int(each[2]), each[3], None if each[4] is None else int(each[4])) for each in found)
        return sorted(claims, key=lambda claim: (claim.generation, claim.token or "", claim.epoch or 0))

    def claim(self, incarnation: str, claim: TargetRecord) -> None:
        """Write a claim."""
        self._fs.pipe_file(self.at(_claim(incarnation, claim)), b"\n")

    def unclaim(self, incarnation: str, claim: TargetRecord) -> None:
        """Remove a claim."""
        self.remove(_claim(incarnation, claim))

    def tidy_claim(self, incarnation: str, claim: TargetRecord) -> None:
        """Remove a claim on which nothing depends, see `tidy`."""
        self.tidy(_claim(incarnation, claim))

    def unfinished_records(self, incarnation: str) -> list[str]:
        """Return the hidden files of a step's records that writers which died have left.

        One of a writer that continues may be among them. If it is removed, that writer writes it once more.
        """
        if self.publishes_by_copy:
            return []
        # Imported here, because other filesystems do not need its client.
        from outfall.hdfs import meant_by

        meant = ((name, meant_by(name) or "") for name in self.names(SIDECAR))
        return [
            f"{SIDECAR}/{name}" for name, record in meant if re.split(r"[-.]", record)[0] in (incarnation, "directory")
        ]

    def probe(self) -> bool:
        """Write a hidden file and remove it; return whether it may be removed."""
        path = f"{SIDECAR}/probe-{uuid.uuid4().hex}"
        self._fs.pipe_file(self.at(path), b"\n")
        return self.tidy(path)

    # --- first contact

    def visible(self) -> Iterator[str]:
        return self.files()

    def others_around(self) -> Iterator[str]:
        for path in self._below():
            directory, _, name = path.rpartition(f"/{SIDECAR}/")
            if directory and not is_hidden(directory) and "/" not in name and is_record(name):
                yield f"{self.root}/{path}"
        above = posixpath.dirname(self._path)
        while above.strip("/"):
            yield from (f"{above}/{SIDECAR}/{name}" for name in self._names_above(above) if is_record(name))
            above = posixpath.dirname(above)

    def _names_above(self, directory: str) -> list[str]:
        try:
            return self._names(f"{directory}/{SIDECAR}")
        except StoreError as error:
            if error.meaning is Meaning.TRANSIENT:
                raise
            # A user who may not list there cannot have written there either. For a path above that of its signature,
            # Azure takes the signature of a directory for a wrong one.
            return []

    def has_spark_log(self) -> bool:
        self._fs.invalidate_cache()
        try:
            # Not `exists`, which treats any error of the client as a missing file.
            self._fs.info(self.at(SPARK_LOG))
        except FileNotFoundError:
            return False
        return True

    def delete_spark_log(self) -> None:
        """Delete the log of Spark's own sink."""
        if self.has_spark_log():
            with suppress(FileNotFoundError):
                self._fs.rm(self.at(SPARK_LOG), recursive=True)
            reached("file: log of Spark deleted")


def _claim(incarnation: str, claim: TargetRecord) -> str:
    epoch = "" if claim.epoch is None else f"-e{claim.epoch}"
    return f"{SIDECAR}/{incarnation}-g{claim.generation}-{claim.token or ''}{epoch}.claim"
