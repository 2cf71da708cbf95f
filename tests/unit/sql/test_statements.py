"""Writes by key on SQLite: the statements of any database, which its words complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outfall.capabilities import CommitRequest
from outfall.sql.dialect import StagedRows
from outfall.sql.publish import EpochCommitter
from tests.unit.support.sqlite_tables import SqliteStep

UPSERT = {"write_mode": "upsert", "key_columns": "id"}
ORDERED = UPSERT | {"order_column": "n"}
MARKED = {"delete_marker": "gone"}
CHANGES = {"write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "n"}
LETTERS = {"dead_letter_table": "dead"}

Row = tuple[int, str | None, int | None, Any]
"""The values of a staged row: key, text, order, and delete marker or operation."""


class Keyed(SqliteStep):
    """A table with a column `n` beside its key and its text, and epochs that are published as a driver does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.execute("ALTER TABLE t ADD COLUMN n INT")
        own = [self.tables.staging, self.tables.tombstones, self.tables.dead_letters]
        for statement in [each for table in own if table is not None for each in table.missing_ddl(self.session)]:
            self.execute(statement)

    def publish(self, *attempts: Sequence[Row]) -> CommitRequest[StagedRows]:
        """Publish an epoch of attempts; return the request of the first."""
        requests = []
        own = [f'"{name}"' for name in self.tables.options.own_columns()]
        for stage, rows in enumerate(attempts, 1):
            for number, (key, text, order, mark) in enumerate(rows, 1):
                values = [*[stage, number, mark][: len(own)], key, text, order]
                marks = ", ".join(["%s"] * len(values))
                self.execute(f"INSERT INTO outfall.staging ({', '.join(own)}, id, text, n) VALUES ({marks})", values)
            requests.append(CommitRequest(StagedRows(stage=stage, rows=len(rows), columns=("id", "text", "n"))))
        self.set(epoch=None)
        EpochCommitter(self.tables, self.context).commit(requests)
        self.execute("DELETE FROM outfall.staging")
        return requests[0]

    @property
    def rows(self) -> list[Any]:
        return self.execute("SELECT id, text, n FROM t ORDER BY id")

    @property
    def tombstones(self) -> list[Any]:
        assert self.tables.tombstones is not None
        return self.execute(f"SELECT id, _outfall_sequence FROM {self.tables.tombstones.table.sql} ORDER BY id")


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (UPSERT, [(1, "b", 1), (2, "d", 4), (3, "c", 3)]),
        (ORDERED, [(1, "a", 2), (2, "d", 4), (3, "c", 3)]),
        (UPSERT | {"update_columns": "text"}, [(1, "b", 1), (2, "d", 9), (3, "c", 3)]),
    ],
)
def test_the_last_row_of_a_key_is_written_by_its_order_and_then_by_that_of_writing(
    options: dict[str, Any], left: list[Row]
) -> None:
    step = Keyed(**options)
    step.execute("INSERT INTO t VALUES (2, 'z', 9)" if "update_columns" in options else "SELECT 1")
    step.publish([(1, "a", 2, None), (3, "c", 3, None)], [(1, "b", 1, None), (2, "d", 4, None)])
    assert step.rows == left


def test_an_older_row_replaces_none_of_the_table() -> None:
    step = Keyed(**ORDERED)
    for order in (5, 4, None, 5):
        step.publish([(1, f"n{order}", order, None)])
    assert step.rows == [(1, "n5", 5)]
    step.execute("UPDATE t SET n = NULL")
    step.publish([(1, "x", 1, None)])
    assert step.rows == [(1, "x", 1)]


@pytest.mark.parametrize(("order", "left"), [(1, [(1, "a", 2)]), (2, []), (3, [])])
def test_a_removal_is_one_row_among_those_of_its_key(order: int, left: list[Row]) -> None:
    step = Keyed(**ORDERED, **MARKED)
    step.publish([(1, "a", 2, False), (2, "b", 1, None)])
    step.publish([(1, None, order, True), (2, "c", 2, True), (2, "d", 3, False)])
    assert step.rows == [*left, (2, "d", 3)]


