"""Changes applied to a table: the newest of each key wins, in whatever order and epochs they come."""

from __future__ import annotations

import itertools
import json
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from outfall.errors import CommitRefusedError, ConfigurationError, OutfallError, TargetError, ValueRefusedError
from outfall.postgres import PostgresSink
from outfall.recovery import history
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target, listening, run
from tests.integration.support.waiting import until

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text NOT NULL CHECK (name <> 'bad'), lsn bigint)"
CHANGES: dict[str, Any] = {
    "write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "lsn",
}  # fmt: skip


def change(op: str | None, number: int | None, name: str | None, lsn: int | None) -> dict[str, Any]:
    return {"op": op, "id": number, "name": name, "lsn": lsn}


def held(target: Target) -> list[tuple[Any, ...]]:
    return target.run("SELECT id, name, lsn FROM t ORDER BY id")


def tombstones(target: Target) -> list[tuple[Any, ...]]:
    """The deleted keys and their sequences."""
    ((name,),) = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tombstones%'")
    return target.run(f'SELECT id, _outfall_sequence FROM outfall."{name}" ORDER BY id')


def test_the_newest_change_of_a_key_wins_within_an_epoch_across_epochs_and_after_a_delete(
    dsn: str, recovery: str
) -> None:
    target = Target(dsn, TABLE)
    sink = target.sink(**CHANGES)
    first = [change("c", 1, "a", 1), change("u", 1, "b", 3), change("u", 1, "x", 2), change("r", 2, "q", 1)]
    counts = run(sink, recovery, 0, first, [change("d", 2, None, 9), change("c", 3, "z", 1)]).counts
    assert held(target) == [(1, "b", 3), (3, "z", 1)]
    assert (counts["rows_changed"], "changes_stale" in counts) == (2, False)
    counts = run(
        sink, recovery, 1, [change("u", 2, "late", 8), change("u", 1, "late", 2), change("c", 4, "n", 4)]
    ).counts
    assert held(target) == [(1, "b", 3), (3, "z", 1), (4, "n", 4)]
    assert (counts["rows_changed"], counts["changes_stale"]) == (1, 2)
    # A delete that is older, one whose key nobody has seen, and a key that returns.
    counts = run(
        sink, recovery, 2, [change("d", 1, None, 2), change("d", 5, None, 7), change("c", 2, "new", 10)]
    ).counts
    assert (counts["rows_changed"], counts["changes_stale"]) == (1, 1)
    counts = run(sink, recovery, 3, [change("u", 5, "late", 6), change("d", 2, None, 11)]).counts
    assert held(target) == [(1, "b", 3), (3, "z", 1), (4, "n", 4)]
    assert (counts["rows_changed"], counts["changes_stale"]) == (1, 1)
    assert tombstones(target) == [(2, 11), (5, 7)]


def test_a_repeated_sequence_changes_nothing_that_is_stored_or_deleted(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 5), change("d", 2, None, 5), change("c", 3, "c", 5)])
    again = [change("u", 1, "other", 5), change("u", 2, "other", 5), change("d", 3, None, 5), change("d", 2, None, 5)]
    counts = run(sink, recovery, 1, again[:3], again[3:] * 0).counts
    assert (held(target), counts["changes_stale"]) == ([(1, "a", 5), (3, "c", 5)], 3)


def test_a_key_that_changes_is_a_delete_and_an_insert(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 1)])
    run(sink, recovery, 1, [change("d", 1, None, 2), change("c", 2, "a", 2)])
    assert held(target) == [(2, "a", 2)]


def test_a_change_without_all_columns_leaves_the_others_as_they_are(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text DEFAULT 'none', lsn bigint)")
    target.run("INSERT INTO t VALUES (1, 'kept', NULL)")  # without a sequence it is older than any change
    run(target.sink(**CHANGES), recovery, 0, [{"op": "u", "id": number, "lsn": 1} for number in (1, 2)])
    assert held(target) == [(1, "kept", 1), (2, "none", 1)]


