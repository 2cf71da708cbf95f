"""Idempotency keys: what names a request, or what it carries (draft-ietf-httpapi-idempotency-key-header-07).

A key may come back only with the same rows. A request of many rows is cut anew by each replay, so its key is random and
dies with it. One row can be named for good: by the user, or by what it says and how often it was said before.
"""

from __future__ import annotations

import hashlib
import uuid

from outfall.contexts import WriterInitContext
from outfall.errors import ValueRefusedError

LONGEST_KEY = 255
"""Characters; receivers keep keys in columns of about that width."""


def fresh_key() -> str:
    """Return a key that nobody has seen: a random UUID, as the draft recommends (§2.2)."""
    return str(uuid.uuid4())


def user_key(text: str, column: str) -> str:
    """Make a key of a user's value: printable ASCII as it is, all else and `%` as percent-encoded UTF-8.

    Different values make different keys.

    Raises:
        ValueRefusedError: it is too long.
    """
    key = "".join(
        character if " " <= character <= "~" and character != "%" else _encoded(character) for character in text
    )
    if len(key) > LONGEST_KEY:
        raise ValueRefusedError(
            f"column {column!r} holds a value that makes an idempotency key of {len(key)} characters",
            why=f"receivers take {LONGEST_KEY}",
            do="take a shorter column, or a hash of this one",
        )
    return key


def header_value(key: str) -> str:
    """Return the header's value: a string of structured fields (RFC 8941 §3.3.3), in quotes."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ContentKeys:
    """Names each record of one task by what it says: the n-th record that says it has the n-th key of it.

    The digest is of (incarnation, step, epoch, method, url, body, n). Equal records are interchangeable, so that it
    does not matter which is the n-th; but all of an epoch must meet in one task, or two would be the first. The sink
    routes them so. A replay of the epoch, cut and ordered in any way, then makes the same keys again, and another epoch
    or another checkpoint makes none of them.

    Memory: some 150 bytes for each record of the task that differs from all others.
    """

    def __init__(self, context: WriterInitContext, method: str) -> None:
        self._start = hashlib.blake2b(digest_size=16, person=b"outfall.http")
        for text in (context.incarnation, context.step_id, str(context.epoch), method):
            self._start.update(_sized(text.encode()))
        self._seen: dict[bytes, int] = {}

    def key(self, url: str, body: bytes) -> str:
        """Return the key of the next record that says this."""
        digest = self._start.copy()
        digest.update(_sized(url.encode()))
        digest.update(_sized(body))
        said = digest.digest()
        n = self._seen.get(said, 0)
        self._seen[said] = n + 1
        return f"{said.hex()}-{n}"


def _sized(data: bytes) -> bytes:
    """Prefixed by its length, so that no two lists of fields run into the same bytes."""
    return len(data).to_bytes(8, "big") + data


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
