"""Pieces: hidden objects with the bytes of future objects, and the state that names them from epoch to epoch.

Tasks write and read them. The clean-up deletes them when no recorded state names them.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import BufferedRows, WriterInitContext
from outfall.s3.errors import piece_lost
from outfall.s3.store import Store
from outfall.s3.upload import UploadAttempt
from outfall.storage.names import SIDECAR
from outfall.trace_points import reached

PIECES = f"{SIDECAR}/pieces/"
"""The directory of the pieces, with one subdirectory per incarnation."""

WHOLE = 9
"""The level of a piece that becomes a part of its object unchanged."""

_NAME = re.compile(r"([0-9a-f]{16})/\d{10,}-\d{5,}-g(\d+)-a\d+-[0-9a-f]{16}")


class StoredPiece(BaseModel):
    """A hidden object with some bytes of a future object."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its name below `PIECES`. It identifies the attempt and is never reused."""
    size: int = Field(ge=1)
    """Size in bytes."""
    level: int = Field(default=0, ge=0, le=WHOLE)
    """How often its bytes were merged with others; `WHOLE` if they are never merged again."""

    @classmethod
    def of(cls, context: WriterInitContext, size: int, level: int) -> Self:
        """Create the record of an attempt's piece. Its random suffix prevents reuse after a restore of the log."""
        who = f"{context.epoch:010d}-{context.worker_index:05d}-g{context.generation}-a{context.attempt}"
        return cls(name=f"{context.incarnation}/{who}-{secrets.token_hex(8)}", size=size, level=level)


class ObjectState(BaseModel):
    """The buffered rows of one future object."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Its partition directory."""
    kind: Literal["bytes", "arrow"]
    """Whether the concatenated bytes are the object, or Arrow streams that are encoded later."""
    encoding: str
    """A digest of the form of its bytes. All bytes of an object have the same form."""
    suffix: str
    """The suffix of its key."""
    headed: bool = False
    """Whether it begins with a header, so that it cannot follow other bytes."""
    pieces: tuple[StoredPiece, ...] = ()
    content: str = Field(default="", repr=False)
    """The bytes after the pieces, in Base64."""
    rows: int = Field(ge=1)
    unencoded: int = Field(default=0, ge=0)
    """The size of its rows as Arrow batches in memory, in bytes."""
    oldest: datetime
    """The arrival time of the oldest row."""

    @property
    def tail(self) -> bytes:
        """The bytes after the pieces."""
        return base64.b64decode(self.content)


class WriterState(BaseModel):
    """The state of one writer. A writer without rows has a state too, so that each worker restores its own."""

    model_config = ConfigDict(frozen=True)

    objects: tuple[ObjectState, ...] = ()
    ratio: float | None = Field(default=None, gt=0)
    """Bytes of a Parquet file per byte of its rows as Arrow batches, in the last object that reached `roll_bytes`."""

    def held(self) -> BufferedRows:
        """Return the number of buffered rows and the time of the oldest."""
        oldest = min((each.oldest for each in self.objects), default=None)
        return BufferedRows(sum(each.rows for each in self.objects), oldest)


def generation_of(name: str, incarnation: str) -> int | None:
    """Return the generation of an incarnation's piece; `None` for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[2]) if match is not None and match[1] == incarnation else None


def names_in(states: Iterable[WriterState]) -> set[str]:
    """Return the names of all pieces in some states."""
    return {piece.name for state in states for each in state.objects for piece in each.pieces}


class Pieces:
    """The pieces that one attempt writes and reads."""

    def __init__(self, attempt: UploadAttempt) -> None:
        self._attempt = attempt
        self._store = attempt.store
        self._putting: dict[str, Future[None]] = {}

    def put(self, body: bytes, level: int) -> StoredPiece:
        """Begin to write bytes under a new name."""
        self._attempt.touch()
        piece = StoredPiece.of(self._attempt.context, len(body), level)
        reached("s3: putting piece")
        self._putting[piece.name] = self._attempt.senders.send(lambda: self._put(piece, body))
        reached("s3: piece under way")
        return piece

    def wait(self) -> None:
        """Wait until all pieces are durable; raise `TransientError`, or `TargetError` if S3 rejected one."""
        for future in self._putting.values():
            future.result()

    def key(self, piece: StoredPiece) -> str:
        """Wait until a piece is durable, and return its key."""
        if piece.name in self._putting:
            self._putting[piece.name].result()
        return key_of(self._store, piece.name)

    def read(self, piece: StoredPiece) -> bytes:
        """Return a piece's bytes. If it is missing, raise `StaleWriterError` if stale, else `TargetLostError`."""
        key = self.key(piece)
        body = self._store.get(key)
        if body is None or len(body) != piece.size:
            self._attempt.refuse_stale(f"{self._store.url(key)} is missing")
            raise piece_lost(self._store.url(key))
        reached("s3: piece read")
        return body

    def _put(self, piece: StoredPiece, body: bytes) -> None:
        self._store.put(key_of(self._store, piece.name), body)


def key_of(store: Store, name: str) -> str:
    """Return the key of a piece."""
    return f"{store.options.root}{PIECES}{name}"