REFUSED = [
    ("no operation", change(None, 7, "x", 1), "operation is NULL", "Kafka records without a value"),
    ("an unknown operation", change("update_preimage", 7, "x", 1), "none of c, r, u", "translate the operation"),
    (
        "a truncation",
        change("t", None, None, 1),
        "truncation",
        "delete the rows of the table whose sequence is smaller",
    ),
    ("no key", change("u", None, "x", 1), "key column 'id' is NULL", "at its source"),
    ("no sequence", change("D", 7, None, None), "in column 'lsn', is NULL", "give each change a sequence"),
    ("a value that is not there", change("u", 7, "__debezium_unavailable_value", 1), "'name' holds __debez", "REPLICA"),
]


@pytest.mark.parametrize(("row", "reason", "do"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_row_that_is_no_change_is_refused_or_set_aside(
    dsn: str, recovery: str, row: dict[str, Any], reason: str, do: str
) -> None:
    target = Target(dsn, TABLE)
    fine = [change("c", 1, "a", 1), change("d", 2, "__debezium_unavailable_value", 1)]
    with pytest.raises(ValueRefusedError) as caught:
        run(target.sink(**CHANGES), recovery, 0, [*fine, row])
    assert reason in str(caught.value)
    assert do in str(caught.value)
    assert ('{"id": 7}' in str(caught.value)) == (row["id"] is not None)
    assert held(target) == []
    counts = run(target.sink(dead_letter_table="dead", **CHANGES), recovery, 0, [fine[0], row, fine[1]]).counts
    ((letter, told),) = target.run("SELECT row, reason FROM dead")
    assert (
        json.loads(letter) == {name: value for name, value in row.items() if value is not None}
        or json.loads(letter) == row
    )
    assert reason in told
    assert (held(target), tombstones(target), counts["dead_letters"]) == ([(1, "a", 1)], [(2, 1)], 1)


@pytest.mark.parametrize("turned", [False, True])
def test_different_changes_with_one_sequence_are_refused_or_all_set_aside(
    dsn: str, recovery: str, turned: bool
) -> None:
    target = Target(dsn, TABLE)
    alike = [change("c", 1, "same", 4), change("U", 1, "same", 4), change("d", 2, "x", 4), change("D", 2, None, 4)]
    tie = [change("u", 3, "one", 4), change("u", 3, "two", 4), change("u", 3, "one", 4)]
    older = [change("u", 3, "three", 3), change("d", 3, None, 3), change("c", 3, "left", 1), change("c", 3, "left", 2)]
    # A tie that a newer change has settled is none.
    settled = [change("u", 5, "x", 1), change("u", 5, "y", 1), change("u", 5, "z", 2)]
    rows = [*alike, *tie, *older, *settled]
    tasks = [rows[::-1]] if turned else [rows[0::2], rows[1::2]]
    for _ in range(2):
        with pytest.raises(CommitRefusedError, match=r'key \{"id": 3\}.*same sequence.*or set dead_letter_table'):
            run(target.sink(**CHANGES), recovery, 0, *tasks)
    assert held(target) == []
    with pytest.raises(OutfallError, match="more than 4 rows of this epoch were rejected"):
        run(target.sink(dead_letter_table="dead", max_dead_letters=4, **CHANGES), recovery, 0, *tasks)
    run(target.sink(dead_letter_table="dead", **CHANGES), recovery, 0, *tasks)
    assert held(target) == [(1, "same", 4), (3, "left", 2), (5, "z", 2)]
    letters = [json.loads(row) for (row,) in target.run("SELECT row FROM dead")]
    as_text = [json.dumps(row, sort_keys=True) for row in (*letters, *tie, *older[:2])]
    assert sorted(as_text[: len(letters)]) == sorted(as_text[len(letters) :])
    assert tombstones(target) == [(2, 4)]
    assert history(recovery)[0].dead_letters == 5


def test_beside_rows_that_the_table_refuses_the_newest_that_it_takes_wins(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    sink = target.sink(dead_letter_table="dead", **CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 1), change("c", 4, "d", 9), change("d", 5, None, 9)])
    bad = [change("u", number, "bad", 5) for number in (1, 2, 3)]
    rows = [*bad, change("d", 1, None, 3), change("u", 2, "b", 2), change("u", 4, "x", 8), change("u", 5, "bad", 8)]
    counts = run(sink, recovery, 1, rows).counts
    assert (held(target), tombstones(target)) == ([(2, "b", 2), (4, "d", 9)], [(1, 3), (5, 9)])
    assert (counts["dead_letters"], counts["changes_stale"], counts["rows_changed"]) == (3, 2, 2)
    assert target.run("SELECT row::jsonb ->> 'op', count(*) FROM dead GROUP BY 1") == [("u", 3)]


MOMENTS = [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC), datetime(2020, 1, 2, 0, 0, 0, 1, UTC)]
SEQUENCES: list[tuple[str, list[Any]]] = [
    ("bigint", [9, 10, 11]),
    ("numeric", [Decimal("9.5"), Decimal(10), Decimal("10.001")]),
    ("date", [date(999, 1, 1), date(2020, 1, 1), date(2020, 1, 2)]),
    ("timestamp", [moment.replace(tzinfo=None) for moment in MOMENTS]),
    ("timestamptz", MOMENTS),
    ('text COLLATE "C"', ["A", "B", "a"]),
    ("bytea", [b"\x00", b"\x7f", b"\x80"]),
]


