"""One future object, in a task: its pieces in the bucket, and its buffered bytes.

Its bytes are encoded in a form whose pieces can be concatenated.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Self

import pyarrow as pa

from outfall.formats import can_grow, one_schema, suffix
from outfall.formats.options import FormatOptions
from outfall.formats.stream import EncodedStream
from outfall.s3.rolling.pieces import WHOLE, ObjectState, StoredPiece
from outfall.s3.upload import ByteQueue
from outfall.s3.writer import OBJECT_BYTES
from outfall.values import detached

_STREAM_BYTES = 1 << 20
"""Bytes of rows in one Arrow stream: with this size, the overhead of its schema is small."""


@dataclass(frozen=True)
class Form:
    """The encoding of the bytes of a future object. All bytes of an object have the same form."""

    kind: Literal["bytes", "arrow"]
    """The bytes of the format, in complete compressed members; or Arrow streams, for a format whose files cannot be
    concatenated (Parquet) and are encoded when the object is composed."""
    digest: str
    suffix: str
    headed: bool

    @classmethod
    def of(cls, options: FormatOptions, schema: pa.Schema) -> Self:
        """Return the form for the options of the format and the columns."""
        columns = "\n".join(f"{field.name} {field.type} {field.nullable}" for field in schema)
        grows = can_grow(options)
        made = {
            "columns": columns if one_schema(options) else "",
            "options": options.recorded() if grows else "arrow",
        }
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:32]
        return cls("bytes" if grows else "arrow", digest, suffix(options), options.encoder.headed(options))

    def stream(self, options: FormatOptions, *, start: bool) -> EncodedStream | ArrowStream:
        """Return an encoder of this form; at the `start` of an object it writes the header."""
        return EncodedStream(options, start=start) if self.kind == "bytes" else ArrowStream()


class ArrowStream:
    """Encodes batches as a sequence of compressed Arrow IPC streams."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self.held = 0
        """The size of buffered rows in bytes."""

    def encode(self, batch: pa.RecordBatch) -> list[pa.Buffer]:
        """Add rows; return the bytes that are ready to be stored."""
        ready = [] if not self._batches or self._batches[0].schema.equals(batch.schema) else self.finish()
        self._batches.append(detached(batch))
        self.held += batch.nbytes
        return ready + (self.finish() if self.held >= _STREAM_BYTES else [])

    def finish(self) -> list[pa.Buffer]:
        """Return the rest."""
        if not self._batches:
            return []
        table = pa.Table.from_batches(self._batches).combine_chunks()
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        self._batches, self.held = [], 0
        return [out.getvalue()]


