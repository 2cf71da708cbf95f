"""The log in PostgreSQL: its own settings, rights, poolers; the rest is in tests/integration/sql."""

from __future__ import annotations

import pickle
import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outfall.errors import ConfigurationError
from outfall.postgres import PostgresSink
from outfall.recovery import recovery_config
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from tests.integration.postgres.support import Target
from tests.integration.sql import test_recovery_log as shared
from tests.integration.support.postgres import Databases, Server, empty, location, pgbouncer
from tests.integration.support.sql import mostly_thorough
from tests.integration.support.sql_logs import check_advice, contents, filled
from tests.unit.support.warehouse import PlainSink


@pytest.mark.parametrize("step", mostly_thorough(["log: entry inserted", "log: committed"], ["log: committed"]))
def test_a_server_that_is_killed_keeps_what_it_acknowledged_without_synchronous_commit(
    mortal_postgres: Server, step: str
) -> None:
    """With which a commit waits in memory for ten seconds."""
    dsn = mortal_postgres.new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
    log = filled(location(dsn), 2)

    def restart() -> None:
        mortal_postgres.kill()
        mortal_postgres.start()

    with once_at(step, restart):
        assert log.append(b"3", after=2) == 3
    assert contents(location(dsn)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("level", mostly_thorough(["serializable", "repeatable read"], ["serializable"]))
def test_a_sleeping_writer_is_fenced_whatever_isolation_its_role_has(dsn: str, level: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        setting = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
        connection.execute(setting.format(name, sql.Literal(level)))
    shared.test_a_writer_that_slept_while_its_number_was_freed_is_fenced(Target(dsn))


# --- settings and rights


def test_an_unlogged_table_is_refused_and_the_advice_works(postgres: Databases) -> None:
    dsn = postgres.new_database()
    filled(location(dsn, prefix="a"), 1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE outfall.a_entries RENAME TO b_entries")
        connection.execute("ALTER TABLE outfall.b_entries SET UNLOGGED")
        with pytest.raises(ConfigurationError, match="SET LOGGED") as refused:
            location(dsn, prefix="b").open("sink").append(b"x", after=1)
        connection.execute(str(refused.value.do).removeprefix("run ").encode())
    assert location(dsn, prefix="b").open("sink").append(b"x", after=1) == 2


def test_missing_rights_are_named_and_are_all_that_is_needed(dsn: str, role: str) -> None:
    filled(location(dsn), 1)
    theirs = location(make_conninfo(dsn, user=role))
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(ConfigurationError, match="grant USAGE on the schema outfall, and SELECT, INSERT"):
            theirs.open("sink").read()
        tables = "outfall.recovery_entries, outfall.recovery_blobs"
        connection.execute(f"GRANT USAGE ON SCHEMA outfall TO {role}".encode())
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}".encode())
    log = theirs.open("sink")
    assert len(log.read()) == 1
    assert log.append(b"2", after=1) == 2
    log.clean_up(keep=[2], states=[], generation=0)
    assert log.read_state(log.write_state("p", b"x", generation=1)) == b"x"


def test_a_password_is_taken_from_the_environment_and_never_shown(
    own_postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = own_postgres.role_with_password("geheim-1")
    dsn = own_postgres.new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {role}".encode())
    monkeypatch.setenv("LOG_SECRET", "geheim-1")
    theirs = location(make_conninfo(dsn, user=role)).url()
    right = recovery_config(f"{theirs}&password=env:LOG_SECRET")
    assert "geheim" not in f"{right!r} {right.url()} {pickle.dumps(right)!r}"
    filled(right, 1)
    monkeypatch.setenv("PGPASSWORD", "geheim-2")
    with pytest.raises(ConfigurationError, match="PGPASSFILE") as refused:
        filled(recovery_config(theirs), 1)
    assert "geheim" not in str(refused.value)
    monkeypatch.setenv("PGPASSWORD", "geheim-1")
    assert contents(recovery_config(theirs)) == [b"1"]


def test_a_pooler_in_transaction_mode_serves(postgres: Databases, dsn: str) -> None:
    with pgbouncer(dsn) as through:
        recovery = location(through)
        LocalDriver(PlainSink(), recovery).run_epoch(0, [[1, 2]])
        LocalDriver(PlainSink(), recovery).run_epoch(1, [[3]])
        assert recovery.steps() == ["sink"]
    empty(dsn)


def test_an_error_proposes_the_database_of_the_sink_and_that_works(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = uuid.uuid4().hex
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('CREATE TABLE first (id bigint); CREATE TABLE "second.table" (id bigint)')
        given = make_conninfo(dsn, password=secret)
        with pytest.MonkeyPatch.context() as environment:
            # The tests' server asks for no password, and has fsync off.
            environment.setenv("PGPASSWORD", secret)
            check_advice(
                lambda table: PostgresSink(given, f'"{table}"'), tmp_path, secret, monkeypatch, "&allow_unsafe=true"
            )
        logs = connection.execute("SELECT DISTINCT log FROM outfall.recovery_entries ORDER BY log").fetchall()
        assert logs == [("first/sink",), ("second.table/sink",)]
        found = connection.execute('SELECT id FROM first UNION ALL SELECT 10 + id FROM "second.table" ORDER BY 1')
        assert found.fetchall() == [(0,), (1,), (10,), (11,)]
