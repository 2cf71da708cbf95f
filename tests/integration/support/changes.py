"""Changes to a table of a database: rows of tests, and the options with which a sink applies them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def change(op: str | None, number: int | None, name: str | None, lsn: int | None, **more: Any) -> dict[str, Any]:
    return {"op": op, "id": number, "name": name, "lsn": lsn, **more}


def as_change(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the conformance suite as a change; each third one is a delete, which leaves only a tombstone."""
    gone = row["id"] % 3 == 0
    return {"op": "d" if gone else "c", "id": row["id"], "text": "" if gone else row["text"], "lsn": row["id"]}


TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text NOT NULL CHECK (name <> 'bad'), lsn bigint)"
CHANGES: dict[str, Any] = {
    "write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "lsn",
}  # fmt: skip
MOMENTS = [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC), datetime(2020, 1, 2, 0, 0, 0, 1, UTC)]
