"""`outfall doctor` and `outfall gc` on a table: rights that are there or missing, staging that lost attempts left."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.errors import TargetError
from outfall.postgres import PostgresSink
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target
from tests.integration.support.servers import free_port
from tests.integration.support.sql import first, rows, run
from tests.unit.support.command import done, failed, parsed


def options(dsn: str) -> tuple[str, ...]:
    return ("--sink", "postgres", "-o", f"dsn={dsn}", "-o", "table=t", "-o", "on_existing=resume")


def test_rights_that_are_missing_are_named_before_the_first_row(dsn: str, role: str) -> None:
    target = Target(dsn)
    assert "INSERT on t granted" in done("doctor", *options(dsn))
    target.run(f"ALTER ROLE {role} PASSWORD 'geheim'")
    theirs = make_conninfo(dsn, user=role, password="geheim")
    target.run(f"GRANT SELECT ON t TO {role}")
    text = failed("doctor", *options(theirs))
    assert "the privilege is missing: INSERT on t" in text
    assert "GRANT INSERT" in text
    assert "geheim" not in text
    target.run(f"GRANT INSERT ON t TO {role}")
    assert "the privilege is missing: CREATE on the database" in failed("doctor", *options(theirs))
    target.run("CREATE SCHEMA outfall")
    assert "the privilege is missing: USAGE on schema outfall" in failed("doctor", *options(theirs))
    target.run(f"GRANT USAGE, CREATE ON SCHEMA outfall TO {role}")
    assert "CREATE on schema outfall granted" in done("doctor", *options(theirs))


@pytest.mark.parametrize(
    ("options", "rights"),
    first(
        2,
        [
            ({}, "INSERT"),
            ({"on_existing": "error"}, "INSERT, SELECT"),
            ({"on_existing": "overwrite"}, "INSERT, DELETE"),
            ({"offset_columns": "id"}, "INSERT, SELECT"),
            ({"parts": 2}, "INSERT, SELECT"),
            ({"parts": 2, "offset_keys": "ledger"}, "INSERT"),
            ({"write_mode": "upsert", "key_columns": "id"}, "INSERT, UPDATE, SELECT"),
            ({"write_mode": "upsert", "key_columns": "id", "delete_marker": "gone"}, "INSERT, UPDATE, SELECT, DELETE"),
            ({"write_mode": "delete", "key_columns": "id"}, "DELETE, SELECT"),
            (
                {"write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "offset"},
                "INSERT, UPDATE, DELETE, SELECT",
            ),
        ],
    ),
)
def test_all_rights_that_the_options_need_are_asked_for(
    dsn: str, role: str, options: dict[str, Any], rights: str
) -> None:
    target = Target(dsn, "CREATE SCHEMA s; CREATE TABLE s.dead (id bigint)")
    target.run('CREATE TABLE s.t (id bigint PRIMARY KEY, partition_id int, "offset" bigint)')
    target.run(f"CREATE SCHEMA outfall AUTHORIZATION {role}")
    dead: dict[str, Any] = {} if {"offset_columns", "parts"} & set(options) else {"dead_letter_table": "s.dead"}
    sink: Any = PostgresSink(make_conninfo(dsn, user=role), "s.t", **options, **dead)

    def missing(what: str) -> None:
        with pytest.raises(TargetError, match=f"the privilege is missing: {what}"):
            sink.check_connection()

    missing("USAGE on schema s")
    target.run(f"GRANT USAGE ON SCHEMA s TO {role}")
    missing(f"{rights} on s.t")
    target.run(f"GRANT {rights} ON s.t TO {role}")
    if dead:
        missing("INSERT on s.dead")
        target.run(f"GRANT INSERT ON s.dead TO {role}")
    assert f"{rights} on s.t granted" in sink.check_connection()
    if dead and options.get("write_mode") in ("upsert", "changes"):
        target.run(f'REVOKE TEMPORARY ON DATABASE "{conninfo_to_dict(dsn)["dbname"]}" FROM PUBLIC')
        missing("TEMPORARY on the database")


UPSERT = {"write_mode": "upsert", "key_columns": "id"}
UNREADY: list[tuple[dict[str, Any], str, str]] = [
    ({}, "DROP TABLE t", "there is no table t"),
    (UPSERT, "", r"t has no unique index on id.*CREATE UNIQUE INDEX"),
    ({"offset_columns": "id"}, "", "t has no unique index on id"),
    (UPSERT | {"order_column": "lsn"}, "", "t has no column 'lsn', which an option names"),
    ({"create_table": "if_missing"}, "DROP TABLE t", "the privilege is missing: CREATE on schema public"),
    ({"create_table": "if_missing", "table": "nowhere.t"}, "", "there is no schema nowhere"),
    ({"dead_letter_table": "dead"}, "", "the privilege is missing: CREATE on schema public"),
    ({"schema_evolution": "add_columns"}, "", "the privilege is missing: ownership of t"),
    ({"create_staging": "never"}, "", r"outfall.ledger or outfall.staging_\w+ is missing.*ddl\(\)"),
    ({"create_staging": "never", "dead_letter_table": "dead"}, "", r"a table for dead letters is missing"),
    ({}, "CREATE TABLE outfall.ledger (x int)", "the privilege is missing: .* on outfall.ledger"),
]


@pytest.mark.parametrize(("given", "before", "what"), first(3, UNREADY))
def test_what_the_first_epoch_would_lack_is_found(
    dsn: str, role: str, given: dict[str, Any], before: str, what: str
) -> None:
    target = Target(dsn)
    target.run(f"GRANT ALL ON t TO {role}; CREATE SCHEMA outfall AUTHORIZATION {role}; {before}")
    theirs = make_conninfo(dsn, user=role)
    if "offset_columns" in given:  # for the Python API only
        with pytest.raises(TargetError, match=what):
            PostgresSink(theirs, "t", **given).check_connection()
        return
    text = failed(
        "doctor", *options(theirs), *(part for name, value in given.items() for part in ("-o", f"{name}={value}"))
    )
    assert re.search(what, text)
    assert "ready for the first epoch" not in text


def test_tables_of_a_dba_are_ready_once_their_privileges_are_granted(dsn: str, role: str) -> None:
    target = Target(dsn)
    given = ("-o", "create_staging=never", "-o", "dead_letter_table=dead", *options(make_conninfo(dsn, user=role)))
    target.run(target.sink(dead_letter_table="dead").ddl())
    target.run(f"GRANT INSERT ON t, dead TO {role}; GRANT USAGE ON SCHEMA outfall TO {role}")
    target.run(f"GRANT ALL ON outfall.ledger, outfall.attempts, outfall.refused TO {role}")
    assert re.search("the privilege is missing: .* on outfall.staging_t_sink", failed("doctor", *given))
    target.run(f"GRANT ALL ON ALL TABLES IN SCHEMA outfall TO {role}")
    assert "ready for the first epoch" in done("doctor", *given)


def test_a_server_that_is_away_is_told_at_once(tmp_path: Path) -> None:
    """With the deadline of a query, which would wait for it. The log is read all the same."""
    port = free_port()
    given = options(f"host=127.0.0.1 port={port} user=u dbname=d")
    started = time.monotonic()
    text = failed("doctor", *given, "--recovery", str(tmp_path))
    assert time.monotonic() - started < 10
    assert re.search(r"failed +connection .*Connection refused", text)
    assert re.search(r"ok +recovery .*no records yet", text)
    assert re.search(r"not checked +target +the server does not respond", text)


def test_staging_of_lost_attempts_is_listed_and_cleared(dsn: str, tmp_path: Path) -> None:
    target, recovery = Target(dsn), str(tmp_path / "rec")
    sink = target.sink(on_existing="resume")
    run(sink, recovery, 0, rows(1, 2))
    with crash_at("after collect"):
        run(sink, recovery, 1, rows(3, 4, 5))
    given = ("gc", recovery, "sink", *options(dsn))
    assert parsed(*given)["leftovers"] == []
    (line,) = parsed(*given, "--take-over")["leftovers"]
    assert "3 rows of attempt" in line
    assert "1 removed" in done(*given, "--take-over", "--yes")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM outfall.attempts").fetchone() == (0,)
    assert len(target.ids()) == 2


pytestmark = pytest.mark.usefixtures("postgres")
