"""The log in PostgreSQL: lost replies, restarts, settings that lose data, other servers, rights."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.errors import ConfigurationError, RecordError, TransientError
from outfall.postgres import PostgresSink
from outfall.recovery import EntryExistsError, recovery_config
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from outfall.testing.tcp_proxy import NetworkFault, TcpProxy
from tests.integration.support.postgres import Databases, Server, empty, location, pgbouncer
from tests.integration.support.sql_logs import STEPS, check_advice, contents, filled
from tests.unit.support.command import done, failed, parsed
from tests.unit.support.warehouse import PlainSink


@contextmanager
def proxied(dsn: str) -> Iterator[tuple[TcpProxy, str]]:
    parts = {"host": "127.0.0.1", "port": "5432"} | conninfo_to_dict(dsn)
    with TcpProxy(str(parts["host"]), int(str(parts["port"]))) as proxy:
        yield proxy, make_conninfo(dsn, host="127.0.0.1", port=proxy.port)


@pytest.mark.parametrize("step", STEPS)
def test_a_connection_that_is_cut_before_a_statement_is_replaced(dsn: str, step: str) -> None:
    with proxied(dsn) as (proxy, through):
        log = filled(location(through), 1)
        with once_at(step, proxy.drop_connections):
            assert log.append(b"2", after=1) == 2
    assert contents(location(dsn)) == [b"1", b"2"]


@pytest.mark.parametrize("deed", ["reset", "cut"])
def test_an_entry_whose_reply_is_lost_is_found_and_not_written_twice(dsn: str, deed: str) -> None:
    with proxied(dsn) as (proxy, through):
        log = filled(location(through), 1)
        fault = NetworkFault(deed, "reply", connections=1)  # type: ignore[arg-type]
        with once_at("log: before commit", lambda: proxy.inject(fault)):
            assert log.append(b"2", after=1) == 2
        assert log.append(b"3", after=2) == 3
    assert contents(location(dsn)) == [b"1", b"2", b"3"]


def test_a_state_whose_reply_is_lost_is_written_once(dsn: str) -> None:
    with proxied(dsn) as (proxy, through):
        log = filled(location(through), 1)
        fault = NetworkFault("reset", "reply", connections=1)
        with once_at("log: before commit", lambda: proxy.inject(fault)):
            name = log.write_state("p", b"x" * 1_000_000, generation=1)
        assert log.read_state(name) == b"x" * 1_000_000


@pytest.mark.parametrize("step", ["log: entry inserted", "log: committed"])
def test_a_server_that_is_killed_keeps_what_it_acknowledged(mortal_postgres: Server, step: str) -> None:
    """Also where the database has `synchronous_commit` off, with which a commit waits in memory for ten seconds."""
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
    log.clean_up(keep=[3], states=[], generation=0)
    assert log.append(b"4", after=3) == 4


def test_a_writer_that_slept_while_its_number_was_freed_is_fenced(dsn: str) -> None:
    recovery = location(dsn)
    sleeper, other = filled(recovery, 2), recovery.open("sink")

    def many_epochs() -> None:
        for after in range(2, 9):
            other.append(b"other", after=after)
        other.clean_up(keep=[9], states=[], generation=0)

    with once_at("log: newest checked", many_epochs), pytest.raises(EntryExistsError):
        sleeper.append(b"stray", after=2)
    assert other.numbers() == [9]


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_a_sleeping_writer_is_fenced_whatever_isolation_its_role_has(dsn: str, level: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        setting = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
        connection.execute(setting.format(name, sql.Literal(level)))
    test_a_writer_that_slept_while_its_number_was_freed_is_fenced(dsn)


def test_of_two_creators_at_one_moment_one_wins(dsn: str) -> None:
    """The second INSERT waits for the first transaction."""
    recovery = location(dsn)
    one, two = filled(recovery, 1), recovery.open("sink")
    refused: list[BaseException] = []

    def second() -> None:
        try:
            two.append(b"two", after=1)
        except EntryExistsError as error:
            refused.append(error)

    thread = threading.Thread(target=second, daemon=True)

    def start_and_wait_until_it_waits() -> None:
        thread.start()
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with psycopg.connect(dsn, autocommit=True) as connection:
            while connection.execute(query).fetchone() == (0,):
                thread.join(0.01)

    with once_at("log: before commit", start_and_wait_until_it_waits):
        assert one.append(b"one", after=1) == 2
    thread.join(30)
    assert len(refused) == 1
    assert contents(recovery) == [b"1", b"one"]


# --- other servers


@pytest.fixture
def copied(postgres: Databases, dsn: str) -> Iterator[Callable[[], str]]:
    """A function that copies the database, as it is, to another one of the same server."""
    made: list[str] = []

    def copy() -> str:
        name = f"outfall_{uuid.uuid4().hex}"
        made.append(name)
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            source = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
            connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                               [conninfo_to_dict(dsn)["dbname"]])  # fmt: skip
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), source))
        return make_conninfo(dsn, dbname=name)

    yield copy
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_a_copy_of_the_database_is_refused_by_name_until_it_is_accepted(dsn: str, copied: Callable[[], str]) -> None:
    original = location(dsn)
    LocalDriver(PlainSink(), original).run_epoch(0, [[1, 2]])
    copy = location(copied())
    running = original.open("sink")
    newest = running.numbers()[-1]
    with closing(copy.open("sink")) as log:
        with pytest.raises(RecordError, match=r"timeline.*timeline.*outfall accept"):
            log.read()
        with pytest.raises(RecordError, match=r"timeline.*timeline.*outfall accept"):
            log.append(b"x", after=newest)
    with pytest.raises(RecordError, match="another server"):
        LocalDriver(PlainSink(), copy).run_epoch(5, [[3]])
    text = failed("accept", copy.url(), "sink")
    assert "last completed epoch here: 0" in text
    assert "nothing was changed" in text
    assert "epoch 0 completed" in done("status", copy.url())
    assert "accepted; start the query" in done("accept", copy.url(), "sink", "--yes")
    assert "nothing to accept" in done("accept", copy.url(), "sink")
    LocalDriver(PlainSink(), copy).run_epoch(1, [[3]])
    LocalDriver(PlainSink(), original).run_epoch(1, [[3]])
    assert parsed("accept", original.url(), "sink") == {
        "step": "sink", "change": None, "completed": 1, "accepted": False,
    }  # fmt: skip


def test_an_acceptance_of_what_has_changed_since_is_refused(dsn: str, copied: Callable[[], str]) -> None:
    filled(location(dsn), 2)
    one, two = location(copied()), location(copied())
    change, log = one.open("sink").server_change(), two.open("sink")
    assert change is not None
    with pytest.raises(RecordError, match="changed since the check"):
        log.accept_server(change)
    assert log.server_change() is not None


def test_a_log_that_was_copied_by_the_command_is_no_other_servers(dsn: str, tmp_path: object) -> None:
    LocalDriver(PlainSink(), f"{tmp_path}/chk").run_epoch(0, [[1]])
    recovery = location(dsn)
    done("copy", f"{tmp_path}/chk", recovery.url(), "sink")
    LocalDriver(PlainSink(), recovery).run_epoch(1, [[2]])


# --- settings and rights


def test_a_server_that_does_not_sync_is_refused_unless_it_is_allowed(own_postgres: Server) -> None:
    dsn = own_postgres.new_database()
    with pytest.raises(ConfigurationError, match=r"fsync is off.*allow_unsafe=true"):
        filled(location(dsn, allow_unsafe=False), 1)
    filled(location(dsn), 1)


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


def test_a_read_only_server_is_named(dsn: str) -> None:
    recovery = location(make_conninfo(dsn, options="-c default_transaction_read_only=on"), timeout=0.5)
    filled(location(dsn), 1)
    with pytest.raises(TransientError, match=r"read-only.*target_session_attrs=read-write"):
        recovery.open("sink").append(b"x", after=1)
    assert [entry.data for entry in recovery.open_read_only("sink").read()] == [b"1"]


def test_a_pooler_in_transaction_mode_serves(postgres: Databases, dsn: str) -> None:
    with pgbouncer(dsn) as through:
        recovery = location(through)
        LocalDriver(PlainSink(), recovery).run_epoch(0, [[1, 2]])
        LocalDriver(PlainSink(), recovery).run_epoch(1, [[3]])
        assert recovery.steps() == ["sink"]
    empty(dsn)


def test_logs_with_names_are_apart(dsn: str) -> None:
    one, two, bare = location(dsn, log="one"), location(dsn, log="two"), location(dsn)
    assert bare.steps() == []
    filled(one, 3)
    two.open("other").append(b"x", after=0)
    assert (one.steps(), two.steps(), bare.steps()) == (["sink"], ["other"], [])
    one.open("sink").erase()
    assert (one.steps(), two.steps()) == ([], ["other"])


def test_a_log_whose_tables_were_dropped_is_not_begun_anew(dsn: str) -> None:
    log = filled(location(dsn), 2)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA outfall CASCADE")
    with pytest.raises(RecordError, match="entry 2 is missing"):
        log.append(b"3", after=2)


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
