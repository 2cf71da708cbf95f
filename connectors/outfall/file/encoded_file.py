"""The base of whole and growing files in a task: batches are encoded at once and written in large pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pyarrow as pa

from outfall.capabilities import Metrics
from outfall.formats import FormatOptions
from outfall.formats.stream import EncodedStream
from outfall.storage.writer import AllOrBroken
from outfall.values import rows_to_batch

_PART_BYTES = 1 << 20
"""Encoded bytes that one file buffers: with this size, the cost of locks, checks and writes is negligible."""

_PROCESS_BYTES = 32 << 20
"""Encoded bytes that all files of a process may buffer together, because one task may have many open parts."""


class EncodedFile(AllOrBroken, ABC):
    """Encodes batches and writes the bytes in pieces. No bytes are buffered after `finish`."""

    _open: ClassVar[int] = 0

    def __init__(self, options: FormatOptions, metrics: Metrics, *, start: bool) -> None:
        self._options = options
        self._stream = EncodedStream(options, start=start)
        self._metrics = metrics
        EncodedFile._open += 1

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, and write if enough bytes are buffered."""
        if batch.num_rows == 0:
            return
        with self._all_or_broken():
            piece = min(_PART_BYTES, _PROCESS_BYTES // EncodedFile._open)
            self._hand_on(self._stream.encode(batch, piece=piece))

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._stream.rows

    @property
    def held(self) -> int:
        """The number of pending bytes, as far as it is known."""
        return self._stream.held + self._stream.expected

    @property
    def kept(self) -> int:
        """The memory in bytes of rows that the format buffers, such as row groups."""
        return self._stream.kept

    def spill(self) -> None:
        """Write the rows that the format buffers."""
        with self._all_or_broken():
            self._hand_on(self._stream.spill())

    def finish(self) -> None:
        """Write the rest and make everything durable."""
        self.write_rest()
        with self._all_or_broken():
            self._sync()

    def write_rest(self) -> None:
        """Write all buffered bytes, including the end of the file format."""
        with self._all_or_broken():
            self._hand_on(self._stream.finish())

    def close(self) -> None:
        """Release the file. Buffered bytes are discarded, because their attempt failed."""
        if not self._closed:
            self._closed = True
            EncodedFile._open -= 1
            self._release()

    @abstractmethod
    def _append(self, buffers: list[pa.Buffer]) -> None:
        """Write bytes after those of the last call."""

    @abstractmethod
    def _sync(self) -> None:
        """Make all written bytes durable."""

    @abstractmethod
    def _release(self) -> None:
        """Close file descriptors."""

    def _hand_on(self, buffers: list[pa.Buffer]) -> None:
        if buffers:
            self._metrics.add("bytes", sum(buffer.size for buffer in buffers))
            self._append(buffers)
