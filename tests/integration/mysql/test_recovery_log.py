"""The log in MariaDB or MySQL: its own settings, rights, engines; the rest is in tests/integration/sql."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pymysql
import pytest

from outfall.errors import ConfigurationError, TransientError
from outfall.mysql import MySQLSink
from outfall.recovery import recovery_config
from tests.integration.support.mysql import MySQLServer, Server
from tests.integration.support.sql_logs import check_advice, contents, filled
from tests.integration.support.waiting import until


def test_a_clean_up_that_meets_another_one_is_repeated(server: MySQLServer, database: str) -> None:
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


@pytest.mark.thorough
@pytest.mark.parametrize("value", [0, 2])
def test_a_server_that_flushes_later_is_refused_unless_it_is_allowed(own_mysql: Server, value: int) -> None:
    client = own_mysql.client
    database = client.new_database()
    with client.settings(innodb_flush_log_at_trx_commit=str(value)):
        with pytest.raises(ConfigurationError, match=rf"innodb_flush_log_at_trx_commit is {value}.*allow_unsafe=true"):
            filled(client.location(database, prefix=f"p{value}"), 1)
        filled(client.location(database, prefix=f"q{value}", allow_unsafe=True), 1)


def test_a_table_without_transactions_is_refused_and_the_advice_works(server: MySQLServer, database: str) -> None:
    filled(server.location(database), 1)
    server.run("RENAME TABLE recovery_entries TO b_entries; ALTER TABLE b_entries ENGINE = MyISAM", database)
    recovery = server.location(database, prefix="b")
    with pytest.raises(ConfigurationError, match="engine MyISAM") as refused:
        recovery.open("sink").append(b"2", after=1)
    server.run(str(refused.value.do).removeprefix("run "), database)
    assert recovery.open("sink").append(b"2", after=1) == 2


def test_rights_and_passwords_are_named_and_not_shown(server: MySQLServer, database: str) -> None:
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


def test_a_server_without_tls_is_refused_where_it_must_be_verified(server: MySQLServer, database: str) -> None:
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
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
