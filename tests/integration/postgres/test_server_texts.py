"""What is told of the server's errors: the cause and what to do, and no value of a row."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.errors import OutfallError, reason
from outfall.postgres import PostgresSink
from outfall.recovery import history
from tests.integration.postgres.support import Target
from tests.integration.support.servers import free_port
from tests.integration.support.sql import first, rows, run
from tests.integration.support.sql_parts import parts_sink
from tests.integration.support.sql_parts import run as run_parts

SECRET = "Ringelnatz"
RAISED = ["P0001", "23514", "23505", "22023", "42501", "44000", "0A000", "XX000", "ZZ123"]
ONE_ROW = [{"id": 471, "name": SECRET}]


def with_trigger(dsn: str, body: str, ddl: str = "") -> Target:
    return Target(
        dsn,
        f"CREATE TABLE t (id bigint PRIMARY KEY, name text){ddl}; CREATE FUNCTION judge() RETURNS trigger"
        f" LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$;"
        " CREATE TRIGGER judging BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION judge()",
    )


def failed(sink: Any, recovery: str, caplog: pytest.LogCaptureFixture) -> tuple[OutfallError, str]:
    """Run an epoch that fails, and return the error with all that logs and a traceback show."""
    with pytest.raises(OutfallError) as caught:
        run(sink, recovery, 0, ONE_ROW)
    return caught.value, "".join(traceback.format_exception(caught.value)) + caplog.text


@pytest.mark.parametrize("letters", first(1, [False, True]))
@pytest.mark.parametrize("log_rows", first(1, ["none", "full"]))
@pytest.mark.parametrize("code", first(1, RAISED))
def test_the_text_of_a_trigger_is_shown_only_where_rows_are(
    dsn: str, recovery: str, caplog: pytest.LogCaptureFixture, code: str, log_rows: str, letters: bool
) -> None:
    raised = f"RAISE EXCEPTION 'no %', NEW.name USING ERRCODE = '{code}', CONSTRAINT = NEW.name, HINT = NEW.name;"
    target = with_trigger(dsn, raised)
    more = {"dead_letter_table": "dead"} if letters else {}
    sink = target.sink(log_rows=log_rows, **more)
    if letters and code[:2] in ("22", "23", "44"):
        run(sink, recovery, 0, ONE_ROW)
        assert (SECRET in target.run("SELECT reason FROM dead")[0][0], SECRET in caplog.text) == (True, False)
        return
    _, shown = failed(sink, recovery, caplog)
    assert (SECRET in shown) == (log_rows == "full")
    assert f"SQLSTATE {code}" in shown
    if log_rows == "none" and code[:2] != "22":
        assert "judge" in shown
        assert 'log_rows="full"' in shown


def test_a_statement_that_a_trigger_composes_is_not_shown(
    dsn: str, recovery: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = with_trigger(dsn, "EXECUTE 'SELECT ' || quote_ident(NEW.name);")
    _, shown = failed(target.sink(log_rows="none"), recovery, caplog)
    assert SECRET not in shown
    assert "undefined column in PL/pgSQL function judge (SQLSTATE 42703)" in shown


def test_the_servers_own_text_names_the_constraint(dsn: str, recovery: str, caplog: pytest.LogCaptureFixture) -> None:
    target = Target(dsn, f"CREATE TABLE t (id bigint, name text CONSTRAINT polite CHECK (name <> '{SECRET}'))")
    _, shown = failed(target.sink(log_rows="none"), recovery, caplog)
    assert ("polite" in shown, SECRET in shown) == (True, False)


def test_the_planners_own_text_is_shown(dsn: str, recovery: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its source is plancat.c; those of languages, whose functions raise any text, begin with pl too."""
    target = Target(dsn)
    _, shown = failed(target.sink(write_mode="upsert", key_columns="id", log_rows="none"), recovery, caplog)
    assert "There is no unique or exclusion constraint matching the ON CONFLICT specification" in shown


def test_a_fraction_is_not_called_too_large(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, n integer)")
    with pytest.raises(OutfallError, match="contains a number that is not whole") as caught:
        run(target.sink(), recovery, 0, [{"id": 1, "n": 1.25}])
    assert "round it, or write it into a column of type numeric" in str(caught.value)
    assert "range" not in str(caught.value)
    target.run("ALTER TABLE t ALTER n TYPE numeric")
    run(target.sink(), recovery, 0, [{"id": 1, "n": 1.25}])
    assert target.ids() == [1]


def test_a_row_that_a_policy_excludes_is_no_missing_privilege(dsn: str, recovery: str, role: str) -> None:
    database = conninfo_to_dict(dsn)["dbname"]
    target = Target(
        dsn,
        "CREATE TABLE t (id bigint, name text); ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        f" CREATE POLICY few ON t USING (true) WITH CHECK (id < 100); GRANT ALL ON t TO {role};"
        f" GRANT ALL ON SCHEMA public TO {role}; GRANT CREATE ON DATABASE {database} TO {role}",
    )
    sink = target.sink(dsn=make_conninfo(dsn, user=role))
    with pytest.raises(OutfallError, match="change the policy") as caught:
        run(sink, recovery, 0, ONE_ROW)
    assert "grant" not in str(caught.value)
    target.run("DROP POLICY few ON t; CREATE POLICY all_rows ON t USING (true)")
    run(sink, recovery, 0, ONE_ROW)
    assert target.ids() == [471]


@pytest.mark.parametrize("options", first(1, [{}, {"dead_letter_table": "dead"}, {"parts": True}]))
def test_the_bytes_of_a_small_epoch_are_counted(dsn: str, recovery: str, options: dict[str, Any]) -> None:
    """The encoder of the binary format returns the bytes of a few rows at the end only."""
    target = Target(dsn)
    if options.pop("parts", False):
        run_parts(parts_sink(target, 1), recovery, 0, 1, 2, 3)
    else:
        run(target.sink(**options), recovery, 0, rows(1, 2, 3))
    (epoch,) = history(recovery, "sink")
    assert epoch.bytes > 3 * 10


def test_the_reason_of_a_refused_connection_is_one_line(tmp_path: Path) -> None:
    sink = PostgresSink(f"host=127.0.0.1 port={free_port()} user=u dbname=d", "t", retry_deadline=0.1)
    with pytest.raises(OutfallError) as failed:
        run(sink, str(tmp_path), 0, rows(1))
    assert "Connection refused" in reason(failed.value)
    assert "\n" not in reason(failed.value)
