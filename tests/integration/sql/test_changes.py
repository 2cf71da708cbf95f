"""Changes applied to a table: the newest of a key wins, whatever arrives when."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfall.errors import CommitRefusedError, ConfigurationError, OutfallError, TargetError, ValueRefusedError
from outfall.recovery import history
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.support.changes import CHANGES, TABLE, change
from tests.integration.support.sql import ON_EACH, THOROUGH, Make, first, listening, run
from tests.integration.support.waiting import until

pytestmark = ON_EACH

HELD = "id, name, lsn"
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
    ("a key that is not there", change("u", None, "x", 1) | {"id": None}, "key column 'id' is NULL", "at its source"),
]
CHANGED = st.tuples(st.integers(0, 4), st.integers(0, 7))


def test_the_newest_change_of_a_key_wins_within_an_epoch_across_epochs_and_after_a_delete(
    make: Make, recovery: str
) -> None:
    target = make(TABLE)
    sink = target.sink(**CHANGES)
    first = [change("c", 1, "a", 1), change("u", 1, "b", 3), change("u", 1, "x", 2), change("r", 2, "q", 1)]
    counts = run(sink, recovery, 0, first, [change("d", 2, None, 9), change("c", 3, "z", 1)]).counts
    assert target.rows(HELD) == [(1, "b", 3), (3, "z", 1)]
    assert (counts["rows_changed"], "changes_stale" in counts) == (2, False)
    counts = run(
        sink, recovery, 1, [change("u", 2, "late", 8), change("u", 1, "late", 2), change("c", 4, "n", 4)]
    ).counts
    assert target.rows(HELD) == [(1, "b", 3), (3, "z", 1), (4, "n", 4)]
    assert (counts["rows_changed"], counts["changes_stale"]) == (1, 2)
    # A delete that is older, one whose key nobody has seen, and a key that returns.
    counts = run(
        sink, recovery, 2, [change("d", 1, None, 2), change("d", 5, None, 7), change("c", 2, "new", 10)]
    ).counts
    assert (counts["rows_changed"], counts["changes_stale"]) == (1, 1)
    counts = run(sink, recovery, 3, [change("u", 5, "late", 6), change("d", 2, None, 11)]).counts
    assert target.rows(HELD) == [(1, "b", 3), (3, "z", 1), (4, "n", 4)]
    assert (counts["rows_changed"], counts["changes_stale"]) == (1, 1)
    # An older delete is no newer tombstone.
    assert run(sink, recovery, 4, [change("d", 5, None, 2)]).counts["changes_stale"] == 1
    assert target.tombstones() == [(2, 11), (5, 7)]


def test_a_repeated_sequence_changes_nothing_that_is_stored_or_deleted(make: Make, recovery: str) -> None:
    target = make(TABLE)
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 5), change("d", 2, None, 5), change("c", 3, "c", 5)])
    again = [
        change("u", 1, "other", 5),
        change("u", 2, "other", 5),
        change("d", 3, None, 5),
        change("d", 2, None, 5),
    ]
    counts = run(sink, recovery, 1, again[:3], again[3:] * 0).counts
    assert (target.rows(HELD), counts["changes_stale"]) == ([(1, "a", 5), (3, "c", 5)], 3)


@pytest.mark.parametrize("options", [CHANGES, {"write_mode": "upsert", "key_columns": "id", "delete_marker": "gone"}])
def test_values_of_a_delete_that_are_not_of_its_key_are_not_converted(
    make: Make, recovery: str, options: dict[str, Any]
) -> None:
    """Debezium sends '' for columns that are NOT NULL and not in the log."""
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, lsn bigint)")
    postgres = target.connector == "postgres"
    types = "a uuid NOT NULL, b jsonb, c timestamptz" if postgres else "a json NOT NULL, b enum('x'), c set('y')"
    target.run("ALTER TABLE t " + ", ".join(f"ADD COLUMN {each}" for each in types.split(", ")))
    target.run(f"INSERT INTO t (id, a) VALUES (1, {'gen_random_uuid()' if postgres else repr('1')})")
    row: dict[str, Any] = {"id": 1, "a": "", "b": "", "c": "", "lsn": 2}
    row |= {"op": "d"} if options is CHANGES else {"gone": True}
    run(target.sink(**options), recovery, 0, [row])
    assert target.count("t") == 0


def test_rows_of_a_snapshot_come_before_all_changes_with_a_sequence_below_all(make: Make, recovery: str) -> None:
    target = make(TABLE)
    sink = target.sink(**CHANGES)
    with pytest.raises(ValueRefusedError, match=r"coalesce\(lsn, 0\)"):
        run(sink, recovery, 0, [change("r", 1, "a", None)])
    run(sink, f"{recovery}-new", 0, [change("u", 2, "newer", 5), change("d", 3, None, 6)])
    run(sink, f"{recovery}-new", 1, [change("r", number, "of the snapshot", 0) for number in (1, 2, 3)])
    assert target.rows(HELD) == [(1, "of the snapshot", 0), (2, "newer", 5)]


def test_a_key_that_changes_is_a_delete_and_an_insert(make: Make, recovery: str) -> None:
    target = make(TABLE)
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 1)])
    run(sink, recovery, 1, [change("d", 1, None, 2), change("c", 2, "a", 2)])
    assert target.rows(HELD) == [(2, "a", 2)]


def test_a_change_without_all_columns_leaves_the_others_as_they_are(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9) DEFAULT 'none', lsn bigint)")
    # Without a sequence, a row is older than any change.
    target.run("INSERT INTO t VALUES (1, 'kept', NULL), (3, 'gone', NULL)")
    rows = [{"op": "d" if number == 3 else "u", "id": number, "lsn": 1} for number in (1, 2, 3)]
    run(target.sink(**CHANGES), recovery, 0, rows)
    assert target.rows(HELD) == [(1, "kept", 1), (2, "none", 1)]


@pytest.mark.parametrize(
    ("row", "reason", "do"), first(2, [each[1:] for each in REFUSED]), ids=[each[0] for each in REFUSED]
)
def test_a_row_that_is_no_change_is_refused_or_set_aside(
    make: Make, recovery: str, row: dict[str, Any], reason: str, do: str
) -> None:
    target = make(TABLE)
    fine = [change("c", 1, "a", 1), change("d", 2, "__debezium_unavailable_value", 1)]
    with pytest.raises(ValueRefusedError) as caught:
        run(target.sink(**CHANGES), recovery, 0, [*fine, row])
    assert reason in str(caught.value)
    assert do in str(caught.value)
    assert ('{"id": 7}' in str(caught.value)) == (row["id"] is not None)
    assert target.rows(HELD) == []
    counts = run(target.sink(dead_letter_table="dead", **CHANGES), recovery, 0, [fine[0], row, fine[1]]).counts
    ((letter, told),) = target.letters()
    assert letter == {name: value for name, value in row.items() if value is not None} or letter == row
    assert reason in told
    assert (target.rows(HELD), target.tombstones(), counts["dead_letters"]) == ([(1, "a", 1)], [(2, 1)], 1)


@pytest.mark.parametrize("turned", first(1, [False, True]))
def test_different_changes_with_one_sequence_are_refused_or_all_set_aside(
    make: Make, recovery: str, turned: bool
) -> None:
    target = make(TABLE)
    alike = [change("c", 1, "same", 4), change("U", 1, "same", 4), change("d", 2, "x", 4), change("D", 2, None, 4)]
    tie = [change("u", 3, "one", 4), change("u", 3, "two", 4), change("u", 3, "one", 4)]
    older = [
        change("u", 3, "three", 3),
        change("d", 3, None, 3),
        change("c", 3, "left", 1),
        change("c", 3, "left", 2),
    ]
    # A tie that a newer change has settled is none.
    settled = [change("u", 5, "x", 1), change("u", 5, "y", 1), change("u", 5, "z", 2)]
    rows = [*alike, *tie, *older, *settled]
    tasks = [rows[::-1]] if turned else [rows[0::2], rows[1::2]]
    for _ in range(2):
        with pytest.raises(CommitRefusedError, match=r'key \{"id": 3\}.*same sequence.*or set dead_letter_table'):
            run(target.sink(**CHANGES), recovery, 0, *tasks)
    assert target.rows(HELD) == []
    with pytest.raises(OutfallError, match="more than 4 rows of this epoch were rejected"):
        run(target.sink(dead_letter_table="dead", max_dead_letters=4, **CHANGES), recovery, 0, *tasks)
    run(target.sink(dead_letter_table="dead", **CHANGES), recovery, 0, *tasks)
    assert target.rows(HELD) == [(1, "same", 4), (3, "left", 2), (5, "z", 2)]
    letters = [row for row, _ in target.letters()]
    as_text = [json.dumps(row, sort_keys=True) for row in (*letters, *tie, *older[:2])]
    assert sorted(as_text[: len(letters)]) == sorted(as_text[len(letters) :])
    assert target.tombstones() == [(2, 4)]
    assert history(recovery)[0].dead_letters == 5


def test_beside_rows_that_the_table_refuses_the_newest_that_it_takes_wins(make: Make, recovery: str) -> None:
    target = make(TABLE)
    sink = target.sink(dead_letter_table="dead", **CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 1), change("c", 4, "d", 9), change("d", 5, None, 9)])
    bad = [change("u", number, "bad", 5) for number in (1, 2, 3)]
    rows = [*bad, change("d", 1, None, 3), change("u", 2, "b", 2), change("u", 4, "x", 8), change("u", 5, "bad", 8)]
    counts = run(sink, recovery, 1, rows).counts
    assert (target.rows(HELD), target.tombstones()) == ([(2, "b", 2), (4, "d", 9)], [(1, 3), (5, 9)])
    assert (counts["dead_letters"], counts["changes_stale"], counts["rows_changed"]) == (3, 2, 2)
    assert [row["op"] for row, _ in target.letters()] == ["u"] * 3


@pytest.mark.thorough
def test_sequences_are_compared_by_the_type_of_their_column(make: Make, recovery: str) -> None:
    """In each order of three changes. The newest is an update for one key, and a delete for another one."""
    orders = list(itertools.permutations(range(3)))
    for column, values in make(TABLE).sequences:
        target = make(f"CREATE TABLE t (id bigint PRIMARY KEY, name text, lsn {column})")
        driver = LocalDriver(target.sink(**CHANGES), f"{recovery}/{column}")
        for epoch in range(3):
            rows = [
                {"op": "d" if gone and place[epoch] == 2 else "u", "id": 2 * key + gone, "name": str(place[epoch])}
                | {"lsn": values[place[epoch]]}
                for key, place in enumerate(orders)
                for gone in (0, 1)
            ]
            driver.sink.check_schema(pa.RecordBatch.from_pylist(rows).schema)
            driver.run_epoch(epoch, [rows])
        found = target.rows("id, name")
        assert (column, found) == (column, [(2 * key, "2") for key in range(len(orders))])


def test_a_column_that_cannot_order_changes_is_refused_before_the_first_row(make: Make) -> None:
    for column, kind, told in make(TABLE).no_sequences:
        target = make(f"CREATE TABLE {'t' if column else 'other'} (id bigint PRIMARY KEY, lsn {column or 'text'})")
        schema = pa.schema([("op", pa.string()), ("id", pa.int64()), ("lsn", kind)])
        with pytest.raises(ConfigurationError) as caught:
            target.sink(create_table="if_missing", **CHANGES).check_schema(schema)
        assert told in str(caught.value)


def test_a_table_without_a_unique_index_and_an_operation_that_is_no_string_are_refused(make: Make) -> None:
    target = make("CREATE TABLE t (id bigint, lsn bigint)")
    schema = pa.schema([("op", pa.string()), ("id", pa.int64()), ("lsn", pa.int64())])
    with pytest.raises(TargetError, match="no unique index on id"):
        target.sink(**CHANGES).check_schema(schema)
    with pytest.raises(ConfigurationError, match="'op' is boolean, but must be a string"):
        target.sink(**CHANGES).check_schema(schema.set(0, pa.field("op", pa.bool_())))


@pytest.mark.thorough
def test_the_privileges_on_the_table_and_its_tombstones_are_checked(make: Make, recovery: str) -> None:
    sink = make(TABLE).sink(**CHANGES)
    run(sink, recovery, 0, [change("d", 1, None, 5)])
    assert any("INSERT, UPDATE, DELETE, SELECT on t granted" in line for line in sink.check_connection())


def test_another_query_and_a_new_checkpoint_know_what_was_deleted(make: Make, recovery: str) -> None:
    target = make(TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 5), change("c", 2, "b", 5)])
    LocalDriver(target.sink(**CHANGES), f"{recovery}/new", step_id="other").run_epoch(
        0, [[change("u", 1, "late", 4), change("d", 2, None, 4)]]
    )
    assert target.rows(HELD) == [(2, "b", 5)]


def test_overwriting_the_table_forgets_what_was_deleted(make: Make, recovery: str) -> None:
    target = make(TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 5), change("c", 2, "b", 5)])
    run(target.sink(on_existing="overwrite", **CHANGES), f"{recovery}/new", 0, [change("c", 1, "anew", 1)])
    assert (target.rows(HELD), target.tombstones()) == ([(1, "anew", 1)], [])


@pytest.mark.parametrize(("retention", "left"), first(1, [("1 hour", [(3, 9)]), (0, [(1, 9), (2, 9), (3, 9)])]))
def test_tombstones_are_forgotten_by_the_clock_of_the_server_after_their_retention(
    make: Make, recovery: str, retention: Any, left: list[tuple[int, int]]
) -> None:
    target = make(TABLE)
    sink = target.sink(tombstone_retention=retention, **CHANGES)
    run(sink, recovery, 0, [change("d", number, None, 9) for number in (1, 2)])
    target.age_tombstones("61")
    run(sink, recovery, 1, [change("d", 3, None, 9)])
    assert target.tombstones() == left


@pytest.mark.thorough
def test_an_epoch_forgets_the_oldest_tombstones_and_a_bounded_number(
    make: Make, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.sql.tombstones._FORGOTTEN_AT_LEAST", 1)
    target = make(TABLE)
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("d", number, None, 9) for number in range(5)])
    target.age_tombstones("(20 - id) * 1440")
    run(sink, recovery, 1, [change("c", 7, "a", 9)])
    assert target.tombstones() == [(3, 9), (4, 9)]


@pytest.mark.thorough
def test_two_queries_that_write_one_table_wait_for_each_other(make: Make, recovery: str) -> None:
    """A delete that is being published is not passed by an older change of another query."""
    target = make(TABLE)
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
        until(target.has_lock_wait, "the other publication waiting", 60)
        proceed.set()
        for thread in threads:
            thread.join(60)
    assert (target.rows(HELD), target.tombstones()) == ([], [(1, 9)])


@pytest.mark.thorough
def test_tombstones_follow_the_types_of_the_table(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id integer PRIMARY KEY, name text, lsn integer)")
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("d", 1, None, 9)])
    target.retype(id="bigint", lsn="bigint")
    run(sink, recovery, 1, [change("u", 1, "late", 8), change("d", 2**40, None, 2**40)])
    assert (target.rows(HELD), target.tombstones()) == ([], [(1, 9), (2**40, 2**40)])


def test_the_table_its_columns_and_the_tombstones_are_created(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE other (id bigint)")
    options = {"create_table": "if_missing", "schema_evolution": "add_columns", **CHANGES}
    for epoch, more in enumerate([{}, {"city": "Oslo"}]):
        driver = LocalDriver(target.sink(**options), recovery)
        rows = [change("c", epoch, "a", 1) | more, change("d", 7, None, 9) | more]
        driver.sink.check_schema(pa.RecordBatch.from_pylist(rows).schema)
        driver.run_epoch(epoch, [rows])
    assert target.rows() == [(0, "a", 1, None), (1, "a", 1, "Oslo")]
    assert target.tombstones() == [(7, 9)]


def test_where_the_sink_may_create_nothing_a_dba_creates_the_tombstones(make: Make, recovery: str) -> None:
    target = make(TABLE)
    sink = target.sink(create_staging="never", **CHANGES)
    ddl = sink.ddl()
    for statement in ddl.split(";\n"):
        if statement and "tombstones" not in statement:
            target.run(statement)
    with pytest.raises(TargetError, match=r"tombstones_t_\w+ is missing.*Sink.ddl\(\)"):
        run(sink, recovery, 0, [change("d", 1, None, 9)])
    for statement in filter(None, sink.ddl().split(";\n")):
        target.run(statement)
    run(sink, recovery, 0, [change("d", 1, None, 9)])
    assert target.tombstones() == [(1, 9)]


@pytest.mark.thorough
def test_a_recorded_epoch_is_finished_also_if_the_tombstones_were_dropped(make: Make, recovery: str) -> None:
    target = make(TABLE)
    with crash_at("after PREPARED"):
        run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 9)])
    target.run(f"DROP TABLE {target.tombstones_table()}")
    for epoch, row in enumerate([change("d", 1, None, 9), change("u", 1, "late", 8)]):
        run(target.sink(**CHANGES), recovery, epoch, [row])
    assert (target.rows(HELD), target.tombstones()) == ([], [(1, 9)])


@THOROUGH
@pytest.mark.parametrize("dead", [None, "dead"])
def test_whatever_comes_in_whatever_epochs_the_table_holds_the_newest_change_of_each_key(
    make: Make, tmp_path: Path, dead: str | None
) -> None:
    """Each pair of key and sequence stands for one change; it comes in any epoch, and again in others."""
    number = itertools.count()
    made: list[str] = []
    target = make(TABLE)

    def meant(key: int, lsn: int) -> dict[str, Any]:
        if (3 * key + 5 * lsn) % 3 == 0:
            return change("d", key, None, lsn)
        return change("u", key, "bad" if dead and (key + lsn) % 4 == 0 else f"{key}/{lsn}", lsn)

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(st.lists(CHANGED, max_size=8), min_size=1, max_size=2), min_size=1, max_size=4))
    def check(epochs: list[list[list[tuple[int, int]]]]) -> None:
        target.run("DELETE FROM t")
        if made:
            target.run(f"DELETE FROM {target.tombstones_table()}")
        place = str(tmp_path / str(next(number)))
        driver = LocalDriver(target.sink(dead_letter_table=dead, **CHANGES), place)
        made.append(place)
        for epoch, tasks in enumerate(epochs):
            driver.run_epoch(epoch, [[meant(*pair) for pair in task] for task in tasks])
        newest: dict[int, int] = {}
        for key, lsn in itertools.chain.from_iterable(itertools.chain.from_iterable(epochs)):
            if meant(key, lsn)["name"] != "bad":
                newest[key] = max(lsn, newest.get(key, lsn))
        rows = [meant(key, lsn) for key, lsn in sorted(newest.items())]
        assert target.rows(HELD) == [(row["id"], row["name"], row["lsn"]) for row in rows if row["op"] != "d"]

    check()


@pytest.mark.thorough
def test_a_sequence_may_have_any_name_where_a_row_is_rejected(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9), CHECK (name <> 'bad'))")
    target.run(f"ALTER TABLE t ADD COLUMN {target.quote}l%n{target.quote} bigint")
    given = [{"op": "c", "id": number, "name": name, "l%n": 1} for number, name in enumerate(("a", "bad"))]
    run(target.sink(**CHANGES | {"sequence_column": "l%n"}, dead_letter_table="dead"), recovery, 0, given)
    assert (target.rows("id, name"), target.refused_ids()) == ([(0, "a")], [1])
