"""Pieces in the bucket: put and read by tasks, deleted by the sweep once no record names them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from outfall.errors import TargetError
from outfall.s3.attempt import Attempt
from outfall.s3.failures import piece_lost
from outfall.s3.state import PIECES, Piece, generation_of
from outfall.s3.store import Store
from outfall.trace_points import reached

_AT_ONCE = 1000
"""Keys that S3 deletes in one request."""


class Pieces:
    """The pieces that one attempt puts and reads."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._store = attempt.store
        self._putting: dict[str, Future[None]] = {}

    def put(self, body: bytes, level: int) -> Piece:
        """Store bytes under a new name. They are under way when this returns."""
        self._attempt.touch()
        piece = Piece.of(self._attempt.context, len(body), level)
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

    def key(self, piece: Piece) -> str:
        """Return a piece's key, once it is there."""
        if piece.name in self._putting:
            self._putting[piece.name].result()
        return key_of(self._store, piece.name)

    def read(self, piece: Piece) -> bytes:
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

    def _put(self, piece: Piece, body: bytes) -> None:
        self._store.put(key_of(self._store, piece.name), body)


def key_of(store: Store, name: str) -> str:
    """Return the key of a piece."""
    return f"{store.options.root}{PIECES}{name}"


def dead_pieces(store: Store, incarnation: str, generation: int, live: set[str]) -> list[str]:
    """Return the keys of the pieces of an incarnation that older generations put and that no state holds.

    Args:
        store: the bucket.
        incarnation: whose.
        generation: the first that is spared.
        live: the names that stand in recorded states.
    """
    start = key_of(store, "")
    names = [key.removeprefix(start) for key in store.keys(f"{start}{incarnation}/")]
    return [start + name for name in names if name not in live and _is_before(name, incarnation, generation)]


def delete_pieces(store: Store, incarnation: str, generation: int, live: set[str]) -> int:
    """Delete what `dead_pieces` finds, and return how many there were."""
    dead = dead_pieces(store, incarnation, generation, live)
    if dead:
        reached("s3: deleting pieces")
        delete(store, dead)
    return len(dead)


def delete(store: Store, keys: Sequence[str]) -> None:
    """Delete objects, a thousand at a time.

    Raises:
        TransientError, TargetError: some could not be deleted.
    """
    doing = f"deleting below {store.options.url()}"
    for start in range(0, len(keys), _AT_ONCE):
        # Not quiet: an answer that tells of each key is known to be whole.
        wanted = {"Objects": [{"Key": key} for key in keys[start : start + _AT_ONCE]], "Quiet": False}
        failed = store.call(doing, "delete_objects", Delete=wanted).get("Errors", [])
        if failed:
            raise TargetError(
                f"{doing} failed for {len(failed)} objects, first {failed[0].get('Key')!r}",
                why=f"{failed[0].get('Code')}: {failed[0].get('Message')}",
                do="grant s3:DeleteObject, or delete them by hand",
            )


def _is_before(name: str, incarnation: str, generation: int) -> bool:
    found = generation_of(name, incarnation)
    return found is not None and found < generation
