"""The lines of a bulk request, and the meaning of each item of its response."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from outfall.versioned import Version

VERSION_FIELD = "outfall_version"
"""The token and the rank of the row that is stored. The number is the document's `_version`."""
DELETED_FIELD = "outfall_deleted"
"""When a document was deleted, in tombstones."""
FIELDS = {
    "properties": {
        VERSION_FIELD: {"type": "keyword", "index": False, "doc_values": False},
        DELETED_FIELD: {"type": "date"},
    }
}
"""The mapping of these fields."""


@dataclass(frozen=True)
class Place:
    """Where a document is."""

    index: str
    id: str | None
    """`None` for a data stream, which gives ids itself."""
    routing: str | None = None

    def meta(self) -> dict[str, Any]:
        """Return it as the fields of an action."""
        found = {"_index": self.index, "_id": self.id, "routing": self.routing}
        return {name: value for name, value in found.items() if value is not None}


class ItemKind(Enum):
    """What an item of a response means."""

    DONE = "done"
    CONFLICT = "conflict"
    PASSING = "passing"
    AT_FAULT = "at_fault"
    FATAL = "fatal"


def kind_of(item: dict[str, Any]) -> ItemKind:
    """Return what an item of a response means."""
    status, error = item["status"], item.get("error") or {}
    name = error.get("type", "") if isinstance(error, dict) else str(error)
    if status < 300 or (status == 404 and not error):  # the document to delete does not exist
        return ItemKind.DONE
    if status == 409:
        return ItemKind.CONFLICT
    # An index without a primary shard, a full disk (a block for writes), a full queue.
    if status in (429, 500, 502, 503, 504) or name == "cluster_block_exception":
        return ItemKind.PASSING
    return ItemKind.FATAL if status in (401, 403, 404) else ItemKind.AT_FAULT


def reason_of(item: dict[str, Any]) -> str:
    """Return the error of an item in the server's words."""
    error = item.get("error")
    if not isinstance(error, dict):
        return f"status {item['status']}"
    cause = (error.get("caused_by") or {}).get("reason")
    return f"{error.get('type')}: {error.get('reason')}{f' ({cause})' if cause else ''}"


def action(name: str, place: Place, document: bytes | None, version: dict[str, Any]) -> bytes:
    """Return the lines of an action."""
    head = json.dumps({name: place.meta() | version}, ensure_ascii=False).encode()
    return head + b"\n" if document is None else head + b"\n" + document + b"\n"


def with_version(document: bytes, version: Version, rank: bytes) -> bytes:
    """Add the field with the version to a document, a JSON object."""
    field = f'"{VERSION_FIELD}":"{stored_version(version, rank)}"'.encode()
    return b"{" + field + (b"," if document != b"{}" else b"") + document[1:]


def tombstone(version: Version, rank: bytes) -> bytes:
    """Return the document of a deleted row."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({VERSION_FIELD: stored_version(version, rank), DELETED_FIELD: now}).encode()


def stored_version(version: Version, rank: bytes) -> str:
    """Return the content of the field with the version."""
    return f"{version.token} {rank.hex()}"
