"""Upserts and deletes by epochs, on a real server and without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import TargetError
from outfall.testing import LocalDriver
from tests.integration.support.sql import KEYED, ON_EACH, THOROUGH, UPSERT, Make, Table, first, rows, run
from tests.one_each import one_each

pytestmark = ON_EACH

ORDERED = UPSERT | {"order_column": "version"}
MARKED = ORDERED | {"delete_marker": "gone"}


@pytest.fixture
def keyed_table(make: Make) -> Table:
    return make(KEYED)


def keyed(number: int, name: str | None, version: int | None, gone: bool | None = False) -> dict[str, Any]:
    return {"id": number, "name": name, "version": version, "gone": gone}


def test_upserts_replace_rows_by_their_key(keyed_table: Table, recovery: str) -> None:
    target, sink = keyed_table, keyed_table.sink(**MARKED)
    run(sink, recovery, 0, [keyed(1, "a", 1), keyed(1, "b", 2), keyed(2, "x", 1)])
    assert target.rows() == [(1, "b", 2), (2, "x", 1)]
    run(sink, recovery, 1, [keyed(1, "late", 1)], [keyed(2, "x", 3, gone=True), keyed(3, None, 1)])
    assert target.rows() == [(1, "b", 2), (3, None, 1)]
    run(sink, recovery, 2, [keyed(1, None, 3), keyed(3, "late", 0, gone=True)])
    assert target.rows() == [(1, None, 3), (3, None, 1)]


def test_of_equal_versions_the_later_row_counts_also_a_removal(keyed_table: Table, recovery: str) -> None:
    target, sink = keyed_table, keyed_table.sink(**MARKED)
    run(sink, recovery, 0, [keyed(1, "a", 1), keyed(1, "b", 1), keyed(2, "x", 1), keyed(2, "x", 1, gone=True)])
    assert target.rows("id, name") == [(1, "b")]
    assert run(sink, recovery, 1, [keyed(1, "c", 1, gone=None)]).counts["rows_changed"] == 1
    assert target.rows("id, name") == [(1, "c")]
    # Two removals, of which one finds a row, an older row, and a row that is removed and inserted again.
    run(sink, recovery, 2, [keyed(3, "y", 1), keyed(4, "z", 5)])
    removals = [keyed(1, "d", 1, gone=True), keyed(2, "x", 9, gone=True), keyed(4, "z", 4)]
    result = run(sink, recovery, 3, [*removals, keyed(3, "y", 2, gone=True), keyed(3, "w", 2)])
    assert target.rows("id, name") == [(3, "w"), (4, "z")]
    assert result.counts["rows_changed"] == 3 + target.counts_given


def test_a_value_without_an_order_is_older_than_any_other(keyed_table: Table, recovery: str) -> None:
    sink = keyed_table.sink(**ORDERED)
    plain = [{"id": 1, "name": name, "version": version} for name, version in (("a", None), ("b", 1), ("c", None))]
    for epoch in (0, 1):
        run(sink, recovery, epoch, plain[: 3 - 2 * epoch])
        assert keyed_table.rows() == [(1, "b", 1)]


def test_the_last_row_of_a_key_counts_where_no_column_orders_them(keyed_table: Table, recovery: str) -> None:
    run(keyed_table.sink(**UPSERT), recovery, 0, [{"id": 1, "name": name, "version": 0} for name in "abc"])
    assert keyed_table.rows("name") == [("c",)]


def test_only_the_columns_that_are_named_are_updated(keyed_table: Table, recovery: str) -> None:
    for epoch, name in enumerate("ab"):
        row = {"id": 1, "name": name, "version": epoch}
        run(keyed_table.sink(**UPSERT, update_columns="name"), recovery, epoch, [row])
    assert keyed_table.rows() == [(1, "b", 0)]


@pytest.mark.parametrize("columns", first(1, ["name", "name, version"]))
def test_a_late_row_is_refused_also_where_few_columns_are_updated(
    keyed_table: Table, recovery: str, columns: str
) -> None:
    sink = keyed_table.sink(**ORDERED, update_columns=columns)
    for epoch, (name, version) in enumerate([("a", 1), ("c", 3), ("b", 2)]):
        run(sink, recovery, epoch, [{"id": 1, "name": name, "version": version}])
    assert keyed_table.rows() == [(1, "c", 3)]


@pytest.mark.parametrize(
    ("options", "dead", "epochs"), first(1, one_each([{"update_columns": "status"}, {}], [None, "dead"], [1, 3]))
)
def test_where_epochs_end_changes_nothing(
    make: Make, recovery: str, options: dict[str, Any], dead: str | None, epochs: int
) -> None:
    """As if each row came alone: what is removed goes, also where its key comes again, and the first row inserts it."""
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, made text, status text, more int, CHECK (status <> 'bad'))")
    target.run("INSERT INTO t (id) VALUES (3), (4), (5), (6); UPDATE t SET made = 'old', status = 'old', more = 5")
    sink = target.sink(**UPSERT, delete_marker="gone", dead_letter_table=dead, **options)
    written = [
        (1, "A", "x", 0), (3, "A", "x", 0), (4, "A", "x", 0), (5, "A", "x", 0), (6, "A", "x", 0), (7, "A", "x", 1),
        (1, "B", "y", 0), (2, "A", "x", 0), (4, None, None, 1), (5, None, None, 1), (6, None, None, 1),
        (7, "B", "y", 0), (2, None, None, 1), (4, "B", "y", 0), (5, "B", "y", 0), (2, "C", "z", 0),
        (4, "C", "z", 0), (7, "C", "z", 0),
    ]  # fmt: skip
    written += [(9, "A", "bad", 0)] if dead else []
    made = [dict(zip(("id", "made", "status", "gone"), row, strict=True)) for row in written]
    made = [row | {"gone": bool(row["gone"])} for row in made]
    each = -(-len(made) // epochs)
    for epoch in range(epochs):
        run(sink, recovery, epoch, made[each * epoch : each * (epoch + 1)])
    first = bool(options)
    assert target.rows() == [
        (1, "A" if first else "B", "y", None), (2, "C", "z", None), (3, "old" if first else "A", "x", 5),
        (4, "B" if first else "C", "z", None), (5, "B", "y", None), (7, "B" if first else "C", "z", None),
    ]  # fmt: skip


@pytest.mark.parametrize("options", first(1, [UPSERT, MARKED]))
def test_an_upsert_takes_the_row_before_one_that_is_refused(make: Make, recovery: str, options: dict[str, Any]) -> None:
    """As if each row had come alone; the deleted one is not brought back by an older version."""
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, name text, version bigint, CHECK (name <> 'bad'))")
    target.run("INSERT INTO t VALUES (3, 'there', 0)")
    written = [
        (1, "a", 1, False), (1, "b", 2, False), (1, "bad", 3, False), (2, "a", 1, False), (4, "bad", 1, False),
        (2, "c", 2, False),
    ]  # fmt: skip
    if options is MARKED:
        written[1], written[2] = written[2], written[1]
        written += [(3, "x", 2, True), (3, "late", 1, False)]
    made = [dict(zip(("id", "name", "version", "gone"), row, strict=True)) for row in written]
    if options is UPSERT:
        made = [{name: value for name, value in row.items() if name != "gone"} for row in made]
    run(target.sink(dead_letter_table="dead", **options), recovery, 0, made)
    there = [] if options is MARKED else [(3, "there", 0)]
    assert target.rows() == [(1, "b", 2), (2, "c", 2), *there]
    letters = [(letter["id"], letter["version"], code) for letter, code in target.letters("code")]
    assert sorted(letters) == [(1, 3, target.codes["check"]), (4, 1, target.codes["check"])]
    assert (target.attempts(), target.staged()) == (0, 0)


def test_a_column_may_have_any_name(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (latest bigint PRIMARY KEY, gone boolean, target text, removed text)")
    sink = target.sink(write_mode="upsert", key_columns="latest", delete_marker="deleted")
    for epoch, deleted in enumerate((False, True)):
        row = {"gone": True, "target": "a", "removed": "b"}
        run(sink, recovery, epoch, [row | {"latest": 1, "deleted": deleted}, row | {"latest": 2, "deleted": False}])
    assert target.rows() == [(2, True, "a", "b")]


def test_rows_of_keys_alone_are_inserted_once(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY)")
    run(target.sink(**UPSERT), recovery, 0, [{"id": 1}, {"id": 1}], [{"id": 2}])
    run(target.sink(**UPSERT), recovery, 1, [{"id": 2}, {"id": 3}])
    assert target.ids() == [1, 2, 3]


def test_deletes_remove_rows_by_their_key(keyed_table: Table, recovery: str) -> None:
    keyed_table.run("INSERT INTO t (id) VALUES (1), (2), (3), (4)")
    sink = keyed_table.sink(write_mode="delete", key_columns="id")
    assert run(sink, recovery, 0, [{"id": 1}, {"id": 1}, {"id": 9}], [{"id": 3}]).counts["rows_changed"] == 2
    assert keyed_table.ids() == [2, 4]


def test_a_delete_that_is_refused_is_a_dead_letter(keyed_table: Table, recovery: str) -> None:
    target = keyed_table
    target.run("CREATE TABLE child (id bigint, FOREIGN KEY (id) REFERENCES t (id))")
    target.run("INSERT INTO t (id) VALUES (1), (2), (3), (4); INSERT INTO child VALUES (2)")
    sink = target.sink(write_mode="delete", key_columns="id", dead_letter_table="dead")
    run(sink, recovery, 0, [{"id": 1}, {"id": 2}], [{"id": 3}])
    assert target.ids() == [2, 4]
    assert target.letters("code") == [({"id": 2}, target.codes["referred to"])]


def test_rows_that_refer_to_others_of_the_epoch_are_written_in_any_order(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, up bigint, FOREIGN KEY (up) REFERENCES t (id))")
    given = [{"id": number, "up": up} for number, up in ((3, 2), (2, 1), (1, None), (5, 4))]
    run(target.sink(dead_letter_table="dead"), recovery, 0, given)
    assert target.ids() == [1, 2, 3]
    assert target.letters("code") == [({"id": 5, "up": 4}, target.codes["foreign key"])]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "others", [pytest.param({}, marks=THOROUGH), {"delete_marker": "gone"}], ids=["the same options", "other options"]
)
def test_two_queries_into_one_table_at_once(keyed_table: Table, tmp_path: Path, others: dict[str, str]) -> None:
    failed: list[BaseException] = []

    def query(first: int, options: dict[str, str]) -> None:
        try:
            # One of them may find the other one's first epoch.
            sink = keyed_table.sink(**UPSERT, on_existing="resume", **options)
            local = LocalDriver(sink, str(tmp_path / str(first)))
            for epoch in range(10):
                made = rows(first + epoch, first + 100 + epoch)
                local.run_epoch(epoch, [[row | dict.fromkeys(options.values(), False) for row in made], []])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=query, args=given) for given in ((0, {}), (1000, others))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert keyed_table.ids() == sorted(first + n for first in (0, 1000, 100, 1100) for n in range(10))


def test_a_table_without_an_index_on_the_key_is_refused_before_the_first_row(make: Make) -> None:
    target = make("CREATE TABLE t (id bigint, name varchar(9), UNIQUE (id, name))")
    with pytest.raises(TargetError, match="no unique index on id"):
        target.sink(**UPSERT).check_connection()
