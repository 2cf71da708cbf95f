"""What both kinds of files share in a task: batches are encoded at once and written in large pieces."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from outfall.capabilities import Metrics
from outfall.errors import TransientError, ValueRefusedError
from outfall.formats import Encoder, FormatOptions, encoder, member
from outfall.formats.options import Compression
from outfall.values import rows_to_batch

_PART_BYTES = 1 << 20
"""Encoded bytes that one file holds back: enough that locking, checking and writing cost nothing beside encoding."""

_PROCESS_BYTES = 32 << 20
"""Encoded bytes that all files of a process may hold back together, since one task may have many parts open."""


class EncodedFile(ABC):
    """Encodes batches and hands the bytes on in pieces. Holds nothing back when `finish` has returned."""

    _open: ClassVar[int] = 0

    def __init__(self, options: FormatOptions, metrics: Metrics, *, start: bool) -> None:
        self._options = options
        # A format that compresses inside its files is not compressed again.
        self._codec: Compression = "none" if options.format == "parquet" else options.codec
        self._start = start
        self._metrics = metrics
        self._encoder: Encoder | None = None
        self._buffers: list[pa.Buffer] = []
        self._held = 0
        self._rows = 0
        self._broken = False
        self._closed = False
        EncodedFile._open += 1

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, and write once enough is held."""
        if batch.num_rows == 0:
            return
        with self._all_or_broken():
            self._hold(self._encoder_of(batch.schema).encode(batch))
            self._rows += batch.num_rows
            if self._held >= min(_PART_BYTES, _PROCESS_BYTES // EncodedFile._open):
                self._drain()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._rows

    @property
    def held(self) -> int:
        """Bytes that are still to be written, as far as their number is known."""
        return self._held + (self._encoder.expected if self._encoder is not None else 0)

    @property
    def kept(self) -> int:
        """Bytes of memory that the format keeps for later."""
        return self._encoder.kept if self._encoder is not None else 0

    def spill(self) -> None:
        """Write what the format keeps for later."""
        with self._all_or_broken():
            if self._encoder is not None:
                self._hold(self._encoder.spill())
            self._drain()

    def finish(self) -> None:
        """Write the rest and make everything durable."""
        self.write_rest()
        with self._all_or_broken():
            self._sync()

    def write_rest(self) -> None:
        """Write what is held back, to the end of the file's format."""
        with self._all_or_broken():
            if self._encoder is not None:
                self._hold(self._encoder.finish())
                self._encoder = None
            self._drain()

    def close(self) -> None:
        """Release the file. What is held back is lost on purpose: its epoch does not count."""
        if not self._closed:
            self._closed = True
            EncodedFile._open -= 1
            self._release()

    def _encoder_of(self, schema: pa.Schema) -> Encoder:
        if self._encoder is not None and not self._encoder.schema.equals(schema):
            if self._encoder.one_schema:
                raise ValueRefusedError(
                    f"the columns change from ({_columns(self._encoder.schema)}) to ({_columns(schema)})",
                    why=f"all rows of a {self._options.format} file have the same columns",
                    do='give all rows the same columns, or use format="jsonl"',
                )
            self._hold(self._encoder.finish())
            self._encoder = None
        if self._encoder is None:
            self._encoder = encoder(self._options, schema, start=self._start)
            self._start = False
        return self._encoder

    @abstractmethod
    def _append(self, buffers: list[pa.Buffer]) -> None:
        """Write bytes after those of the last call."""

    @abstractmethod
    def _sync(self) -> None:
        """Make what was stored durable."""

    @abstractmethod
    def _release(self) -> None:
        """Close file descriptors."""

    def _hold(self, buffer: pa.Buffer) -> None:
        if buffer.size:
            self._buffers.append(buffer)
            self._held += buffer.size

    def _drain(self) -> None:
        if self._buffers:
            # Every piece is a whole member, so a growing file can be cut wherever a piece, and so an epoch, ended.
            buffers, self._buffers = member(self._codec, self._buffers), []
            self._held = 0
            self._metrics.add("bytes", sum(buffer.size for buffer in buffers))
            self._append(buffers)

    @contextlib.contextmanager
    def _all_or_broken(self) -> Iterator[None]:
        """Refuse everything after a failure: a second fsync may succeed although the first one lost the data."""
        if self._broken or self._closed:
            raise TransientError(
                "this attempt cannot go on writing",
                why="its file is closed" if self._closed else "an earlier write or fsync of it failed",
                do="let the task be tried again",
            )
        self._broken = True
        yield
        self._broken = False


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
