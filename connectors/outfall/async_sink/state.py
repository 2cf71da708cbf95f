"""The buffer as stored state."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from outfall.errors import SerializationError
from outfall.serde import SimpleVersionedSerializer

E = TypeVar("E")


@dataclass(frozen=True)
class BufferedRequests(Generic[E]):
    """Entries that a partition held back, in their order."""

    entries: Sequence[E]
    oldest: datetime | None = None
    """When the oldest of them was written, with its zone; `None` in states of version 1."""


class BufferedRequestsSerializer(SimpleVersionedSerializer[BufferedRequests[E]]):
    """JSON: the entries' bytes in base64, beside the version of their own serializer and the time of the oldest.

    Version 1 had no time.

    Sizes are not stored: they follow from the entry, and the limits may have changed.
    """

    def __init__(self, entries: SimpleVersionedSerializer[E]) -> None:
        """Store each entry with this serializer."""
        self._entries = entries

    @property
    def version(self) -> int:
        return 2

    def serialize(self, value: BufferedRequests[E]) -> bytes:
        encoded = [base64.b64encode(self._entries.serialize(entry)).decode() for entry in value.entries]
        oldest = value.oldest.isoformat() if value.oldest else None
        stored = {"version": self._entries.version, "oldest": oldest, "entries": encoded}
        return json.dumps(stored, separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> BufferedRequests[E]:
        self.check_version(version)
        try:
            stored = json.loads(data)
            written_by = int(stored["version"])
            encoded = [base64.b64decode(text, validate=True) for text in stored["entries"]]
            oldest = datetime.fromisoformat(stored["oldest"]) if version > 1 and stored["oldest"] else None
        except (ValueError, KeyError, TypeError) as error:
            raise SerializationError("a stored buffer is damaged", why=str(error)) from error
        return BufferedRequests([self._entries.deserialize(written_by, item) for item in encoded], oldest)
