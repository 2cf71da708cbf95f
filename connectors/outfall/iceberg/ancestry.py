"""The ancestors of a snapshot, also those that have expired: older metadata files still have them.

Expiry removes snapshots from the metadata, and pyiceberg's expiry also the parent of the oldest one that it leaves.
The metadata that a commit made has the parent of its snapshot, and is in the log of metadata files for as long as the
table property `write.metadata.previous-versions-max` says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot

Read = Callable[[str], TableMetadata | None]
"""Reads a metadata file; returns `None` if it was deleted."""


def ancestors(metadata: TableMetadata, head: Snapshot, read: Read) -> Iterator[Snapshot]:
    """Yield a snapshot of a table and its ancestors, as far as anything is known of them.

    The last one has no parent if the table, or its replacement, begins with it, or if pyiceberg has expired its parent
    and the metadata of that time is gone.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    log = sorted(metadata.metadata_log, key=attrgetter("timestamp_ms"))
    at: Snapshot | None = head
    while at is not None:
        yield at
        if at.parent_snapshot_id not in known:
            former = _as_committed(at, log, read)
            if former is None:
                return
            known = {snapshot.snapshot_id: snapshot for snapshot in former.snapshots}
            at = known[at.snapshot_id]
        at = known.get(at.parent_snapshot_id or 0)


def _as_committed(snapshot: Snapshot, log: list[MetadataLogEntry], read: Read) -> TableMetadata | None:
    """Return the oldest metadata in the log that has a snapshot; `None` if there is none any more."""
    first = bisect_left(log, snapshot.timestamp_ms, key=attrgetter("timestamp_ms"))
    for entry in log[first:]:
        former = read(entry.metadata_file)
        if former is not None and former.snapshot_by_id(snapshot.snapshot_id) is not None:
            return former
    return None


def is_beginning(snapshot: Snapshot) -> bool:
    """Whether a table, or its replacement, begins with a snapshot: it has no other files than those that it added.

    The missing parent alone proves nothing: pyiceberg removes it if it expires the parent.
    """
    summary: Mapping[str, Any] = snapshot.summary or {}
    total, added, deleted = (summary.get(f"{which}-data-files") for which in ("total", "added", "deleted"))
    only_own = total is None or (int(total) == int(added or 0) and not int(deleted or 0))
    return snapshot.parent_snapshot_id is None and only_own
