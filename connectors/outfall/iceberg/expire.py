"""Expiry of snapshots after an epoch. Each snapshot in the metadata makes commits slower."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, ValidatableTableRequirement

KEPT = 5
"""Minimum number of newest snapshots kept per branch."""


class _SameRefs(ValidatableTableRequirement):
    """Asserts that no branch and no tag was created, moved or dropped, where pyiceberg itself compares.

    A REST catalog has no such requirement.
    """

    type: str = "outfall-same-refs"
    refs: dict[str, SnapshotRef]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as pyiceberg's do
        if base_metadata is None or base_metadata.refs != self.refs:
            raise CommitFailedException("Requirement failed: branches or tags have changed")


def expire(table: Table, older_than: timedelta) -> bool:
    """Expire what `to_expire` returns; returns whether there was anything.

    A removed snapshot takes each branch and tag with it that refers to it, also one that another writer has moved back
    to it after the table was loaded. Such a change makes this raise `CommitFailedException`.
    """
    old = to_expire(table.metadata, older_than, time.time())
    if not old:
        return False
    expiry = table.maintenance.expire_snapshots().by_ids(old)
    refs = table.metadata.refs
    required: list[Any] = [
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id}) for name, ref in refs.items()
    ]
    if isinstance(table.catalog, MetastoreCatalog):
        required.append(_SameRefs(refs=refs))
    expiry._requirements = tuple(required)
    expiry.commit()
    return True


def to_expire(metadata: TableMetadata, older_than: timedelta, now: float) -> list[int]:
    """Return the snapshots that are older than a duration and not retained. `now` is in seconds since 1970.

    A branch retains its newest snapshots. Their number is the largest of its own setting, the table's setting and
    `KEPT`. It also retains those younger than its own `max-snapshot-age-ms`. Snapshots of branches and tags are
    retained.
    """
    bound = (now - older_than.total_seconds()) * 1000
    old = {snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.timestamp_ms < bound}
    for ref in metadata.refs.values():
        old.difference_update(_kept(metadata, ref, now * 1000))
    return sorted(old)


def _kept(metadata: TableMetadata, ref: SnapshotRef, now: float) -> Iterator[int]:
    yield ref.snapshot_id
    if ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        return
    least = int(metadata.properties.get("history.expire.min-snapshots-to-keep", 1))
    least = max(KEPT, least, ref.min_snapshots_to_keep or 0)
    youngest = now - (ref.max_snapshot_age_ms or 0)
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = known.get(ref.snapshot_id)
    while snapshot is not None and (least > 0 or snapshot.timestamp_ms > youngest):
        yield snapshot.snapshot_id
        least -= 1
        snapshot = known.get(snapshot.parent_snapshot_id or 0)
