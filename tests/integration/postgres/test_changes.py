"""Changes applied to a table of PostgreSQL."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from outfall.errors import CommitRefusedError, TargetError, ValueRefusedError
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from tests.integration.postgres.support import Target
from tests.integration.support.changes import CHANGES, TABLE, change
from tests.integration.support.sql import listening, run


def test_a_table_has_the_same_tombstones_however_it_is_spelled(dsn: str, recovery: str) -> None:
    target = Target(dsn, TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 5)])
    sink = PostgresSink(dsn, '"public".T', **CHANGES)
    LocalDriver(sink, f"{recovery}/new", step_id="other").run_epoch(0, [[change("u", 1, "late", 4)]])
    assert (target.run("SELECT * FROM t"), target.tombstones()) == ([], [(1, 5)])


def test_deleted_keys_are_compared_by_the_collation_of_their_column(icu_dsn: str, recovery: str) -> None:
    target = Target(icu_dsn, "CREATE TABLE t (id text COLLATE ci PRIMARY KEY, name text, lsn bigint)")
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [{"op": "d", "id": "Å", "name": None, "lsn": 9}])
    run(sink, recovery, 1, [{"op": "u", "id": "å", "name": "late", "lsn": 8}])
    assert target.run("SELECT * FROM t") == []


def test_an_older_change_brings_no_deleted_row_back_whatever_isolation_the_user_has_by_default(
    dsn: str, recovery: str
) -> None:
    target = Target(dsn, TABLE)
    target.run("INSERT INTO t VALUES (1, 'a', 1)")
    isolated = make_conninfo(dsn, options="-c default_transaction_isolation=repeatable\\ read")
    sink = target.sink(dsn=isolated, **CHANGES)
    driver = LocalDriver(sink, f"{recovery}/other", step_id="other")
    meanwhile = [lambda: run(sink, recovery, 0, [change("d", 1, None, 9)])]

    def delete(step: str) -> None:
        # The transaction of the older change has begun, and waits for no other one yet.
        if step == "sql: publishing" and meanwhile:
            meanwhile.pop()()

    with listening(delete):
        driver.run_epoch(0, [[change("u", 1, "late", 8)]])
    assert (target.rows("id"), target.tombstones()) == ([], [(1, 9)])


def test_another_unique_index_takes_a_value_that_a_delete_gives_back_and_refuses_others(
    dsn: str, recovery: str
) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text UNIQUE, lsn bigint)")
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 1), change("c", 2, "b", 1)])
    run(sink, recovery, 1, [change("c", 3, "a", 2), change("d", 1, None, 2)])
    assert target.rows("id, name, lsn") == [(2, "b", 1), (3, "a", 2)]
    with pytest.raises(CommitRefusedError, match=r'key \{"id": 4\}.*unique constraint'):
        run(sink, recovery, 2, [change("c", 4, "b", 3), change("u", 3, "z", 3)])
    assert target.rows("id, name, lsn") == [(2, "b", 1), (3, "a", 2)]


@pytest.mark.thorough
def test_a_row_that_comes_epochs_before_the_one_it_refers_to_is_set_aside_and_never_outranks_a_newer_change_later(
    dsn: str, recovery: str
) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text, lsn bigint)")
    target.run("CREATE TABLE parents (name text PRIMARY KEY)")
    target.run("ALTER TABLE t ADD FOREIGN KEY (name) REFERENCES parents")
    with pytest.raises(CommitRefusedError, match=r'key \{"id": 1\}.*foreign key'):
        run(target.sink(**CHANGES), f"{recovery}/failed", 0, [change("c", 1, "a", 1)])
    sink = target.sink(**CHANGES, dead_letter_table="letters")
    assert run(sink, recovery, 0, [change("c", 1, "a", 1), change("c", 2, "a", 1)]).counts["dead_letters"] == 2
    target.run("INSERT INTO parents VALUES ('a'), ('b')")
    run(sink, recovery, 1, [change("u", 2, "b", 2)])
    for again in (change("c", 1, "a", 1), change("c", 2, "a", 1)):
        LocalDriver(sink, f"{recovery}/replay", step_id=f"replay-{again['id']}").run_epoch(0, [[again]])
    assert target.rows("id, name, lsn") == [(1, "a", 1), (2, "b", 2)]


SWAPPED = [change("u", 1, "tmp", 2), change("u", 2, "a", 3), change("u", 1, "b", 4)]
UNIQUE = "CREATE TABLE t (id bigint PRIMARY KEY, name text {}, lsn bigint)"
LETTERS = {"dead_letter_table": "letters"}
WAYS = pytest.mark.parametrize("more", [{}, LETTERS], ids=["", "letters"])


@WAYS
@pytest.mark.thorough
def test_values_that_move_on_under_a_second_unique_index_are_applied_in_the_order_of_the_source(
    dsn: str, recovery: str, more: dict[str, str]
) -> None:
    target = Target(dsn, UNIQUE.format("UNIQUE"))
    sink = target.sink(**CHANGES, **more)
    run(sink, recovery, 0, [change("c", 1, "a", 1), change("c", 2, "b", 1), change("c", 5, "e", 1)])
    # Two rows swap, and a chain hands a value on. A row that takes a foreign value is the only one at fault.
    counts = run(sink, recovery, 1, SWAPPED, [change("u", 3, "e", 6), change("u", 5, "free", 5)]).counts
    assert target.rows("id, name, lsn") == [(1, "b", 4), (2, "a", 3), (3, "e", 6), (5, "free", 5)]
    assert "dead_letters" not in counts
    if more:
        counts = run(sink, recovery, 2, [change("u", 7, "e", 8), change("u", 8, "e", 8), change("c", 9, "i", 9)]).counts
        assert (counts["dead_letters"], target.rows("id")[-1]) == (2, (9,))


@WAYS
@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["changes", "upsert"])
def test_rows_that_only_exchange_values_are_not_diverted_and_a_deferrable_constraint_lets_them_be_published(
    dsn: str, recovery: str, more: dict[str, str], mode: str
) -> None:
    target = Target(dsn, UNIQUE.format("CONSTRAINT once UNIQUE"))
    options = CHANGES if mode == "changes" else {"write_mode": "upsert", "key_columns": "id", "order_column": "lsn"}
    sink = target.sink(**options, **more)

    def rows(*changes: dict[str, object]) -> list[dict[str, object]]:
        return [each if mode == "changes" else {k: v for k, v in each.items() if k != "op"} for each in changes]

    run(sink, recovery, 0, rows(change("c", 1, "a", 1), change("c", 2, "b", 1)))
    swapped = rows(change("u", 1, "b", 2), change("u", 2, "a", 2))
    with pytest.raises(CommitRefusedError, match=r"exchanges values.*DEFERRABLE INITIALLY DEFERRED"):
        run(sink, recovery, 1, swapped)
    assert target.rows("id, name") == [(1, "a"), (2, "b")]
    target.run("ALTER TABLE t DROP CONSTRAINT once, ADD CONSTRAINT once UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
    run(sink, recovery, 1, swapped)
    assert target.rows("id, name") == [(1, "b"), (2, "a")]
    if more:
        # Also where another row is at fault, so that rows are moved one by one.
        run(sink, recovery, 2, rows(change("u", 1, "a", 3), change("u", 2, "b", 3), change("u", 3, "b", 3)))
        assert target.rows("id, name") == [(1, "a"), (2, "b")]


@pytest.mark.thorough
def test_a_domain_that_is_not_null_refuses_also_a_delete(dsn: str, recovery: str) -> None:
    target = Target(
        dsn, "CREATE DOMAIN named AS text NOT NULL; CREATE TABLE t (id bigint PRIMARY KEY, name named, lsn bigint)"
    )
    with pytest.raises(ValueRefusedError, match=r"(?i)null"):
        run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 2)])
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, "", 2)])
    assert target.tombstones() == [(1, 2)]


@pytest.mark.thorough
def test_tombstones_of_another_user_without_privileges_are_named(dsn: str, recovery: str, role: str) -> None:
    target = Target(dsn, TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 9)])
    target.run(f"GRANT ALL ON SCHEMA outfall TO {role}; GRANT ALL ON t, outfall.ledger, outfall.attempts TO {role}")
    with pytest.raises(TargetError, match=r"privilege is missing: SELECT.* on outfall.tombstones_t_\w+"):
        PostgresSink(make_conninfo(dsn, user=role), "t", **CHANGES).check_connection()


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["upsert", "changes"])
def test_an_older_row_that_fits_only_after_a_newer_one_of_its_key_does_not_replace_it(
    dsn: str, recovery: str, mode: str
) -> None:
    """Both refer to rows that refer to a later one, so that all are tried again."""
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name bigint REFERENCES t, lsn bigint)")
    given = [(7, 10, 1), (8, 10, 1), (5, 7, 1), (5, 8, 2), (10, 10, 1), (9, 99, 1)]
    rows: list[dict[str, object]] = [{"id": id, "name": name, "lsn": lsn} for id, name, lsn in given]
    options: dict[str, str] = {"write_mode": "upsert", "key_columns": "id"}
    if mode == "changes":
        options, rows = CHANGES, [row | {"op": "u"} for row in rows]
    counts = run(target.sink(**options, **LETTERS), recovery, 0, rows).counts
    assert counts["dead_letters"] == 1
    assert target.rows("id, name") == [(5, 8), (7, 10), (8, 10), (10, 10)]
