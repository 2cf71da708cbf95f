"""The servers that the other tests stand on do what those tests take for granted."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.integration.support.postgres import Server, pgbouncer


def test_each_database_is_empty_and_its_own(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        count = connection.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        assert count.fetchone() == (0,)
        assert connection.info.dbname == conninfo_to_dict(dsn)["dbname"] != "postgres"


@pytest.mark.thorough
@pytest.mark.faults
def test_a_kill_keeps_what_was_committed_and_empties_unlogged_tables(mortal_postgres: Server) -> None:
    dsn = mortal_postgres.new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS x")
        connection.execute("CREATE UNLOGGED TABLE lost AS SELECT 1 AS x")
        # A checkpoint does not help an unlogged table: only an orderly shutdown does.
        connection.execute("CHECKPOINT")
        mortal_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    mortal_postgres.start()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM lost").fetchone() == (0,)


def test_an_orderly_stop_keeps_unlogged_tables(mortal_postgres: Server) -> None:
    dsn = mortal_postgres.new_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE UNLOGGED TABLE here AS SELECT 1 AS x")
    mortal_postgres.stop()
    mortal_postgres.start()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM here").fetchone() == (1,)


def test_pgbouncer_gives_transactions_of_one_connection_to_different_sessions(dsn: str) -> None:
    with (
        pgbouncer(dsn) as through,
        psycopg.connect(through, autocommit=True, prepare_threshold=None) as one,
        psycopg.connect(through, autocommit=True, prepare_threshold=None) as two,
    ):
        asked = "SELECT pg_backend_pid() + %s"
        (free,) = one.execute(asked, (0,)).fetchone() or ()
        with two.transaction():
            # The session that served the first connection now serves the second one's transaction.
            assert two.execute(asked, (0,)).fetchone() == (free,)
            (other,) = one.execute(asked, (0,)).fetchone() or ()
            assert other != free