@pytest.mark.parametrize(("column", "values"), SEQUENCES, ids=[each[0] for each in SEQUENCES])
def test_sequences_are_compared_by_the_type_of_their_column(
    dsn: str, recovery: str, column: str, values: list[Any]
) -> None:
    """In each order of three changes, of which the newest is an update for one key, and a delete for another one."""
    target = Target(dsn, f"CREATE TABLE t (id bigint PRIMARY KEY, name text, lsn {column})")
    driver = LocalDriver(target.sink(**CHANGES), recovery)
    orders = list(itertools.permutations(range(3)))
    for epoch in range(3):
        rows = [
            {"op": "d" if gone and place[epoch] == 2 else "u", "id": 2 * key + gone, "name": str(place[epoch])}
            | {"lsn": values[place[epoch]]}
            for key, place in enumerate(orders)
            for gone in (0, 1)
        ]
        driver.sink.check_schema(pa.RecordBatch.from_pylist(rows).schema)
        driver.run_epoch(epoch, [rows])
    assert target.run("SELECT id, name FROM t ORDER BY id") == [(2 * key, "2") for key in range(len(orders))]


@pytest.mark.parametrize(
    ("column", "kind", "told"),
    [
        ("double precision", pa.float64(), "double cannot be a sequence, because NaN has no place in an order"),
        ("bigint", pa.string(), "may find NaN or infinity: cast it in the query"),
        ("text", pa.string(), "ordered by a collation"),
        ("text[]", pa.list_(pa.string()), "no useful order"),
        (None, pa.string(), 'COLLATE "C"'),
    ],
)
def test_a_column_that_cannot_order_changes_is_refused_before_the_first_row(
    dsn: str, column: str | None, kind: pa.DataType, told: str
) -> None:
    target = Target(dsn, f"CREATE TABLE {'t' if column else 'other'} (id bigint PRIMARY KEY, lsn {column or 'text'})")
    schema = pa.schema([("op", pa.string()), ("id", pa.int64()), ("lsn", kind)])
    with pytest.raises(ConfigurationError) as caught:
        target.sink(create_table="if_missing", **CHANGES).check_schema(schema)
    assert told in str(caught.value)


def test_a_table_without_a_unique_index_and_an_operation_that_is_no_string_are_refused(dsn: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, lsn bigint)")
    schema = pa.schema([("op", pa.string()), ("id", pa.int64()), ("lsn", pa.int64())])
    with pytest.raises(TargetError, match="no unique index on id"):
        target.sink(**CHANGES).check_schema(schema)
    with pytest.raises(ConfigurationError, match="'op' is boolean, but must be a string"):
        target.sink(**CHANGES).check_schema(schema.set(0, pa.field("op", pa.bool_())))


def test_another_query_and_a_new_checkpoint_know_what_was_deleted(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 5), change("c", 2, "b", 5)])
    sink = PostgresSink(dsn, '"public".T', **CHANGES)
    LocalDriver(sink, f"{recovery}/new", step_id="other").run_epoch(
        0, [[change("u", 1, "late", 4), change("d", 2, None, 4)]]
    )
    assert held(target) == [(2, "b", 5)]


