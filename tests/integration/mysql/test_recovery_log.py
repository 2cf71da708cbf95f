"""The log in MariaDB or MySQL: lost replies, kills, settings that lose data, other servers, rights."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from outfall.errors import ConfigurationError, RecordError, TransientError
from outfall.mysql import MySQLSink
from outfall.recovery import EntryExistsError, recovery_config
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from outfall.testing.tcp_proxy import NetworkFault, TcpProxy
from tests.integration.support.mariadb import MariaDB, Server
from tests.integration.support.sql_logs import STEPS, check_advice, contents, filled
from tests.integration.support.waiting import until
from tests.unit.support.command import done, failed
from tests.unit.support.warehouse import PlainSink


@pytest.mark.parametrize("step", STEPS)
def test_a_connection_that_is_cut_before_a_statement_is_replaced(server: MariaDB, database: str, step: str) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        log = filled(server.location(database, proxy.port), 1)
        with once_at(step, proxy.drop_connections):
            assert log.append(b"2", after=1) == 2
    assert contents(server.location(database)) == [b"1", b"2"]


def test_an_entry_whose_reply_is_lost_is_found_and_not_written_twice(server: MariaDB, database: str) -> None:
    with TcpProxy(server.host, server.port) as proxy:
        log = filled(server.location(database, proxy.port), 1)
        fault = NetworkFault("reset", "reply", connections=1)
        with once_at("log: before commit", lambda: proxy.inject(fault)):
            assert log.append(b"2", after=1) == 2
        assert log.append(b"3", after=2) == 3
    assert contents(server.location(database)) == [b"1", b"2", b"3"]


def test_a_clean_up_that_meets_another_one_is_repeated(server: MariaDB, database: str) -> None:
    """MariaDB refuses from 11.6 on what has changed since the moment that a transaction sees."""
    recovery = server.location(database)
    log = filled(recovery, 3)
    given = {"user": server.user, "password": server.password, "database": database}
    with (
        pymysql.connect(host=server.host, port=server.port, **given) as other,
        other.cursor() as cursor,
        ThreadPoolExecutor(1) as pool,
    ):
        cursor.execute("DELETE FROM recovery_entries WHERE number = 1")
        cleaning = pool.submit(log.clean_up, keep=[3], states=[], generation=0)
        until(server.has_lock_wait, "the clean-up waiting")
        other.commit()
        cleaning.result()
    assert contents(recovery) == [b"3"]


@pytest.mark.parametrize("step", ["log: entry inserted", "log: committed"])
def test_a_server_that_is_killed_keeps_what_it_acknowledged(mortal: Server, step: str) -> None:
    recovery = mortal.client.location(mortal.client.new_database())
    log = filled(recovery, 2)

    def restart() -> None:
        mortal.server.kill()
        mortal.server.start()

    with once_at(step, restart):
        assert log.append(b"3", after=2) == 3
    assert contents(recovery) == [b"1", b"2", b"3"]


def test_a_writer_that_slept_while_its_number_was_freed_is_fenced(server: MariaDB, database: str) -> None:
    recovery = server.location(database)
    sleeper, other = filled(recovery, 2), recovery.open("sink")

    def many_epochs() -> None:
        for after in range(2, 9):
            other.append(b"other", after=after)
        other.clean_up(keep=[9], states=[], generation=0)

    with once_at("log: newest checked", many_epochs), pytest.raises(EntryExistsError):
        sleeper.append(b"stray", after=2)
    assert other.numbers() == [9]


def test_of_two_creators_at_one_moment_one_wins(server: MariaDB, database: str) -> None:
    """The second INSERT waits for the first transaction."""
    recovery = server.location(database)
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
        until(server.has_lock_wait, "the second waiting")

    with once_at("log: before commit", start_and_wait_until_it_waits):
        assert one.append(b"one", after=1) == 2
    thread.join(30)
    assert len(refused) == 1
    assert contents(recovery) == [b"1", b"one"]


def test_a_copy_of_the_database_is_refused_by_name_until_it_is_accepted(server: MariaDB, database: str) -> None:
    original = server.location(database)
    LocalDriver(PlainSink(), original).run_epoch(0, [[1, 2]])
    other = server.new_database()
    for table in ("recovery_entries", "recovery_blobs"):
        server.run(f"CREATE TABLE {other}.{table} LIKE {database}.{table}; "
                   f"INSERT INTO {other}.{table} SELECT * FROM {database}.{table}")  # fmt: skip
    copy = server.location(other)
    with closing(copy.open("sink")) as log, pytest.raises(RecordError, match=rf"{database}.*{other}.*outfall accept"):
        log.read()
    # A batch job may skip numbers.
    with pytest.raises(RecordError, match="another server"):
        LocalDriver(PlainSink(), copy).run_epoch(5, [[3]])
    assert "last completed epoch here: 0" in failed("accept", copy.url(), "sink")
    assert "accepted; start the query" in done("accept", copy.url(), "sink", "--yes")
    LocalDriver(PlainSink(), copy).run_epoch(1, [[3]])
    LocalDriver(PlainSink(), original).run_epoch(1, [[3]])


@pytest.mark.parametrize("value", [0, 2])
def test_a_server_that_flushes_later_is_refused_unless_it_is_allowed(own_mariadb: Server, value: int) -> None:
    client = own_mariadb.client
    database = client.new_database()
    with client.settings(innodb_flush_log_at_trx_commit=str(value)):
        with pytest.raises(ConfigurationError, match=rf"innodb_flush_log_at_trx_commit is {value}.*allow_unsafe=true"):
            filled(client.location(database, prefix=f"p{value}"), 1)
        filled(client.location(database, prefix=f"q{value}", allow_unsafe=True), 1)


def test_a_table_without_transactions_is_refused_and_the_advice_works(server: MariaDB, database: str) -> None:
    filled(server.location(database), 1)
    server.run("RENAME TABLE recovery_entries TO b_entries; ALTER TABLE b_entries ENGINE = MyISAM", database)
    recovery = server.location(database, prefix="b")
    with pytest.raises(ConfigurationError, match="engine MyISAM") as refused:
        recovery.open("sink").append(b"2", after=1)
    server.run(str(refused.value.do).removeprefix("run "), database)
    assert recovery.open("sink").append(b"2", after=1) == 2


def test_a_read_only_server_is_named_even_to_root(own_mariadb: Server) -> None:
    client = own_mariadb.client
    database = client.new_database()
    filled(client.location(database), 1)
    with client.settings(read_only="ON"):
        recovery = client.location(database, timeout=0.5)
        with pytest.raises(TransientError, match=r"read-only.*connect to the primary"):
            recovery.open("sink").append(b"x", after=1)
        assert [entry.data for entry in recovery.open_read_only("sink").read()] == [b"1"]


def test_rights_and_passwords_are_named_and_not_shown(server: MariaDB, database: str) -> None:
    filled(server.location(database), 1)
    user = f"u_{database[-8:]}"
    server.run(
        f"CREATE USER {user}@'%' IDENTIFIED BY 'geheim-1'; GRANT SELECT ON {database}.recovery_blobs TO {user}@'%'"
    )
    place = f"{user}@{server.host}:{server.port}/{database}?tls=prefer&password=env:LOG_SECRET"
    recovery = recovery_config(f"mysql://{place}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOG_SECRET", "geheim-2")
        with pytest.raises(ConfigurationError, match="MYSQL_PWD") as refused:
            recovery.open("sink").read()
        assert "geheim" not in f"{refused.value} {recovery!r}"
        patch.setenv("LOG_SECRET", "geheim-1")
        with pytest.raises(ConfigurationError, match="grant SELECT, INSERT, UPDATE and DELETE"):
            recovery.open("sink").read()
        for table in ("recovery_entries", "recovery_blobs"):
            server.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.{table} TO {user}@'%'")
        log = recovery.open("sink")
        assert log.append(b"2", after=len(log.read())) == 2
        log.clean_up(keep=[2], states=[], generation=0)


def test_a_server_without_tls_is_refused_where_it_must_be_verified(server: MariaDB, database: str) -> None:
    url = server.location(database, timeout=0.5).url().replace("tls=prefer", "tls=verify")
    with pytest.raises((ConfigurationError, TransientError), match=r"(?i)tls|ssl|certificate"):
        recovery_config(url).open("sink").read()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:geheim@host/db", "contains a password"),
        ("mysql://u@host/db?password=geheim", "contains a password"),
        ("mysql://host", "no database"),
        ("mysql://host/db?schema=x", "unknown option 'schema'"),
        ("mysql://host/db?tlsca=x", "did you mean 'tls_ca'"),
    ],
)
def test_what_is_wrong_with_a_location_is_named(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        recovery_config(url)
    assert "geheim" not in str(refused.value)


def test_an_error_proposes_the_database_of_the_sink_and_that_works(
    server: MariaDB, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, secret = f"u{database[-16:]}", uuid.uuid4().hex
    server.run(f"CREATE USER {user}@'%' IDENTIFIED BY '{secret}'; GRANT ALL ON {database}.* TO {user}@'%'")
    server.run("CREATE TABLE first (id INT); CREATE TABLE `second.table` (id INT)", database)
    dsn = f"mysql://{user}:{secret}@{server.host}:{server.port}/{database}?tls=prefer"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MYSQL_PWD", secret)
        check_advice(
            lambda table: MySQLSink(dsn, f"`{table}`", metadata_schema=database), tmp_path, secret, monkeypatch
        )
    assert server.run("SELECT DISTINCT log FROM recovery_entries ORDER BY log", database) == [
        ("first/sink",),
        ("second.table/sink",),
    ]
    assert server.run("SELECT id FROM first UNION ALL SELECT 10 + id FROM `second.table` ORDER BY 1", database) == [
        ("0",), ("1",), ("10",), ("11",),
    ]  # fmt: skip
