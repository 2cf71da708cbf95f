"""The bytes of rows that wait, in a form whose pieces need only be put one after the other."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Self

import pyarrow as pa

from outfall.formats import can_grow, one_schema, suffix
from outfall.formats.options import FormatOptions
from outfall.formats.stream import EncodedStream
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
