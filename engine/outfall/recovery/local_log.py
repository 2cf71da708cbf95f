"""A log on a POSIX filesystem, local or shared."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from outfall.errors import ConfigurationError
from outfall.filesystems import make_durably, read_regular, sync_directory
from outfall.recovery.file_log import STATES, FileLog, entry_name, temporary_name
from outfall.recovery.location import unsuitable
from outfall.recovery.log import EntryExistsError
from outfall.trace_points import reached

_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


LARGEST = 1 << 30
"""The size in bytes above which a file is no entry: large states and committables are stored next to the log."""


class LocalLog(FileLog):
    """Writes an entry to a temporary file, syncs it, and names it with `link`, which fails if the name is taken.

    A failed fsync is reported and never retried: the kernel may have dropped the pages and report success the second
    time.
    """

    def __init__(self, directory: str, step_id: str) -> None:
        super().__init__(directory, step_id)
        self._made: set[str] = set()

    def _list(self, directory: str) -> list[str]:
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []

    def _load(self, path: str) -> bytes | None:
        try:
            return read_regular(path, None if path.endswith(".state") else LARGEST)
        except FileNotFoundError:
            return None

    def _make_durable(self) -> None:
        with suppress(FileNotFoundError):
            sync_directory(self._directory)

    def _create_entry(self, number: int, data: bytes) -> None:
        # The writer of an entry that exists has made the directory durable before it. Each epoch has a new object.
        if self._end is None:
            self._make_directory(self._directory)
        temporary = self._path(temporary_name(number))
        try:
            _write_durably(temporary, data)
            reached("log: temporary written")
            self._link(temporary, number)
            reached("log: linked")
            sync_directory(self._directory)
            reached("log: directory synced")
        finally:
            # A remaining temporary file is cleaned up later. It must not hide the original error.
            with suppress(OSError):
                os.unlink(temporary)
        reached("log: temporary removed")

    def _link(self, temporary: str, number: int) -> None:
        final = self._path(entry_name(number))
        try:
            os.link(temporary, final)
        except FileExistsError:
            # On NFS, a link with a lost response is retried and finds itself.
            if not _same_file(temporary, final):
                raise EntryExistsError(number) from None
        except FileNotFoundError:
            # A clean-up removed the temporary file, which happens only if the number is below the newest.
            if max(self._numbers(), default=0) >= number:
                raise EntryExistsError(number) from None
            raise
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise self._no_hard_links(error) from error
            raise

    def _no_hard_links(self, error: OSError) -> ConfigurationError:
        return unsuitable(
            f"the filesystem of {self._directory!r} does not support hard links",
            step=self._step_id,
            why=f"a recovery entry is created exclusively with a hard link, which failed with {error.strerror!r}",
        )

    def _create_state(self, name: str, data: bytes) -> None:
        directory = self._path(STATES)
        self._make_directory(directory)
        path = self._state_path(name)
        try:
            _write_durably(path, data)
        except OSError:
            # Otherwise each retry would use more space of a full disk.
            with suppress(OSError):
                os.unlink(path)
            raise
        reached("log: state written")
        sync_directory(directory)
        reached("log: state durable")

    def _replace(self, path: str, data: bytes) -> None:
        # Durably, although the file need not be: an entry that follows relies on all levels above the deepest.
        self._make_directory(os.path.dirname(path))
        replace_file(path, data)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def _remove_directories(self) -> None:
        for directory in (self._path(STATES), self._directory):
            self._made.discard(directory)
            # Fails if another writer's file is in it, or if a writer creates one meanwhile.
            with suppress(OSError):
                os.rmdir(directory)
        with suppress(FileNotFoundError):
            sync_directory(os.path.dirname(self._directory))

    def _make_directory(self, directory: str) -> None:
        if directory in self._made:
            return
        make_durably(directory)
        self._made.add(directory)


def replace_file(path: str, data: bytes) -> None:
    """Replace a file atomically, but not durably."""
    new = f"{path}.new"
    with open(new, "wb") as file:
        file.write(data)
    os.replace(new, path)


def _write_durably(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        reached("log: file created")
        file.write(data)
        file.flush()
        reached("log: file filled")
        os.fsync(file.fileno())


def _same_file(left: str, right: str) -> bool:
    try:
        return os.path.samefile(left, right)
    except FileNotFoundError:
        return False
