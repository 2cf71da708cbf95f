"""Bytes that wait, taken from the front in pieces of any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pyarrow as pa


class ByteQueue:
    """Buffers in a row. None is copied before it is taken."""

    def __init__(self) -> None:
        self._buffers: deque[pa.Buffer] = deque()
        self.size = 0
        """Bytes that wait."""

    def add(self, buffers: Iterable[pa.Buffer]) -> int:
        """Put buffers at the end; return how many bytes they are."""
        before = self.size
        for buffer in buffers:
            self._buffers.append(buffer)
            self.size += buffer.size
        return self.size - before

    def put_back(self, body: bytes) -> None:
        """Put bytes at the front."""
        self._buffers.appendleft(pa.py_buffer(body))
        self.size += len(body)

    def join(self, other: ByteQueue) -> None:
        """Put another queue's bytes at the end."""
        self.add(other._buffers)

    def take(self, size: int) -> bytes:
        """Take so many bytes from the front; fewer if there are not so many."""
        left, taken = min(size, self.size), []
        self.size -= left
        while left:
            buffer = self._buffers.popleft()
            if buffer.size > left:
                self._buffers.appendleft(buffer.slice(left))
                buffer = buffer.slice(0, left)
            taken.append(buffer)
            left -= buffer.size
        return b"".join(taken)

    def take_all(self) -> bytes:
        """Take all of them."""
        return self.take(self.size)

    def read(self) -> bytes:
        """Return all of them, and leave them."""
        return b"".join(self._buffers)
