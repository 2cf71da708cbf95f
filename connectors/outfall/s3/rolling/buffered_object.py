"""One object to be, in a task: pieces in the bucket, and bytes that are not one yet.

Its bytes are made in a form whose pieces need only be put one after the other.
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
"""Bytes of rows that are written as one Arrow stream: enough that its schema costs little."""


@dataclass(frozen=True)
class Form:
    """How the bytes of an object to be are made. Only bytes of one form go into one object."""

    kind: Literal["bytes", "arrow"]
    """The format's own bytes, whole compressed members included; or streams of Arrow batches, for a format whose files
    cannot be put together (Parquet) and are written once all rows are there."""
    digest: str
    suffix: str
    headed: bool

    @classmethod
    def of(cls, options: FormatOptions, schema: pa.Schema) -> Self:
        """Tell it from the options of the format and the columns."""
        columns = "\n".join(f"{field.name} {field.type} {field.nullable}" for field in schema)
        grows = can_grow(options)
        made = {
            "columns": columns if one_schema(options) else "",
            "options": options.model_dump(mode="json", include=set(FormatOptions.model_fields)) if grows else "arrow",
        }
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:32]
        headed = options.format == "csv" and options.header
        return cls("bytes" if grows else "arrow", digest, suffix(options), headed)

    def stream(self, options: FormatOptions, *, start: bool) -> EncodedStream | ArrowStream:
        """Make what turns batches into such bytes; at the `start` of an object with its header."""
        return EncodedStream(options, start=start) if self.kind == "bytes" else ArrowStream()


class ArrowStream:
    """Writes batches as Arrow's stream format (IPC), compressed: streams that follow on one another."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self.held = 0
        """Bytes of rows that are held back."""

    def encode(self, batch: pa.RecordBatch) -> list[pa.Buffer]:
        """Take rows; return what is ready to be stored."""
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
    """Read the batches of Arrow streams that follow on one another, cut anywhere into `bodies`."""
    source = _Joined(bodies)
    file = pa.PythonFile(source, mode="r")
    while source.more():
        yield from pa.ipc.open_stream(file)


class _Joined(io.RawIOBase):
    """Bodies as one file, read from its beginning to its end; one of them in memory at a time."""

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
"""So many pieces of a level become one of the next, so that there are few, and no byte is written again often."""


class BufferedObject:
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
        self.pieces: list[StoredPiece] = []
        self.waiting = ByteQueue()
        """Bytes that are in no piece."""
        self._stream: EncodedStream | ArrowStream | None = None

    @classmethod
    def restored(cls, held: ObjectState) -> BufferedObject:
        """Go on with a recorded one."""
        growing = cls(held.path, Form(held.kind, held.encoding, held.suffix, held.headed), held.oldest.timestamp())
        growing.rows = held.rows
        growing.pieces = list(held.pieces)
        growing.waiting.put_back(held.tail)
        return growing

    def held(self) -> ObjectState:
        """Return it as it is recorded. What waits is recorded with it."""
        return ObjectState(
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

    def joins(self, other: BufferedObject) -> bool:
        """Whether both can become one. Called before rows are written.

        A whole part ends anywhere in a row or a compressed member, so what was made after it has to follow it.
        """
        first, second = self._in_order(other)
        return (
            self.path == other.path
            and self.form == other.form
            and not self.form.headed
            and not second.has_whole
            # What waits comes after all pieces: it is put off the whole part before it by pieces of the second.
            and not (first.waiting.size and first._ends_in_whole and second.pieces)
        )

    def join(self, other: BufferedObject) -> None:
        """Take the rows of another one, which `joins`."""
        first, second = self._in_order(other)
        self.pieces, waiting = first.pieces + second.pieces, ByteQueue()
        waiting.join(first.waiting)
        waiting.join(second.waiting)
        self.waiting = waiting
        self.rows += other.rows
        self.since = min(self.since, other.since)

    @property
    def has_whole(self) -> bool:
        """Whether whole parts were cut off its bytes."""
        return any(piece.level == WHOLE for piece in self.pieces)

    @property
    def _ends_in_whole(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].level == WHOLE

    def _in_order(self, other: BufferedObject) -> tuple[BufferedObject, BufferedObject]:
        """Both, the one with whole parts first: what is smaller begins and ends with a row, and may stand anywhere."""
        return (other, self) if other.has_whole and not self.has_whole else (self, other)

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

    @property
    def small(self) -> list[StoredPiece]:
        """The pieces after the last whole part. What was one stays one, also when `part_bytes` is larger now."""
        count = next((n for n, piece in enumerate(reversed(self.pieces)) if piece.level == WHOLE), len(self.pieces))
        return self.pieces[len(self.pieces) - count :]

    def take_small(self) -> list[StoredPiece]:
        """Take these pieces out, to read them."""
        small = self.small
        del self.pieces[len(self.pieces) - len(small) :]
        return small


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


def copied(sizes: Sequence[int], part_bytes: int, smallest: int) -> list[bool]:
    """Plan an object of pieces: which become parts within S3, and which have to be read.

    A piece is copied when it is as large as a part, and what was read before it is nothing, or a part for S3.

    Args:
        sizes: of the pieces, in their order.
        part_bytes: into which parts what is read is cut.
        smallest: the smallest part that S3 takes, but for the last.
    """
    plan, read = [], 0
    for size in sizes:
        copy = size >= part_bytes and (read == 0 or read >= smallest)
        read = 0 if copy else (read + size) % part_bytes
        plan.append(copy)
    return plan
