"""Which histories of a table still contain what a step has committed."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.table import Table

from outfall.iceberg.table import IcebergTable
from outfall.tables.record import TableRecord
from tests.unit.iceberg.test_expire import metadata


def loaded(numbers: range, *, roots: tuple[int, ...] = (1,)) -> IcebergTable:
    """A table with these snapshots; those before have expired. A root has no parent."""
    found = metadata(numbers[-1], {"main": {"snapshot-id": numbers[-1]}})
    kept = [
        snapshot.model_copy(update={"parent_snapshot_id": None}) if snapshot.snapshot_id in roots else snapshot
        for snapshot in found.snapshots
        if snapshot.snapshot_id in numbers
    ]
    nothing: Any = None
    table = Table(("ns", "t"), found.model_copy(update={"snapshots": kept}), "x", nothing, nothing)
    return IcebergTable(table, nothing, "main", {}, "ns.t")


@pytest.mark.parametrize(
    ("numbers", "roots", "gone"),
    [
        (range(1, 9), (1,), None),
        (range(6, 9), (1,), None),
        (range(1, 9), (1, 7), "replaced: its history begins with snapshot 7"),
        (range(5, 9), (5,), None),
        (range(6, 9), (6,), "replaced: its history begins with snapshot 6"),
    ],
    ids=["ancestor", "expired", "replaced", "the first", "replaced and expired"],
)
def test_a_commit_counts_if_it_is_an_ancestor_or_has_expired(
    numbers: range, roots: tuple[int, ...], gone: str | None
) -> None:
    record = TableRecord(incarnation="aa", generation=1, epoch=3, head=5, order=5)
    found = loaded(numbers, roots=roots).left_out(record)
    assert found is None if gone is None else gone in str(found)