def test_deletes_remove_the_rows_of_their_keys() -> None:
    step = Keyed(write_mode="delete", key_columns="id")
    step.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    # Staging has no number of rows for deletes.
    for number in (1, 3, 3, 9):
        step.execute("INSERT INTO outfall.staging (_outfall_stage, id) VALUES (7, %s)", (number,))
    EpochCommitter(step.tables, step.context).commit([CommitRequest(StagedRows(stage=7, rows=4, columns=("id",)))])
    assert step.rows == [(2, "b", 2)]
    assert step.counts == {"rows_changed": 2}


def test_the_newest_change_of_a_key_wins_in_whatever_order_they_come() -> None:
    step = Keyed(**CHANGES)
    step.publish([(1, "a", 1, "c"), (1, "b", 5, "u"), (2, "c", 2, "C")], [(2, None, 3, "delete"), (1, "d", 4, "u")])
    assert (step.rows, step.tombstones) == ([(1, "b", 5)], [(2, 3)])
    assert step.counts == {"rows_changed": 1}
    step.publish([(1, None, 4, "d"), (2, "e", 2, "u"), (3, "f", 1, "i")])
    assert (step.rows, step.tombstones) == ([(1, "b", 5), (3, "f", 1)], [(2, 3)])
    assert step.counts["changes_stale"] == 2
    step.publish([(1, None, 6, "D"), (2, "g", 4, "u"), (3, "f", 1, "i")])
    assert (step.rows, step.tombstones) == ([(2, "g", 4), (3, "f", 1)], [(1, 6), (2, 3)])
    step.publish([(3, None, 2, "d")])
    assert (step.rows, step.tombstones) == ([(2, "g", 4)], [(1, 6), (2, 3), (3, 2)])


def test_changes_that_no_sequence_orders_are_found_and_the_others_of_their_key_applied() -> None:
    step = Keyed(**CHANGES, **LETTERS)
    step.publish(
        [(1, "a", 2, "c"), (1, "b", 2, "u"), (1, "c", 1, "u")],
        [(2, "d", 1, "c"), (2, "d", 1, "u"), (3, "e", 1, "c"), (3, "f", 1, "u")],
    )
    assert step.rows == [(1, "c", 1), (2, "d", 1)]
    assert step.counts == {"rows_changed": 2, "dead_letters": 4}
    request = Keyed(**CHANGES).publish([(1, "a", 2, "c"), (1, None, 2, "d")])
    assert "same sequence" in str(request.outcome.error)


def test_a_removal_does_not_depend_on_what_the_server_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Keyed(**CHANGES)
    monkeypatch.setattr(step.tables.dialect, "rows_changed", lambda *_: 0)
    step.publish([(1, "a", 1, "c")])
    step.publish([(1, None, 2, "d")])
    assert step.rows == []


def test_columns_may_have_the_words_of_statements_as_names() -> None:
    step = Keyed(**CHANGES, **LETTERS)
    for name in ("alike", "newest", "number", "removed", "rank", "place", "content", "least", "stored", "latest"):
        step.execute(f"ALTER TABLE t ADD COLUMN {name} INT")
        step.execute(f"ALTER TABLE outfall.staging ADD COLUMN {name} INT")
    step.publish([(1, "a", 2, "c"), (1, "b", 2, "u"), (2, "c", 1, "c"), (3, None, 1, "d")])
    assert step.execute("SELECT id, text, n FROM t") == [(2, "c", 1)]


def test_changes_that_the_table_rejects_are_set_aside_and_the_others_applied() -> None:
    step = Keyed(**CHANGES, **LETTERS)
    step.execute("INSERT INTO t VALUES (5, 'z', 1)")
    step.publish([(-1, "a", 1, "c"), (2, "b", 1, "c"), (5, None, 2, "d"), (2, "c", 2, "u")])
    assert (step.rows, step.tombstones) == ([(2, "c", 2)], [(5, 2)])
    assert step.execute("SELECT json_extract(row, '$.id') FROM dead") == [(-1,)]