def batches_of(bodies: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Read the batches of a sequence of Arrow streams, which is split into `bodies` at any bytes."""
    source = _Joined(bodies)
    file = pa.PythonFile(source, mode="r")
    while source.more():
        yield from pa.ipc.open_stream(file)


class _Joined(io.RawIOBase):
    """Bodies as one sequential file, with one of them in memory at a time."""

    def __init__(self, bodies: Iterable[bytes]) -> None:
        self._bodies = iter(bodies)
        self._body = memoryview(b"")

    def more(self) -> bool:
        while not self._body:
            body = next(self._bodies, None)
            if body is None:
                return False
            self._body = memoryview(body)
        return True

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        taken: list[memoryview] = []
        left = size
        while left and self.more():
            piece = self._body[:left] if left > 0 else self._body
            self._body = self._body[len(piece) :]
            taken.append(piece)
            left = left - len(piece) if left > 0 else left
        return b"".join(taken)


MERGED = 16
"""The number of pieces of a level that are merged into one of the next, to limit pieces and rewrites."""


class BufferedObject:
    """The rows of one future object.

    Its first pieces are whole parts, which are copied unchanged. Smaller pieces follow, which together are less than a
    part. Buffered bytes in memory come last.
    """

    def __init__(self, path: str, form: Form, since: float) -> None:
        self.path = path
        self.form = form
        self.since = since
        """The arrival time of the oldest row, in seconds since 1970."""
        self.rows = 0
        self.unencoded = 0
        """The size of its rows as Arrow batches, in bytes."""
        self.pieces: list[StoredPiece] = []
        self.waiting = ByteQueue()
        """Bytes that are not in a piece yet."""
        self._stream: EncodedStream | ArrowStream | None = None

    @classmethod
    def restored(cls, held: ObjectState) -> BufferedObject:
        """Restore an object from its recorded state."""
        growing = cls(held.path, Form(held.kind, held.encoding, held.suffix, held.headed), held.oldest.timestamp())
        growing.rows = held.rows
        growing.unencoded = held.unencoded
        growing.pieces = list(held.pieces)
        growing.waiting.put_back(held.tail)
        return growing

    def held(self) -> ObjectState:
        """Return the state to record, including the buffered bytes."""
        return ObjectState(
            path=self.path,
            kind=self.form.kind,
            encoding=self.form.digest,
            suffix=self.form.suffix,
            headed=self.form.headed,
            pieces=tuple(self.pieces),
            content=base64.b64encode(self.waiting.read()).decode(),
            rows=self.rows,
            unencoded=self.unencoded,
            oldest=datetime.fromtimestamp(self.since, UTC),
        )

    @property
    def size(self) -> int:
        """The size of its pieces and buffered bytes. Rows that are not encoded yet count with their size in memory."""
        held = self._stream.held if self._stream else 0
        return sum(piece.size for piece in self.pieces) + self.waiting.size + held

    @property
    def memory(self) -> int:
        """Its memory in bytes."""
        return self.waiting.size + (self._stream.held + OBJECT_BYTES if self._stream else 0)

    def joins(self, other: BufferedObject) -> bool:
        """Return whether both can be joined. Called before rows are written.

        A whole part may end within a row or a compressed member, so the bytes after it must follow it directly.
        """
        first, second = self._in_order(other)
        return (
            self.path == other.path
            and self.form == other.form
            and not self.form.headed
            and not second.has_whole
            # Buffered bytes come after all pieces, so pieces of the second would separate them from their whole part.
            and not (first.waiting.size and first._ends_in_whole and second.pieces)
        )

    def join(self, other: BufferedObject) -> None:
        """Add the rows of another object that `joins` accepts."""
        first, second = self._in_order(other)
        self.pieces, waiting = first.pieces + second.pieces, ByteQueue()
        waiting.join(first.waiting)
        waiting.join(second.waiting)
        self.waiting = waiting
        self.rows += other.rows
        self.unencoded += other.unencoded
        self.since = min(self.since, other.since)

    @property
    def has_whole(self) -> bool:
        """Whether some of its bytes are in whole parts."""
        return any(piece.level == WHOLE for piece in self.pieces)

    @property
    def _ends_in_whole(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].level == WHOLE

    def _in_order(self, other: BufferedObject) -> tuple[BufferedObject, BufferedObject]:
        """Return both, the one with whole parts first. Smaller pieces begin and end with a row, so they can follow."""
        return (other, self) if other.has_whole and not self.has_whole else (self, other)

    def write(self, rows: pa.RecordBatch, options: FormatOptions) -> int:
        """Add rows; return the number of new encoded bytes, which may include earlier rows."""
        if self._stream is None:
            self._stream = self.form.stream(options, start=self.rows == 0)
        made = self.waiting.add(self._stream.encode(rows))
        self.rows += rows.num_rows
        self.unencoded += rows.nbytes
        return made

    def finish(self) -> int:
        """Encode all rows; return the number of new bytes."""
        if self._stream is None:
            return 0
        made = self.waiting.add(self._stream.finish())
        self._stream = None
        return made

    @property
    def small(self) -> list[StoredPiece]:
        """The pieces after the last whole part. A whole part remains one even if `part_bytes` is increased."""
        count = next((n for n, piece in enumerate(reversed(self.pieces)) if piece.level == WHOLE), len(self.pieces))
        return self.pieces[len(self.pieces) - count :]

    def take_small(self) -> list[StoredPiece]:
        """Remove and return the small pieces."""
        small = self.small
        del self.pieces[len(self.pieces) - len(small) :]
        return small


def merged(levels: Sequence[int]) -> tuple[int, int]:
    """Return how many of the last pieces a new piece absorbs, and the resulting level.

    This works like the carry of a counter: if fifteen pieces of the new one's level precede it, they are merged into
    one piece of the next level. `levels` are those of the small pieces, in order.
    """
    count = level = 0
    while len(levels) - count >= MERGED - 1:
        run = levels[len(levels) - count - (MERGED - 1) : len(levels) - count]
        if any(each > level for each in run):
            break
        count, level = count + MERGED - 1, level + 1
    return count, level


def copied(sizes: Sequence[int], part_bytes: int, smallest: int) -> list[bool]:
    """Plan the composition of an object: which pieces are copied within S3, and which must be read.

    A piece is copied if it is as large as a part, and if the bytes read before it are empty or large enough for a part.
    Read bytes are split into parts of `part_bytes`; S3 accepts none below `smallest`, except for the last.
    """
    plan, read = [], 0
    for size in sizes:
        copy = size >= part_bytes and (read == 0 or read >= smallest)
        read = 0 if copy else (read + size) % part_bytes
        plan.append(copy)
    return plan
