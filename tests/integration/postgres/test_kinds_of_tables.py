"""Targets that are more than a plain table: partitioned ones, views, triggers, columns that fill themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, TargetError
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target
from tests.integration.support.sql import mostly_thorough, rows, run

LEAVE_OUT_TWO = """
CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$;
"""


def test_partitions_get_their_rows_and_a_row_without_partition_stops_the_epoch(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    target.run("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    target.run("CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)")
    sink = target.sink(write_mode="upsert", key_columns="id")
    run(sink, recovery, 0, rows(1, 11), rows(2))
    run(sink, recovery, 1, rows(1, 12))
    assert target.run("SELECT id FROM low ORDER BY id") == [(1,), (2,)]
    assert target.run("SELECT id FROM high ORDER BY id") == [(11,), (12,)]
    with pytest.raises(Exception, match='No partition of relation "t" found for row'):
        run(sink, recovery, 2, rows(3, 20))
    assert target.ids() == [1, 2, 11, 12]


def test_rows_that_a_trigger_leaves_out_do_not_take_the_others_with_them(dsn: str, recovery: str) -> None:
    target = Target(dsn)
    target.run(LEAVE_OUT_TWO + "CREATE TRIGGER filter BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leave_out()")
    run(target.sink(), recovery, 0, rows(1, 2, 3))
    run(target.sink(), recovery, 1, rows(4))
    assert target.ids() == [1, 3, 4]
    assert (target.attempts(), target.staged()) == (0, 0)


def test_a_trigger_that_writes_elsewhere_is_not_taken_for_lost_rows(dsn: str, recovery: str) -> None:
    target = Target(dsn)
    target.run("CREATE TABLE seen (id bigint)")
    target.run(
        "CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NULL; END $$;"
        " CREATE TRIGGER away BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION away()"
    )
    run(target.sink(), recovery, 0, rows(1, 2))
    assert target.ids() == []
    assert target.run("SELECT id FROM seen ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("write_mode", mostly_thorough(["append", "upsert", "delete"], ["upsert"]))
def test_a_view_is_written_through(dsn: str, recovery: str, write_mode: str) -> None:
    target = Target(dsn, "CREATE TABLE base (id bigint PRIMARY KEY, name text, more int DEFAULT 7)")
    target.run("CREATE VIEW t AS SELECT id, name FROM base")
    target.run("INSERT INTO base VALUES (9, 'x', 0)")
    keys = {} if write_mode == "append" else {"key_columns": "id"}
    sink = target.sink(write_mode=write_mode, **keys)
    run(sink, recovery, 0, rows(9) if write_mode == "delete" else rows(1, 2))
    run(sink, recovery, 1, rows(5))
    assert target.run("SELECT id, more FROM base ORDER BY id") == (
        [] if write_mode == "delete" else [(1, 7), (2, 7), (5, 7), (9, 0)]
    )


def test_a_view_whose_trigger_leaves_rows_out_gets_the_others(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE base (id bigint, name text)")
    target.run("CREATE VIEW t AS SELECT id, upper(name) AS name FROM base")
    target.run(
        "CREATE FUNCTION put() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id = 2 THEN RETURN NULL; END IF; INSERT INTO base VALUES (NEW.id, NEW.name); RETURN NEW; END $$;"
        " CREATE TRIGGER put INSTEAD OF INSERT ON t FOR EACH ROW EXECUTE FUNCTION put()"
    )
    run(target.sink(), recovery, 0, rows(1, 2, 3))
    assert target.run("SELECT * FROM base ORDER BY id") == [(1, "n1"), (3, "n3")]


BASE = "CREATE TABLE base (id bigint, name text); CREATE VIEW t AS SELECT * FROM base;"
PUT = """
CREATE FUNCTION put() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO base VALUES (NEW.id, NEW.name); RETURN NEW; END $$;
CREATE TRIGGER put INSTEAD OF INSERT ON t FOR EACH ROW EXECUTE FUNCTION put()
"""


@pytest.mark.parametrize(
    ("ddl", "refused"),
    [
        (BASE, "is a view without"),
        (f"{BASE} {PUT}", None),
        ("CREATE TABLE t (id bigint, name text); CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING", "has a rule"),
        ("CREATE TABLE t (id bigint, name text) PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF t DEFAULT", None),
    ],
    ids=["view", "view with a trigger", "rule", "partitioned"],
)
def test_by_parts_what_copy_does_not_write_is_refused_at_the_start(
    dsn: str, recovery: str, ddl: str, refused: str | None
) -> None:
    target = Target(dsn, ddl)
    sink = target.sink(parts=2, offset_keys="ledger")
    driver = LocalDriver(sink, recovery)
    if refused:
        with pytest.raises(ConfigurationError, match=refused):
            driver.coordinator().begin(0)
        return
    driver.run_epoch(0, [[("key", row) for row in rows(1, 2)]])
    assert target.ids() == [1, 2]


def test_by_parts_row_security_is_refused_for_whom_it_holds(dsn: str, role: str, tmp_path: Path) -> None:
    target = Target(dsn)
    target.run(f"GRANT INSERT, SELECT ON t TO {role}; CREATE SCHEMA outfall AUTHORIZATION {role}")
    target.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY all_rows ON t USING (true)")
    options: dict[str, Any] = {"parts": 2, "offset_keys": "ledger"}
    theirs = psycopg.conninfo.make_conninfo(target.dsn, user=role)
    with pytest.raises(ConfigurationError, match="has row security"):
        LocalDriver(target.sink(dsn=theirs, **options), str(tmp_path / "theirs")).coordinator().begin(0)
    run(target.sink(dsn=theirs), str(tmp_path / "epochs"), 0, rows(1))
    run(target.sink(on_existing="resume", **options), str(tmp_path / "owner"), 0, [("key", row) for row in rows(2)])
    assert target.ids() == [1, 2]


def test_columns_that_fill_themselves_are_left_out(dsn: str, recovery: str) -> None:
    target = Target(
        dsn,
        "CREATE TABLE t (no bigint GENERATED ALWAYS AS IDENTITY, at_will bigint GENERATED BY DEFAULT AS IDENTITY,"
        " id bigint, twice bigint GENERATED ALWAYS AS (id * 2) STORED, name text NOT NULL DEFAULT 'nobody')",
    )
    run(target.sink(), recovery, 0, [{"id": 5}])
    run(target.sink(), recovery, 1, [{"id": 6, "at_will": 100, "name": "n"}])
    assert target.run("SELECT * FROM t ORDER BY id") == [(1, 1, 5, 10, "nobody"), (2, 100, 6, 12, "n")]


def wide(columns: int) -> str:
    return f"CREATE TABLE t (id bigint, {', '.join(f'c{number} int' for number in range(columns - 1))})"


@pytest.mark.thorough
def test_a_table_of_1599_columns_is_written(dsn: str, recovery: str) -> None:
    target = Target(dsn, wide(1599))
    row = {"id": 1} | {f"c{number}": number for number in range(1598)}
    run(target.sink(), recovery, 0, [row])
    assert target.run("SELECT * FROM t") == [tuple(row.values())]


def test_a_table_of_1600_columns_is_refused_by_name(dsn: str, recovery: str) -> None:
    """Staging has a column more, which PostgreSQL does not allow."""
    with pytest.raises(TargetError, match="at most 1600 columns"):
        run(Target(dsn, wide(1600)).sink(), recovery, 0, [{"id": 1}])


@pytest.mark.parametrize("step", mostly_thorough(["after PREPARED", "after COMMITTING"], ["after PREPARED"]))
def test_a_table_that_is_altered_while_an_epoch_is_recorded_gets_it_once(dsn: str, recovery: str, step: str) -> None:
    target = Target(dsn)
    with crash_at(step):
        run(target.sink(), recovery, 0, rows(1, 2), rows(3))
    target.run("ALTER TABLE t ALTER COLUMN id TYPE numeric, ADD COLUMN more int DEFAULT 7")
    run(target.sink(), recovery, 0, rows(3, 2, 1))
    run(target.sink(), recovery, 1, rows(4))
    assert target.run("SELECT id::int, more FROM t ORDER BY id") == [(1, 7), (2, 7), (3, 7), (4, 7)]


def test_types_of_rows_are_checked_against_a_view_as_against_a_table(dsn: str) -> None:
    target = Target(dsn, "CREATE TABLE base (id bigint)")
    target.run("CREATE VIEW t AS SELECT id FROM base")
    with pytest.raises(Exception, match="the table has no column 'nam'"):
        target.sink().check_schema(pa.schema({"id": pa.int64(), "nam": pa.string()}))
