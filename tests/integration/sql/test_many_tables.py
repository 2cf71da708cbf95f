"""One stream into many tables: a column names the table of each row, and an epoch is in all of them or in none."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import (
    CommitRefusedError,
    ConfigurationError,
    ForeignRecordsError,
    OutfallError,
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
)
from outfall.recovery import history
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.sql.test_epochs import STEPS
from tests.integration.support.sql import ON_EACH, UPSERT, Make, Table, mostly_thorough, run

Row = dict[str, Any]

LAYOUT = "(id bigint PRIMARY KEY, name varchar(9))"
MANY: Row = {"table": None, "table_column": "place", "allowed_tables": ["a*", "b"]}
ROUTED = [f"a{number:02d}" for number in range(50)]


@pytest.fixture
def tables(make: Make) -> Table:
    """Tables a0 and a1 with one layout, and b with another one."""
    made = make("CREATE TABLE a0 " + LAYOUT)
    made.run(f"CREATE TABLE a1 {LAYOUT}")
    made.run("CREATE TABLE b (id bigint PRIMARY KEY, name varchar(20), more int)")
    return made


def row(place: Any, number: int, name: str | None = "n", **more: Any) -> Row:
    return {"place": place, "id": number, "name": name, **more}


def ids(target: Table, table: str) -> list[int]:
    return [int(number) for (number,) in target.run(f"SELECT id FROM {table} ORDER BY id")]


def all_ids(target: Table, names: Iterable[str] = ("a0", "a1", "b")) -> list[list[int]]:
    return [ids(target, name) for name in names]


@ON_EACH
def test_each_row_goes_to_the_table_that_it_names(tables: Table, recovery: str) -> None:
    sink = tables.sink(**MANY)
    run(sink, recovery, 0, [row("a0", 1), row("a1", 1), row("b", 1)], [row("a0", 2), row("b", 2)])
    run(sink, recovery, 1, [row("a1", 2)])
    assert all_ids(tables) == [[1, 2], [1, 2], [1, 2]]
    first, second = (list(epoch.tables.values()) for epoch in history(recovery))
    assert (first, second, [epoch.table_count for epoch in history(recovery)]) == ([2, 2, 1], [1], [3, 1])
    assert tables.attempts() == 0
    # One staging table for a0 and a1, whose columns are the same.
    assert [tables.count(name) for name in tables.tables("staging%")] == [0, 0]


@ON_EACH
def test_names_are_those_of_the_option_table(tables: Table, recovery: str) -> None:
    quote = tables.quote
    tables.run(f"CREATE TABLE {quote}a %s;{quote} {LAYOUT}")
    sink = tables.sink(**MANY)
    quoted = f"{quote}a0{quote}"
    run(sink, recovery, 0, [row("a0", 1), row(quoted, 2)], [row(quoted, 3), row(f"{quote}a %s;{quote}", 4)])
    assert (ids(tables, "a0"), ids(tables, f"{quote}a %s;{quote}")) == ([1, 2, 3], [4])


REFUSED = {
    "not allowed": (row("c", 9), "allowed_tables does not allow the table 'c'"),
    "another schema": (row("a0.t", 9), "allowed_tables does not allow the table 'a0.t'"),
    "not there": (row("ax", 9), "There is no table ax"),
    "NULL": (row(None, 9), "Its table is NULL"),
    "no name": (row("a.b.c", 9), "is not the name of a table"),
    "the own table": (row("OWN", 9), "contains Outfall's own records"),
    "too long": (row("a1", 9, "too long for it"), "the table a1 rejects"),
}


def _own(target: Table, given: Row) -> Row:
    return given | {"place": target.own("ledger")} if given["place"] == "OWN" else given


@pytest.mark.parametrize("given", REFUSED)
def test_a_row_whose_table_cannot_be_written_is_named_and_nothing_is_written(
    tables: Table, recovery: str, given: str
) -> None:
    bad, why = REFUSED[given]
    with pytest.raises(OutfallError) as caught:
        run(tables.sink(**MANY), recovery, 0, [row("a0", 1)], [row("b", 2), _own(tables, bad)])
    assert why in str(caught.value)
    assert all_ids(tables) == [[], [], []]


def test_one_bad_table_does_not_stop_the_others_if_there_are_dead_letters(tables: Table, recovery: str) -> None:
    bad = [_own(tables, given) for given, _ in REFUSED.values()]
    sink = tables.sink(**MANY, dead_letter_table="dead")
    run(sink, recovery, 0, [row("a0", 1), *bad], [row("a1", 2)], [row("dead", 7), row("c", 8)])
    assert all_ids(tables) == [[1], [2], []]
    letters = tables.letters("reason")
    assert len(letters) == len(bad) + 2
    assert {letter["place"] for letter, _ in letters} == {given["place"] for given in bad} | {"dead", "c"}
    assert tables.attempts() == 0


def test_rows_that_a_table_rejects_when_they_are_published_are_named_or_set_aside(
    tables: Table, recovery: str, tmp_path: Path
) -> None:
    tables.run("INSERT INTO a1 VALUES (1, 'x')")
    given = [row("a0", 1), row("a1", 1), row("b", 1), row("a1", 2)]
    with pytest.raises(CommitRefusedError, match=r"table a1 rejects the row with key .*id.*: 1.*in any table"):
        run(tables.sink(**MANY), recovery, 0, given)
    assert all_ids(tables) == [[], [1], []]
    # The epoch is recorded, and published as soon as the table takes the row.
    tables.run("DELETE FROM a1")
    assert run(tables.sink(**MANY), recovery, 0, given).skipped
    run(tables.sink(**MANY), recovery, 1, [row("a0", 2)])
    assert all_ids(tables) == [[1, 2], [1, 2], [1]]
    run(tables.sink(**MANY, dead_letter_table="dead"), recovery, 2, [row("a0", 3), row("a1", 1), row("b", 3)])
    assert all_ids(tables) == [[1, 2, 3], [1, 2], [1, 3]]
    assert [(letter["place"], letter["id"]) for letter, _ in tables.letters()] == [("a1", 1)]


def test_upserts_deletes_and_markers_are_per_table(tables: Table, recovery: str, tmp_path: Path) -> None:
    sink = tables.sink(**MANY, **UPSERT, delete_marker="gone")
    first = [row("a0", 1, "x", gone=False), row("a1", 1, "y", gone=False), row("a0", 1, "z", gone=False)]
    run(sink, recovery, 0, first, [row("b", 1, "b", gone=False)])
    run(sink, recovery, 1, [row("a0", 1, None, gone=True), row("a1", 1, "w", gone=False)])
    assert tables.read("SELECT id, name FROM a0") == []
    assert tables.read("SELECT id, name FROM a1") == [(1, "w")]
    assert tables.read("SELECT id, name FROM b") == [(1, "b")]
    gone = tables.sink(**MANY, write_mode="delete", key_columns="id", on_existing="resume")
    run(gone, tmp_path / "deletes", 0, [row("a1", 1), row("a0", 1)])
    assert all_ids(tables) == [[], [], [1]]


@ON_EACH
def test_the_key_of_each_table_is_its_primary_key_unless_key_columns_name_another(
    make: Make, recovery: str, tmp_path: Path
) -> None:
    target = make("CREATE TABLE a0 (id bigint PRIMARY KEY, name varchar(9))")
    target.run("CREATE TABLE a1 (id bigint, name varchar(9), PRIMARY KEY (name))")
    target.run("CREATE TABLE a2 (id bigint, name varchar(9), PRIMARY KEY (id, name))")
    sink = target.sink(**MANY, write_mode="upsert")
    given = [
        row(table, number, name) for table in ("a0", "a1", "a2") for number, name in ((1, "x"), (1, "y"), (2, "y"))
    ]
    run(sink, recovery, 0, given, [row("a0", 1, "z")])
    run(sink, recovery, 1, [row("a1", 7, "x")])
    assert sorted(target.read("SELECT id, name FROM a0")) in ([(1, "y"), (2, "y")], [(1, "z"), (2, "y")])
    assert sorted(target.read("SELECT id, name FROM a1")) == [(2, "y"), (7, "x")]
    assert sorted(target.read("SELECT id, name FROM a2")) == [(1, "x"), (1, "y"), (2, "y")]
    target.run("CREATE TABLE a3 (id bigint, name varchar(9))")
    with pytest.raises(OutfallError, match="3 has no primary key"):
        run(sink, recovery, 2, [row("a3", 1)])
    gone = target.sink(**MANY, write_mode="delete", on_existing="resume", unknown_columns="leave_out_null")
    run(gone, tmp_path / "gone", 0, [row("a0", 2, "any"), row("a1", 2, "x"), row("a2", 1, "x")])
    assert [target.count(name) for name in ("a0", "a1", "a2")] == [1, 1, 2]


def test_changes_leave_tombstones_per_table(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE a0 (id bigint PRIMARY KEY, name varchar(9), lsn bigint)")
    target.run("CREATE TABLE a1 (id bigint PRIMARY KEY, name varchar(9), lsn bigint)")
    keys = {"write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "lsn"}
    sink = target.sink(**MANY, **keys)
    run(sink, recovery, 0, [row("a0", 1, "x", op="c", lsn=5), row("a1", 1, "y", op="c", lsn=5)])
    run(sink, recovery, 1, [row("a0", 1, None, op="d", lsn=7)])
    run(sink, recovery, 2, [row("a0", 1, "late", op="u", lsn=6), row("a1", 1, "new", op="u", lsn=6)])
    assert target.read("SELECT id FROM a0") == []
    assert target.read("SELECT id, name FROM a1") == [(1, "new")]
    assert sorted(target.count(name) for name in target.tables("tombstones%")) == [0, 1]


def test_columns_that_a_table_does_not_have_are_refused_left_out_or_added(
    tables: Table, recovery: str, tmp_path: Path
) -> None:
    given = [row("b", 1, more=5), row("a0", 1, more=None)]
    with pytest.raises(OutfallError, match="no column 'more'"):
        run(tables.sink(**MANY), recovery, 0, given)
    leaving = tables.sink(**MANY, unknown_columns="leave_out_null")
    run(leaving, tmp_path / "leaving", 0, given)
    assert all_ids(tables) == [[1], [], [1]]
    with pytest.raises(OutfallError, match="he table a0 has no column 'more', in which the row has a value"):
        run(leaving, tmp_path / "leaving", 1, [row("a0", 2, more=7)])
    run(
        tables.sink(**MANY, schema_evolution="add_columns", on_existing="resume"),
        tmp_path / "adding",
        0,
        [row("a0", 2, more=7)],
    )
    assert tables.read("SELECT id, more FROM a0 ORDER BY id") == [(1, None), (2, 7)]


def test_tables_are_created_when_rows_name_them(tables: Table, recovery: str) -> None:
    sink = tables.sink(**MANY, **UPSERT, create_table="if_missing")
    run(sink, recovery, 0, [row("anew", 1), row("a0", 1)], [row("anew", 2), row("aother", 1)])
    assert all_ids(tables, ("anew", "a0", "aother")) == [[1, 2], [1], [1]]


@ON_EACH
def test_each_created_table_gets_its_key_and_its_columns(make: Make, recovery: str, tmp_path: Path) -> None:
    target = make("CREATE TABLE b (id bigint PRIMARY KEY, name varchar(9), kept varchar(9))")
    target.run("INSERT INTO b VALUES (1, 'old', 'own')")
    options = MANY | {
        "write_mode": "upsert", "create_table": "if_missing", "schema_evolution": "add_columns",
        "unknown_columns": "leave_out_null", "table_keys": {"a0": ["id", "name"], "a*": "name", "b": "id"},
        "table_columns": {"a*": ["id", "city"], "b": ["name", "more"]},
    }  # fmt: skip
    columns: Row = {"city": None, "more": None}
    texts = dict.fromkeys(("place", "name", "city"), pa.string())
    schema = pa.schema({"id": pa.int64(), "more": pa.int64(), **texts})
    given = [row("a0", 1, "x") | columns, row("a0", 1, "y") | columns, row("a1", 1, "x") | columns | {"city": "Oslo"}]
    run(target.sink(**options), recovery, 0, given, [row("b", 1, "new") | columns | {"more": 7}])
    run(target.sink(**options), recovery, 1, [row("a0", 1, "y") | columns | {"city": "Rome"}])
    assert sorted(target.read("SELECT id, name, city FROM a0")) == [(1, "x", None), (1, "y", "Rome")]
    assert target.read("SELECT name, city FROM a1") == [("x", "Oslo")]
    assert target.read("SELECT id, name, more, kept FROM b") == [(1, "new", 7, "own")]
    with pytest.raises(OutfallError, match="no column 'more', in which the row has a value"):
        run(target.sink(**options), recovery, 2, [row("a1", 1, "x") | columns | {"more": 5}])
    with pytest.raises(ForeignRecordsError, match="the keys of tables were a0: id, name, and are other ones"):
        run(target.sink(**options | {"table_keys": options["table_keys"] | {"a0": "id"}}), recovery, 2, given)
    options["table_keys"] = {"b": "id"}
    with pytest.raises(OutfallError, match=r"new is to be created with no primary key.*name the key in table_keys"):
        run(target.sink(**options), tmp_path / "other", 0, [row("anew", 1) | columns])
    with pytest.raises(ConfigurationError, match="table_keys of 'b' requires the column 'key'"):
        target.sink(**options | {"table_keys": {"b": "key"}}).check_schema(schema)


def test_a_table_gets_its_column_although_another_one_is_like_it(tables: Table, recovery: str) -> None:
    added = {"table_columns": {"a0": "name", "a1": "more"}, "schema_evolution": "add_columns"}
    sink = tables.sink(**MANY, **added, unknown_columns="leave_out_null")
    run(sink, recovery, 0, [row("a0", 1, more=None), row("a1", 1, more=5)])
    assert tables.read("SELECT id, more FROM a1") == [(1, 5)]


def test_a_table_that_was_dropped_is_not_created_again(tables: Table, recovery: str) -> None:
    sink = tables.sink(**MANY, create_table="if_missing")
    run(sink, recovery, 0, [row("a0", 1), row("a1", 1)])
    tables.run("DROP TABLE a0")
    with pytest.raises(TargetLostError, match="the table a0 is missing, but this query has written to it"):
        run(sink, recovery, 1, [row("a1", 2), row("a0", 2)])
    assert ids(tables, "a1") == [1]
    tables.run("CREATE TABLE a0 " + LAYOUT)
    run(sink, recovery, 1, [row("a1", 2), row("a0", 2)])
    assert all_ids(tables, ("a0", "a1")) == [[2], [1, 2]]


@ON_EACH
def test_a_table_that_is_missing_under_its_first_recorded_epoch_is_named(tables: Table, recovery: str) -> None:
    sink, rows = tables.sink(**MANY), [row("a0", 1), row("a1", 1)]
    with crash_at("sql: publishing"):
        run(sink, recovery, 0, rows)
    tables.run("ALTER TABLE a1 RENAME TO z1")
    with pytest.raises(TargetError, match=r"epoch 0\] the table a1 is missing, but its rows are recorded") as raised:
        run(sink, recovery, 0, rows)
    assert raised.value.do == "create it again with the same columns, or rename it back, and start the query again"
    tables.run("CREATE TABLE a1 " + LAYOUT)
    run(sink, recovery, 0, rows)
    assert all_ids(tables, ("a0", "a1")) == [[1], [1]]


def test_what_a_table_holds_is_looked_at_when_rows_first_name_it(tables: Table, recovery: str, tmp_path: Path) -> None:
    tables.run("INSERT INTO b VALUES (7, 'x', 1)")
    strict = tables.sink(**MANY, on_existing="error")
    run(strict, recovery, 0, [row("a0", 1)])
    with pytest.raises(TargetNotEmptyError, match="b holds rows"):
        run(strict, recovery, 1, [row("a0", 2), row("b", 2)])
    assert all_ids(tables) == [[1], [], [7]]
    run(strict, recovery, 1, [row("a0", 2)])
    # Another checkpoint of the same step.
    with pytest.raises(TargetNotEmptyError, match=r"a0 holds rows that step 'sink' wrote under another checkpoint"):
        run(tables.sink(**MANY), tmp_path / "other", 0, [row("a1", 1), row("a0", 3)])
    over = tables.sink(**MANY, on_existing="overwrite")
    run(over, tmp_path / "over", 0, [row("b", 1)])
    run(over, tmp_path / "over", 1, [row("b", 2), row("a0", 9)])
    assert all_ids(tables) == [[9], [], [1, 2]]


@ON_EACH
def test_a_later_table_is_not_emptied_if_that_reaches_rows_of_the_query(tables: Table, recovery: str) -> None:
    tables.run("ALTER TABLE a1 ADD FOREIGN KEY (id) REFERENCES a0 (id) ON DELETE CASCADE")
    tables.run("INSERT INTO a0 VALUES (1, 'x')")
    over = tables.sink(**MANY, on_existing="overwrite")
    run(over, recovery, 0, [row("a1", 1)])
    with pytest.raises(TargetError, match=r"'overwrite', .* the foreign key \S+ of a1 refers to it"):
        run(over, recovery, 1, [row("a0", 2)])
    run(tables.sink(**MANY, on_existing="resume"), recovery, 1, [row("a0", 2)])
    assert all_ids(tables, ("a0", "a1")) == [[1, 2], [1]]


@ON_EACH
def test_an_epoch_is_written_again_if_a_primary_key_changed_under_it(tables: Table, recovery: str) -> None:
    tables.run("CREATE TABLE a2 (id bigint, name varchar(9), PRIMARY KEY (id, name))")
    sink = tables.sink(**MANY, **{**UPSERT, "key_columns": ()})
    with crash_at("after COMMITTING"):
        run(sink, recovery, 0, [row("a2", 1, "x"), row("a2", 1, "y")])
    drop = "DROP CONSTRAINT a2_pkey" if tables.connector == "postgres" else "DROP PRIMARY KEY"
    tables.run(f"ALTER TABLE a2 {drop}, ADD PRIMARY KEY (id)")
    run(sink, recovery, 0, [row("a2", 2)])
    assert ids(tables, "a2") == [2]


def test_a_table_that_is_altered_under_a_recorded_epoch_gets_the_rows_again(tables: Table, recovery: str) -> None:
    local = LocalDriver(tables.sink(**MANY), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    answers = local.run_tasks(ticket, 0, [[row("a0", 1), row("a1", 1)], [row("b", 1)]])
    tables.run("ALTER TABLE a1 DROP COLUMN name")
    with pytest.raises(OutfallError):
        coordinator.finish(ticket, answers)
    assert [ids(tables, name) for name in ("a0", "b")] == [[], []]
    tables.run("ALTER TABLE a1 ADD COLUMN name varchar(4)")
    run(tables.sink(**MANY), recovery, 0, [row("a0", 1), row("a1", 1)], [row("b", 1)])
    assert all_ids(tables) == [[1], [1], [1]]


@pytest.mark.thorough
@ON_EACH
def test_rows_of_an_epoch_that_a_dead_driver_published_leave_staging_with_the_next_clean_up(
    tables: Table, recovery: str
) -> None:
    run(tables.sink(**MANY), recovery, 0, [row("a0", 1), row("b", 1)])
    with crash_at("before COMPLETED"):
        run(tables.sink(**MANY), recovery, 1, [row("a0", 2), row("b", 2)])
    staging = tables.tables("staging%")
    assert sum(map(tables.count, staging)) == 2
    run(tables.sink(**MANY), recovery, 1, [row("a0", 2), row("b", 2)])
    assert all_ids(tables, ["a0", "b"]) == [[1, 2], [1, 2]]
    assert (tables.attempts(), [tables.count(name) for name in staging]) == (0, [0, 0])


def test_the_listed_tables_are_checked_before_the_first_row(tables: Table) -> None:
    sink = tables.sink(table=None, table_column="place", allowed_tables=["a0", "b"])
    columns = {"place": pa.string(), "id": pa.int64(), "name": pa.string()}
    with pytest.raises(ConfigurationError, match="the rows do not fit a0: the table has no column 'more'"):
        sink.check_schema(pa.schema({**columns, "more": pa.int32()}))
    with pytest.raises(ConfigurationError, match="the table column 'place' is bigint, but must be a string"):
        sink.check_schema(pa.schema({**columns, "place": pa.int64()}))
    sink.check_schema(pa.schema(columns))


@contextmanager
def _watching(target: Table, wrong: list[Any]) -> Iterator[None]:
    """Read all tables in one snapshot within the block, and collect what is not in all of them."""
    done = threading.Event()
    query = " UNION ALL ".join(f"SELECT max(id) FROM {name}" for name in ROUTED)

    def watch() -> None:
        with target.connect() as connection, connection.cursor() as cursor:
            while not done.is_set():
                cursor.execute(query)
                found = {newest for (newest,) in cursor.fetchall()}
                connection.rollback()
                if len(found) != 1:
                    wrong.append(found)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


BY_DEFAULT = ["sql: before COMMIT#2"]


@pytest.mark.thorough
@pytest.mark.parametrize("step", mostly_thorough(STEPS, BY_DEFAULT))
def test_a_driver_that_dies_anywhere_leaves_an_epoch_in_all_tables_or_in_none(
    make: Make, recovery: str, step: str
) -> None:
    target = make(f"CREATE TABLE {ROUTED[0]} {LAYOUT}")
    for name in ROUTED[1:]:
        target.run(f"CREATE TABLE {name} {LAYOUT}")
    sink, wrong = target.sink(**MANY), list[Any]()
    with _watching(target, wrong):
        run(sink, recovery, 0, [row(name, 0) for name in ROUTED])
        with crash_at(step) as seen:
            run(sink, recovery, 1, [row(name, 1) for name in ROUTED[:30]], [row(name, 1) for name in ROUTED[30:]])
        assert step.partition("#")[0] in seen
        assert {tuple(ids(target, name)) for name in ROUTED} in ({(0,)}, {(0, 1)})
        run(sink, recovery, 1, [row(name, 1) for name in reversed(ROUTED)])
        run(sink, recovery, 2, [row(name, 2) for name in ROUTED])
    assert {tuple(ids(target, name)) for name in ROUTED} == {(0, 1, 2)}
    assert not wrong
    assert (target.attempts(), [target.count(name) for name in target.tables("staging%")]) == (0, [0])
