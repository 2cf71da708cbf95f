"""What Iceberg's Java library does to the history of a table, between two epochs and within one.

Each time the query goes on with every row there once, as the JVM counts, or it is refused before the first row.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from outfall.errors import TargetLostError, TransientError
from outfall.iceberg import expire
from tests.peers.support.jvm_iceberg import JvmTable, rows

Deed = Callable[[JvmTable], object]


# --- pyiceberg's own habits that the JVM, or a second query, suffers from


def test_a_query_goes_on_after_others_have_expired_its_snapshot_with_pyiceberg(table: JvmTable) -> None:
    """pyiceberg removes the parent of a snapshot if it expires that parent: the history seems to begin there."""
    table.create()
    slow, busy = table.driver("slow"), table.driver("busy", max_snapshot_age="1 millisecond")
    slow.write(0, rows(1))
    for epoch in range(expire.KEPT + 2):
        busy.write(epoch, rows(100 + epoch))
    assert table.metadata["snapshots"][0].get("parent-snapshot-id") is None
    slow.write(1, rows(2))
    assert table.ids() == [1, 2, *range(100, 100 + expire.KEPT + 2)]


def test_a_replaced_table_is_refused_also_after_its_older_snapshots_have_expired(table: JvmTable) -> None:
    table.create()
    table.driver().write(0, rows(1))
    table.sql("CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT 7L AS id, 'x' AS name")
    table.insert(8)
    table.expire()
    busy = table.driver("busy", max_snapshot_age="1 millisecond")
    for epoch in range(expire.KEPT - 2):
        busy.write(epoch, rows(100 + epoch))
    with pytest.raises(TargetLostError, match="it was replaced"):
        table.driver().write(1, rows(2))
    assert 2 not in table.ids()


RACES: list[tuple[str, Deed]] = [
    ("rolled back", lambda table: table.call("rollback_to_snapshot", snapshot_id=table.snapshots[0])),
    ("tagged", lambda table: table.sql(f"ALTER TABLE {{t}} CREATE TAG kept AS OF VERSION {table.snapshots[0]}")),
]


@pytest.mark.parametrize("deed", [deed for _, deed in RACES], ids=[name for name, _ in RACES])
def test_expiry_takes_no_snapshot_that_the_jvm_has_just_referred_to(
    table: JvmTable, deed: Deed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its choice and its commit; what removes a snapshot removes its branches, also main."""
    table.create()
    for epoch in range(expire.KEPT + 2):
        table.driver().write(epoch, rows(epoch))
    chosen = expire.to_expire

    def choose(*arguments: object) -> list[int]:
        found: list[int] = chosen(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(expire, "to_expire", chosen)
        deed(table)
        assert table.snapshots[0] in found
        return found

    monkeypatch.setattr(expire, "to_expire", choose)
    last = expire.KEPT + 2
    table.driver(max_snapshot_age="1 millisecond").write(last, rows(last))
    refs = table.metadata["refs"]
    assert refs["kept" if "kept" in refs else "main"]["snapshot-id"] == table.snapshots[0]
    assert table.ids() == (list(range(last + 1)) if "kept" in refs else [0])


def test_a_driver_whose_clock_is_behind_does_not_make_the_table_unreadable_for_the_jvm(
    table: JvmTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create()
    table.driver().write(0, rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda now=time.time: now() - 300)
        with pytest.raises(TransientError, match=r"last changed (299|300) seconds after the current time"):
            table.driver(retry_deadline="1 millisecond").write(1, rows(2))
    table.insert(9)
    table.driver().write(1, rows(2))
    assert table.ids() == [1, 2, 9]


def test_a_commit_keeps_the_retention_of_its_branch(table: JvmTable) -> None:
    table.create()
    table.insert(1)
    table.sql("ALTER TABLE {t} CREATE BRANCH ingest RETAIN 7 DAYS WITH SNAPSHOT RETENTION 5 SNAPSHOTS 3 DAYS")
    before = table.metadata["refs"]["ingest"]
    assert len(before) == 5
    table.driver(branch="ingest").write(0, rows(2))
    after = table.metadata["refs"]["ingest"]
    assert {**after, "snapshot-id": 0} == {**before, "snapshot-id": 0}
    assert table.ids("{t}.branch_ingest") == [1, 2]
    assert table.ids() == [1]
