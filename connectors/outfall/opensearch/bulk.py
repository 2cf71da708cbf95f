"""The lines of a bulk request, built column by column, and the meaning of each item of its response."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from outfall.async_sink import ErrorAction
from outfall.formats import FormatOptions
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.strings import concat, literal
from outfall.opensearch.client import PASSING, is_block
from outfall.versioned import KeyedBatch, Version

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
_JSON = JsonlEncoder(FormatOptions(format="jsonl"), pa.schema([]))


def actions(
    places: dict[str, pa.Array], changes: KeyedBatch, version: Version | None, *, creates: bool, removes: bool
) -> pa.Array:
    """Return the lines of each row as bytes.

    Args:
        places: the columns `_index`, `_id` and `routing` as far as there are any.
        changes: the rows.
        version: of this BEGIN; `None` for writes without versions.
        creates: whether a document must be new, as in data streams.
        removes: whether a delete removes the document, instead of storing a tombstone.
    """
    rows, documents = changes.rows.num_rows, changes.rows
    if version is not None:
        constant = {"version": pa.scalar(version.number), "version_type": pa.scalar("external")}
        places = places | {name: pa.repeat(value, rows) for name, value in constant.items()}
        stored = concat(literal(f"{version.token} "), changes.ranks)
        documents = documents.add_column(0, VERSION_FIELD, stored)
    heads = _JSON.objects(pa.record_batch(places))
    upserts = _lines("create" if creates else "index", heads, _JSON.objects(documents))
    if changes.deleted is None:
        return upserts.cast(pa.large_binary())
    if version is None or removes:
        deletes = _lines("delete", heads)
    else:
        now = pa.repeat(pa.scalar(datetime.now(UTC).isoformat(timespec="milliseconds")), rows)
        deletes = _lines("index", heads, _JSON.objects(pa.record_batch({VERSION_FIELD: stored, DELETED_FIELD: now})))
    return changes.chosen(deletes, upserts).cast(pa.large_binary())


def _lines(name: str, heads: pa.Array, *documents: pa.Array) -> pa.Array:
    rest = [piece for document in documents for piece in (document, literal("\n"))]
    return concat(literal(f'{{"{name}":'), heads, literal("}\n"), *rest)


def place_of(action: bytes) -> dict[str, Any]:
    """Return where the document of an action is, for `_mget`."""
    ((_, meta),) = json.loads(action.partition(b"\n")[0]).items()
    return {name: meta[name] for name in ("_index", "_id", "routing") if name in meta}


def if_unchanged(action: bytes, found: dict[str, Any]) -> bytes:
    """Return an action on condition that the document is still the one that was found, instead of by its version."""
    head, _, document = action.partition(b"\n")
    ((name, _),) = json.loads(head).items()
    condition = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
    return json.dumps({name: place_of(action) | condition}, ensure_ascii=False).encode() + b"\n" + document


CONFLICT = 409
"""The status of an item whose document has the version already, or a higher one."""


def action_on(item: dict[str, Any]) -> ErrorAction | None:
    """Return what to do about the item of a response; `None` if it is done."""
    status, error = item["status"], item.get("error")
    if status < 300 or (status == 404 and not error):  # the document to delete does not exist
        return None
    # An index without a primary shard, a full disk (a block for writes), a full queue.
    if status in (CONFLICT, *PASSING) or is_block(error):
        return ErrorAction.RETRY
    return ErrorAction.FATAL if status in (401, 403, 404) else ErrorAction.DEAD_LETTER


def action_on_read(error: Any) -> ErrorAction:
    """Return what to do about a document that `_mget` could not read. Shards that do not answer may do so later."""
    kind = error.get("type") if isinstance(error, dict) else None
    return ErrorAction.FATAL if kind in _LASTING else ErrorAction.RETRY


_LASTING = {"illegal_argument_exception", "index_not_found_exception", "index_closed_exception", "security_exception"}
"""The first one: an alias stands for several indices."""


def reason_of(item: dict[str, Any]) -> str:
    """Return the error of an item in the server's words."""
    error = item.get("error")
    if not isinstance(error, dict):
        return f"status {item.get('status')}"
    cause = (error.get("caused_by") or {}).get("reason")
    return f"{error.get('type')}: {error.get('reason')}{f' ({cause})' if cause else ''}"