def test_overwriting_the_table_forgets_what_was_deleted(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 5), change("c", 2, "b", 5)])
    run(target.sink(on_existing="overwrite", **CHANGES), f"{recovery}/new", 0, [change("c", 1, "anew", 1)])
    assert (held(target), tombstones(target)) == ([(1, "anew", 1)], [])


@pytest.mark.parametrize(("retention", "left"), [("1 hour", [(3, 9)]), (0, [(1, 9), (2, 9), (3, 9)])])
def test_tombstones_are_forgotten_by_the_clock_of_the_server_after_their_retention(
    dsn: str, recovery: str, retention: Any, left: list[tuple[int, int]]
) -> None:
    target = Target(dsn, TABLE)
    sink = target.sink(tombstone_retention=retention, **CHANGES)
    run(sink, recovery, 0, [change("d", number, None, 9) for number in (1, 2)])
    ((name,),) = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tombstones%'")
    target.run(f"UPDATE outfall.\"{name}\" SET _outfall_deleted = now() - interval '61 minutes'")
    run(sink, recovery, 1, [change("d", 3, None, 9)])
    assert tombstones(target) == left


def test_an_epoch_forgets_the_oldest_tombstones_and_a_bounded_number(
    dsn: str, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.sql.tombstones._FORGOTTEN_AT_LEAST", 1)
    target = Target(dsn, TABLE)
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("d", number, None, 9) for number in range(5)])
    ((name,),) = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tombstones%'")
    target.run(f"UPDATE outfall.\"{name}\" SET _outfall_deleted = now() - (20 - id) * interval '1 day'")
    run(sink, recovery, 1, [change("c", 7, "a", 9)])
    assert tombstones(target) == [(3, 9), (4, 9)]


def test_two_queries_that_write_one_table_wait_for_each_other(dsn: str, recovery: str) -> None:
    """A delete that is being published is not passed by an older change of another query."""
    target = Target(dsn, TABLE)
    target.run("INSERT INTO t VALUES (1, 'a', 1)")
    first = threading.local()
    waiting, proceed = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if not getattr(first, "deletes", False):
            return
        first.moves = step == "sql: moving" or getattr(first, "moves", False)
        if step == "sql: before COMMIT" and first.moves and not waiting.is_set():
            waiting.set()
            proceed.wait(60)

    def delete() -> None:
        first.deletes = True
        run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 9)])

    def update() -> None:
        driver = LocalDriver(target.sink(**CHANGES), f"{recovery}/other", step_id="other")
        driver.run_epoch(0, [[change("u", 1, "late", 8)]])

    threads = [threading.Thread(target=delete), threading.Thread(target=update)]
    with listening(hold):
        threads[0].start()
        assert waiting.wait(60)
        threads[1].start()
        until(
            lambda: bool(target.run("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")),
            "the other publication waiting",
            60,
        )
        proceed.set()
        for thread in threads:
            thread.join(60)
    assert (held(target), tombstones(target)) == ([], [(1, 9)])


def test_tombstones_follow_the_types_of_the_table(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id integer PRIMARY KEY, name text, lsn integer)")
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("d", 1, None, 9)])
    target.run("ALTER TABLE t ALTER id TYPE bigint, ALTER lsn TYPE bigint")
    run(sink, recovery, 1, [change("u", 1, "late", 8), change("d", 2**40, None, 2**40)])
    assert (held(target), tombstones(target)) == ([], [(1, 9), (2**40, 2**40)])


def test_deleted_keys_are_compared_by_the_collation_of_their_column(icu_dsn: str, recovery: str) -> None:
    target = Target(icu_dsn, "CREATE TABLE t (id text COLLATE ci PRIMARY KEY, name text, lsn bigint)")
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [{"op": "d", "id": "Å", "name": None, "lsn": 9}])
    run(sink, recovery, 1, [{"op": "u", "id": "å", "name": "late", "lsn": 8}])
    assert held(target) == []


