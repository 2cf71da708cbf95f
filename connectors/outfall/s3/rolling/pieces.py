"""Pieces: hidden objects with bytes of objects to be, and the state that names them from epoch to epoch.

Tasks put and read them; the clean-up deletes them once no recorded state names them.
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
"""Pieces lie below it, those of each incarnation in a directory of their own."""

WHOLE = 9
"""The level of a piece that is a part of its object as it is."""

_NAME = re.compile(r"([0-9a-f]{16})/\d{10,}-\d{5,}-g(\d+)-a\d+-[0-9a-f]{16}")


class StoredPiece(BaseModel):
    """A hidden object that holds some bytes of an object to be."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Below `PIECES`; says whose it is, and is never used twice."""
    size: int = Field(ge=1)
    """Bytes."""
    level: int = Field(default=0, ge=0, le=WHOLE)
    """How often its bytes were put together with others; `WHOLE` when they need it no more."""

    @classmethod
    def of(cls, context: WriterInitContext, size: int, level: int) -> Self:
        """Name a piece of an attempt. What is random in it keeps a log that was restored from naming it again."""
        who = f"{context.epoch:010d}-{context.worker_index:05d}-g{context.generation}-a{context.attempt}"
        return cls(name=f"{context.incarnation}/{who}-{secrets.token_hex(8)}", size=size, level=level)


class ObjectState(BaseModel):
    """The rows of one object to be."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Its bucket path."""
    kind: Literal["bytes", "arrow"]
    """Whether its bytes in a row are the object, or streams of Arrow batches that are still to be encoded."""
    encoding: str
    """A digest of how its bytes were made; only bytes made alike go into one object."""
    suffix: str
    """How its key ends."""
    headed: bool = False
    """Whether it begins with a header, so that it cannot follow on others' bytes."""
    pieces: tuple[StoredPiece, ...] = ()
    content: str = Field(default="", repr=False)
    """In Base64 the bytes that come after the pieces."""
    rows: int = Field(ge=1)
    oldest: datetime
    """When the oldest row came."""

    @property
    def tail(self) -> bytes:
        """The bytes that come after the pieces."""
        return base64.b64decode(self.content)


class WriterState(BaseModel):
    """All that one writer keeps. One that keeps nothing has a state too, so that each worker gets its own back."""

    model_config = ConfigDict(frozen=True)

    objects: tuple[ObjectState, ...] = ()

    def held(self) -> BufferedRows:
        """Count the rows."""
        oldest = min((each.oldest for each in self.objects), default=None)
        return BufferedRows(sum(each.rows for each in self.objects), oldest)


def generation_of(name: str, incarnation: str) -> int | None:
    """The generation that put a piece of an incarnation; `None` for a name that is none of its pieces'."""
    match = _NAME.fullmatch(name)
    return int(match[2]) if match is not None and match[1] == incarnation else None


def names_in(states: Iterable[WriterState]) -> set[str]:
    """The names of all pieces that states hold."""
    return {piece.name for state in states for each in state.objects for piece in each.pieces}


class Pieces:
    """The pieces that one attempt puts and reads."""

    def __init__(self, attempt: UploadAttempt) -> None:
        self._attempt = attempt
        self._store = attempt.store
        self._putting: dict[str, Future[None]] = {}

    def put(self, body: bytes, level: int) -> StoredPiece:
        """Store bytes under a new name. They are under way when this returns."""
        self._attempt.touch()
        piece = StoredPiece.of(self._attempt.context, len(body), level)
        reached("s3: putting piece")
        self._putting[piece.name] = self._attempt.senders.send(lambda: self._put(piece, body))
        reached("s3: piece under way")
        return piece

    def wait(self) -> None:
        """Wait until all that was put is safe.

        Raises:
            TransientError, TargetError: it could not be stored.
        """
        for future in self._putting.values():
            future.result()

    def key(self, piece: StoredPiece) -> str:
        """Return a piece's key, once it is there."""
        if piece.name in self._putting:
            self._putting[piece.name].result()
        return key_of(self._store, piece.name)

    def read(self, piece: StoredPiece) -> bytes:
        """Return a piece's bytes.

        Raises:
            TargetLostError: they are gone.
            StaleWriterError: they are gone since this attempt is an old one.
        """
        key = self.key(piece)
        body = self._store.get(key)
        if body is None or len(body) != piece.size:
            self._attempt.refuse_stale(f"{self._store.url(key)} is gone")
            raise piece_lost(self._store.url(key))
        reached("s3: piece read")
        return body

    def _put(self, piece: StoredPiece, body: bytes) -> None:
        self._store.put(key_of(self._store, piece.name), body)


def key_of(store: Store, name: str) -> str:
    """Return the key of a piece."""
    return f"{store.options.root}{PIECES}{name}"
