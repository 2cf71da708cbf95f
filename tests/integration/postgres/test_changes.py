"""Changes applied to a table of PostgreSQL."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from outfall.errors import CommitRefusedError, TargetError, ValueRefusedError
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from tests.integration.postgres.support import Target
from tests.integration.support.changes import CHANGES, MOMENTS, TABLE, ChangedTable, ChangesContract, Make, change, run
from tests.integration.support.postgres import empty


class PostgresTable(Target, ChangedTable):
    backticks = False

    def tombstones_table(self) -> str:
        ((name,),) = self.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tombstones%'")
        return f'outfall."{name}"'

    def age(self, minutes: str) -> None:
        self.run(f"UPDATE {self.tombstones_table()} SET _outfall_deleted = now() - ({minutes}) * interval '1 minute'")

    def is_waiting(self) -> bool:
        return bool(self.run("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))

    def widen(self) -> None:
        self.run("ALTER TABLE t ALTER id TYPE bigint, ALTER lsn TYPE bigint")


class TestChanges(ChangesContract):
    sequences = [
        ("bigint", [9, 10, 11]),
        ("numeric", [Decimal("9.5"), Decimal(10), Decimal("10.001")]),
        ("date", [date(999, 1, 1), date(2020, 1, 1), date(2020, 1, 2)]),
        ("timestamp", [moment.replace(tzinfo=None) for moment in MOMENTS]),
        ("timestamptz", MOMENTS),
        ('text COLLATE "C"', ["A", "B", "a"]),
        ("bytea", [b"\x00", b"\x7f", b"\x80"]),
    ]
    no_sequences = [
        ("double precision", pa.float64(), "double cannot be a sequence, because NaN cannot be ordered"),
        ("bigint", pa.string(), "may find NaN or infinity: cast it in the query"),
        ("text", pa.string(), "ordered by a collation"),
        ("text[]", pa.list_(pa.string()), "no useful order"),
        (None, pa.string(), 'COLLATE "C"'),
    ]

    @pytest.fixture
    def make(self, dsn: str) -> Make:
        def made(ddl: str) -> ChangedTable:
            empty(dsn)
            return PostgresTable(dsn, ddl)

        return made


def test_a_table_has_the_same_tombstones_however_it_is_spelled(dsn: str, recovery: str) -> None:
    target = PostgresTable(dsn, TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 5)])
    sink = PostgresSink(dsn, '"public".T', **CHANGES)
    LocalDriver(sink, f"{recovery}/new", step_id="other").run_epoch(0, [[change("u", 1, "late", 4)]])
    assert (target.run("SELECT * FROM t"), target.tombstones()) == ([], [(1, 5)])


def test_deleted_keys_are_compared_by_the_collation_of_their_column(icu_dsn: str, recovery: str) -> None:
    target = PostgresTable(icu_dsn, "CREATE TABLE t (id text COLLATE ci PRIMARY KEY, name text, lsn bigint)")
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [{"op": "d", "id": "Å", "name": None, "lsn": 9}])
    run(sink, recovery, 1, [{"op": "u", "id": "å", "name": "late", "lsn": 8}])
    assert target.run("SELECT * FROM t") == []


def test_another_unique_index_takes_a_value_that_a_delete_gives_back_and_refuses_others(
    dsn: str, recovery: str
) -> None:
    target = PostgresTable(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text UNIQUE, lsn bigint)")
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [change("c", 1, "a", 1), change("c", 2, "b", 1)])
    run(sink, recovery, 1, [change("c", 3, "a", 2), change("d", 1, None, 2)])
    assert target.held() == [(2, "b", 1), (3, "a", 2)]
    with pytest.raises(CommitRefusedError, match=r'key \{"id": 4\}.*unique constraint'):
        run(sink, recovery, 2, [change("c", 4, "b", 3), change("u", 3, "z", 3)])
    assert target.held() == [(2, "b", 1), (3, "a", 2)]


def test_a_domain_that_is_not_null_refuses_also_a_delete(dsn: str, recovery: str) -> None:
    target = PostgresTable(
        dsn, "CREATE DOMAIN named AS text NOT NULL; CREATE TABLE t (id bigint PRIMARY KEY, name named, lsn bigint)"
    )
    with pytest.raises(ValueRefusedError, match=r"(?i)null"):
        run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 2)])
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, "", 2)])
    assert target.tombstones() == [(1, 2)]


def test_tombstones_of_another_user_without_privileges_are_named(dsn: str, recovery: str, role: str) -> None:
    target = PostgresTable(dsn, TABLE)
    run(target.sink(**CHANGES), recovery, 0, [change("d", 1, None, 9)])
    target.run(f"GRANT ALL ON SCHEMA outfall TO {role}; GRANT ALL ON t, outfall.ledger, outfall.attempts TO {role}")
    with pytest.raises(TargetError, match=r"privilege is missing: SELECT.* on outfall.tombstones_t_\w+"):
        PostgresSink(make_conninfo(dsn, user=role), "t", **CHANGES).check_connection()
