"""Many files open for writing, on few file descriptors."""

from __future__ import annotations

import os
from collections import OrderedDict


class OpenFiles:
    """Hands out descriptors, and closes the least recently used one when there would be too many.

    A file whose descriptor was closed goes on at its end when it is asked for again.
    """

    def __init__(self, limit: int, *, sync: bool) -> None:
        """Keep at most `limit` descriptors open.

        Args:
            limit: at least one.
            sync: whether a file is synced before its descriptor is closed. An error of writing back is reported to the
                descriptors that are open then, so a file that must be durable may not be without one in between.
        """
        self._limit = limit
        self._sync = sync
        self._open: OrderedDict[str, int] = OrderedDict()

    def create(self, path: str) -> int:
        """Create a file, which must not exist, and return its descriptor."""
        return self._add(path, os.O_CREAT | os.O_EXCL)

    def get(self, path: str) -> int:
        """Return the descriptor of a file made by `create`, valid until the next call."""
        fd = self._open.get(path)
        if fd is None:
            return self._add(path, os.O_APPEND)
        self._open.move_to_end(path)
        return fd

    def close(self, path: str) -> None:
        """Close a file, if it is open."""
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def _add(self, path: str, flags: int) -> int:
        while len(self._open) >= self._limit:
            _, oldest = self._open.popitem(last=False)
            try:
                if self._sync:
                    os.fsync(oldest)
            finally:
                os.close(oldest)
        self._open[path] = fd = os.open(path, os.O_WRONLY | flags, 0o666)
        return fd