def test_the_table_its_columns_and_the_tombstones_are_created(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE other (id bigint)")
    options = {"create_table": "if_missing", "schema_evolution": "add_columns", **CHANGES}
    for epoch, more in enumerate([{}, {"city": "Oslo"}]):
        driver = LocalDriver(target.sink(**options), recovery)
        rows = [change("c", epoch, "a", 1) | more, change("d", 7, None, 9) | more]
        driver.sink.check_schema(pa.RecordBatch.from_pylist(rows).schema)
        driver.run_epoch(epoch, [rows])
    assert target.run("SELECT * FROM t ORDER BY id") == [(0, "a", 1, None), (1, "a", 1, "Oslo")]
    assert tombstones(target) == [(7, 9)]


def test_where_the_sink_may_create_nothing_a_dba_creates_the_tombstones(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    sink = target.sink(create_staging="never", **CHANGES)
    ddl = sink.ddl()
    target.run("".join(f"{line};" for line in ddl.split(";\n") if "tombstones" not in line and line))
    with pytest.raises(TargetError, match=r"outfall.tombstones_t_\w+ is missing.*PostgresSink.ddl\(\)"):
        run(sink, recovery, 0, [change("d", 1, None, 9)])
    target.run(sink.ddl())
    run(sink, recovery, 0, [change("d", 1, None, 9)])
    assert tombstones(target) == [(1, 9)]


def test_tombstones_of_another_user_without_privileges_are_named(dsn: str, recovery: str, role: str) -> None:
    target = Target(dsn, TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 9)])
    target.run(f"GRANT ALL ON SCHEMA outfall TO {role}; GRANT ALL ON t, outfall.ledger, outfall.attempts TO {role}")
    with pytest.raises(TargetError, match=r"privilege is missing: SELECT.* on outfall.tombstones_t_\w+"):
        PostgresSink(make_conninfo(dsn, user=role), "t", **CHANGES).check_connection()


def test_a_recorded_epoch_is_finished_also_if_the_tombstones_were_dropped(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    with crash_at("after PREPARED"):
        run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 9)])
    ((name,),) = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tombstones%'")
    target.run(f'DROP TABLE outfall."{name}"')
    for epoch, row in enumerate([change("d", 1, None, 9), change("u", 1, "late", 8)]):
        run(target.sink(**CHANGES), recovery, epoch, [row])
    assert (held(target), tombstones(target)) == ([], [(1, 9)])


CHANGED = st.tuples(st.integers(0, 4), st.integers(0, 7))


@pytest.mark.parametrize("examples", [12, pytest.param(400, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("dead", [None, "dead"])
def test_whatever_comes_in_whatever_epochs_the_table_holds_the_newest_change_of_each_key(
    dsn: str, tmp_path: Path, dead: str | None, examples: int
) -> None:
    """Each pair of key and sequence stands for one change; it comes in any epoch, and again in others."""
    number = itertools.count()
    target = Target(dsn, TABLE)

    def meant(key: int, lsn: int) -> dict[str, Any]:
        if (3 * key + 5 * lsn) % 3 == 0:
            return change("d", key, None, lsn)
        return change("u", key, "bad" if dead and (key + lsn) % 4 == 0 else f"{key}/{lsn}", lsn)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(st.lists(CHANGED, max_size=8), min_size=1, max_size=2), min_size=1, max_size=4))
    def check(epochs: list[list[list[tuple[int, int]]]]) -> None:
        target.run("TRUNCATE t")
        for (name,) in target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tombstones%'"):
            target.run(f'TRUNCATE outfall."{name}"')
        place = str(tmp_path / str(next(number)))
        sink = target.sink(dead_letter_table=dead, **CHANGES)
        driver = LocalDriver(sink, place)
        for epoch, tasks in enumerate(epochs):
            driver.run_epoch(epoch, [[meant(*pair) for pair in task] for task in tasks])
        newest: dict[int, int] = {}
        for key, lsn in itertools.chain.from_iterable(itertools.chain.from_iterable(epochs)):
            if meant(key, lsn)["name"] != "bad":
                newest[key] = max(lsn, newest.get(key, lsn))
        rows = [meant(key, lsn) for key, lsn in sorted(newest.items())]
        assert held(target) == [(row["id"], row["name"], row["lsn"]) for row in rows if row["op"] != "d"]

    check()
