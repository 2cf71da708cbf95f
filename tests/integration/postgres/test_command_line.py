"""`outfall doctor` and `outfall gc` on a table: rights that are there or missing, staging that lost attempts left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.errors import TargetError
from outfall.postgres import PostgresSink
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target, rows, run
from tests.unit.support.command import done, failed, parsed


def options(dsn: str) -> tuple[str, ...]:
    return ("--sink", "postgres", "-o", f"dsn={dsn}", "-o", "table=t", "-o", "on_existing=resume")


def test_rights_that_are_missing_are_named_before_the_first_row(dsn: str) -> None:
    target = Target(dsn)
    assert "INSERT on t granted" in done("doctor", *options(dsn))
    target.run("DROP ROLE IF EXISTS doctor_test")
    target.run("CREATE ROLE doctor_test LOGIN PASSWORD 'geheim'")
    theirs = make_conninfo(dsn, user="doctor_test", password="geheim")
    try:
        target.run("GRANT SELECT ON t TO doctor_test")
        text = failed("doctor", *options(theirs))
        assert "the right is missing: INSERT on t" in text
        assert "GRANT INSERT" in text
        assert "geheim" not in text
        target.run("GRANT INSERT ON t TO doctor_test")
        assert "the right is missing: CREATE on the database" in failed("doctor", *options(theirs))
        target.run("CREATE SCHEMA outfall")
        assert "the right is missing: USAGE on schema outfall" in failed("doctor", *options(theirs))
        target.run("GRANT USAGE, CREATE ON SCHEMA outfall TO doctor_test")
        assert "CREATE on schema outfall granted" in done("doctor", *options(theirs))
    finally:
        target.run("DROP OWNED BY doctor_test")
        target.run("DROP ROLE doctor_test")


@pytest.mark.parametrize(
    ("options", "rights"),
    [
        ({}, "INSERT"),
        ({"on_existing": "error"}, "INSERT, SELECT"),
        ({"on_existing": "overwrite"}, "INSERT, DELETE"),
        ({"delivery": "offset", "offset_columns": "id"}, "INSERT, SELECT"),
        ({"delivery": "offset", "parts": 2}, "INSERT, SELECT"),
        ({"delivery": "offset", "parts": 2, "offset_keys": "ledger"}, "INSERT"),
        ({"write_mode": "upsert", "key_columns": "id"}, "INSERT, UPDATE, SELECT"),
        ({"write_mode": "upsert", "key_columns": "id", "delete_marker": "gone"}, "INSERT, UPDATE, SELECT, DELETE"),
        ({"write_mode": "delete", "key_columns": "id"}, "DELETE, SELECT"),
    ],
)
def test_all_rights_that_the_options_need_are_asked_for(dsn: str, options: dict[str, Any], rights: str) -> None:
    target = Target(dsn, "CREATE SCHEMA s; CREATE TABLE s.t (id bigint PRIMARY KEY); CREATE TABLE s.dead (id bigint)")
    target.run("DROP ROLE IF EXISTS doctor_test")
    target.run("CREATE ROLE doctor_test LOGIN; CREATE SCHEMA outfall AUTHORIZATION doctor_test")
    dead: dict[str, Any] = {} if "delivery" in options else {"dead_letter_table": "s.dead"}
    sink: Any = PostgresSink(make_conninfo(dsn, user="doctor_test"), "s.t", **options, **dead)

    def missing(what: str) -> None:
        with pytest.raises(TargetError, match=f"the right is missing: {what}"):
            sink.check_connection()

    try:
        missing("USAGE on schema s")
        target.run("GRANT USAGE ON SCHEMA s TO doctor_test")
        missing(f"{rights} on s.t")
        target.run(f"GRANT {rights} ON s.t TO doctor_test")
        if dead:
            missing("INSERT on s.dead")
            target.run("GRANT INSERT ON s.dead TO doctor_test")
        assert f"{rights} on s.t granted" in sink.check_connection()
        if dead and options.get("write_mode") == "upsert":
            target.run(f'REVOKE TEMPORARY ON DATABASE "{conninfo_to_dict(dsn)["dbname"]}" FROM PUBLIC')
            missing("TEMPORARY on the database")
    finally:
        target.run("DROP OWNED BY doctor_test CASCADE; DROP ROLE doctor_test")


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
