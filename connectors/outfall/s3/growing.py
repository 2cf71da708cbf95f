"""One object to be, in a task: pieces in the bucket, and bytes that are not one yet."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from outfall.encode.options import FormatOptions
from outfall.encode.stream import EncodedStream
from outfall.s3.byte_queue import ByteQueue
from outfall.s3.held import HeldObject, Piece
from outfall.s3.waiting import ArrowStream, Form
from outfall.s3.writer import OBJECT_BYTES

MERGED = 16
"""So many pieces of a level become one of the next, so that there are few, and no byte is written again often."""


class Growing:
    """The rows of one object to be.

    Its pieces are whole parts first, which are copied into it as they are; after them come smaller ones, less than a
    part together; after them the bytes that wait in memory.
    """

    def __init__(self, path: str, form: Form, since: float) -> None:
        self.path = path
        self.form = form
        self.since = since
        """When the oldest row came, in seconds since 1970."""
        self.rows = 0
        self.pieces: list[Piece] = []
        self.waiting = ByteQueue()
        """Bytes that are in no piece."""
        self._stream: EncodedStream | ArrowStream | None = None

    @classmethod
    def restored(cls, held: HeldObject) -> Growing:
        """Go on with a recorded one."""
        growing = cls(held.path, Form(held.kind, held.encoding, held.suffix, held.headed), held.oldest.timestamp())
        growing.rows = held.rows
        growing.pieces = list(held.pieces)
        growing.waiting.put_back(held.tail)
        return growing

    def held(self) -> HeldObject:
        """Return it as it is recorded. What waits is recorded with it."""
        return HeldObject(
            path=self.path,
            kind=self.form.kind,
            encoding=self.form.digest,
            suffix=self.form.suffix,
            headed=self.form.headed,
            pieces=tuple(self.pieces),
            content=base64.b64encode(self.waiting.read()).decode(),
            rows=self.rows,
            oldest=datetime.fromtimestamp(self.since, UTC),
        )

    @property
    def size(self) -> int:
        """Its bytes, as far as they are known."""
        held = self._stream.held if self._stream else 0
        return sum(piece.size for piece in self.pieces) + self.waiting.size + held

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes."""
        return self.waiting.size + (self._stream.held + OBJECT_BYTES if self._stream else 0)

    def joins(self, other: Growing) -> bool:
        """Whether another one's rows can follow on its own."""
        return self.path == other.path and self.form == other.form and not self.form.headed

    def join(self, other: Growing, part_size: int) -> None:
        """Take another one's rows. Both are as they were recorded."""
        both = self.pieces + other.pieces
        self.pieces = [p for p in both if p.size >= part_size] + sorted(
            (p for p in both if p.size < part_size), key=lambda piece: -piece.level
        )
        self.waiting.join(other.waiting)
        self.rows += other.rows
        self.since = min(self.since, other.since)

    def write(self, rows: pa.RecordBatch, options: FormatOptions) -> int:
        """Take rows; return how many bytes were made of them and of earlier ones."""
        if self._stream is None:
            self._stream = self.form.stream(options, start=self.rows == 0)
        made = self.waiting.add(self._stream.encode(rows))
        self.rows += rows.num_rows
        return made

    def finish(self) -> int:
        """Make bytes of all rows; return how many."""
        if self._stream is None:
            return 0
        made = self.waiting.add(self._stream.finish())
        self._stream = None
        return made

    def small(self, part_size: int) -> list[Piece]:
        """The pieces that are no whole part."""
        return [piece for piece in self.pieces if piece.size < part_size]


def merged(levels: Sequence[int]) -> tuple[int, int]:
    """Tell how many of the last pieces a new one takes in, and which level it then has.

    As a counter carries: where fifteen pieces of the new one's level stand before it, all become one of the next level.

    Args:
        levels: of the smaller pieces, in their order.
    """
    count = level = 0
    while len(levels) - count >= MERGED - 1:
        run = levels[len(levels) - count - (MERGED - 1) : len(levels) - count]
        if any(each > level for each in run):
            break
        count, level = count + MERGED - 1, level + 1
    return count, level


def copied(sizes: Sequence[int], part_size: int, smallest: int) -> list[bool]:
    """Plan an object of pieces: which become parts within S3, and which have to be read.

    A piece is copied when it is as large as a part, and what was read before it is nothing, or a part for S3.

    Args:
        sizes: of the pieces, in their order.
        part_size: into which parts what is read is cut.
        smallest: the smallest part that S3 takes, but for the last.
    """
    plan, read = [], 0
    for size in sizes:
        copy = size >= part_size and (read == 0 or read >= smallest)
        read = 0 if copy else (read + size) % part_size
        plan.append(copy)
    return plan
