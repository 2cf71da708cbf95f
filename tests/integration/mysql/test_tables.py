"""The tables: made, extended, refused; rights, secrets and the command line's checks."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.mysql import MySQLSink
from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer, Server
from tests.integration.support.sql import rows, run

ROW: dict[str, Any] = {
    "id": 1, "name": "ä\\\t\n'😀", "data": b"\x00\xff", "share": 1.5, "day": dt.date(2020, 1, 2), "yes": True,
    "at": dt.datetime(2020, 1, 2, 3, 4, 5, 678_901, tzinfo=dt.UTC), "paid": Decimal("1.250"), "many": [1, 2],
    "one": {"a": 'x"y', "b": None},
}  # fmt: skip


def _described(sink: MySQLSink, *given: dict[str, Any]) -> MySQLSink:
    sink.check_schema(pa.RecordBatch.from_pylist(list(given)).schema)
    return sink


def test_a_table_is_made_with_the_columns_of_the_rows_and_gets_new_ones(target: Target, tmp_path: Path) -> None:
    target.run("DROP TABLE t")
    run(_described(target.sink(create_table="if_missing"), ROW), tmp_path, 0, [ROW])
    ((made,),) = target.run(
        "SELECT GROUP_CONCAT(column_name, ' ', column_type ORDER BY ordinal_position SEPARATOR ', ')"
        f" FROM information_schema.columns WHERE table_schema = '{target.database}' AND table_name = 't'"
    )
    kind = "longtext" if target.server.is_mariadb else "json"
    # MariaDB shows display widths.
    assert re.sub(r"int\(\d+\)", "int", made) == (
        "id bigint, name longtext, data longblob, share double, day date, yes tinyint, at datetime(6),"
        f" paid decimal(4,3), many {kind}, one {kind}, _outfall_id bigint unsigned"
    )
    assert target.run("SELECT day, at, yes, paid, share, HEX(data) FROM t") == [
        ("2020-01-02", "2020-01-02 03:04:05.678901", "1", "1.250", "1.5", "00FF")
    ]
    assert target.json("SELECT many AS `row` FROM t") == [ROW["many"]]
    assert bytes.fromhex(target.run("SELECT HEX(name) FROM t")[0][0]).decode() == ROW["name"]
    assert target.json("SELECT one AS `row` FROM t") == [ROW["one"]]
    more = ROW | {"id": 2, "more": 7}
    run(_described(target.sink(schema_evolution="add_columns"), more), tmp_path, 1, [more])
    assert target.run("SELECT id, more FROM t ORDER BY id") == [("1", "NULL"), ("2", "7")]
    with pytest.raises(ConfigurationError, match="differs only in case"):
        _described(target.sink(schema_evolution="add_columns"), ROW | {"ID": 3})


JDBC = {
    "flag BIT(1)": pa.array([True, None, False]), "short SMALLINT": pa.array([1, None, -1], pa.int16()),
    "num INTEGER": pa.array([1, None, -1], pa.int32()), "big BIGINT": pa.array([1, None, -1], pa.int64()),
    "ratio DOUBLE PRECISION": pa.array([0.5, None, -0.5]), "text LONGTEXT": pa.array(["a", None, "'"]),
    "bytes LONGBLOB": pa.array([b"a", None, b"'"]), "day DATE": pa.array([dt.date(2020, 1, 2), None, None]),
    "at DATETIME(6)": pa.array([dt.datetime.fromisoformat("2020-01-02"), None, None], pa.timestamp("us")),
}  # fmt: skip
"""The columns of a table that Spark's JDBC writer created, with values of its types."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, {"write_mode": "upsert", "key_columns": "flag"}, {"dead_letter_table": "dead"}]
)
def test_a_table_of_sparks_jdbc_writer_stores_each_of_its_types(
    target: Target, tmp_path: Path, options: dict[str, str]
) -> None:
    target.run("DROP TABLE t")
    key = ", UNIQUE (flag)" if options.get("key_columns") else ""
    target.run(f"CREATE TABLE t ({', '.join(JDBC)}{key})")
    made = pa.RecordBatch.from_arrays(list(JDBC.values()), [name.split()[0] for name in JDBC])
    made = made.slice(2) if key else made
    sink = target.sink(**options)
    sink.check_schema(made.schema)
    run(sink, tmp_path / "recovery", 0, made.to_pylist())
    run(sink, tmp_path / "recovery", 1, made.to_pylist())
    twice = 1 if key else 2
    assert target.run("SELECT SUM(flag + 0), COUNT(*), COUNT(big) FROM t") == [
        ("0", "1", "1") if key else (str(twice), str(3 * twice), str(2 * twice))
    ]


@pytest.mark.thorough
def test_a_type_that_spark_does_not_have_is_refused_with_advice_that_works(target: Target, tmp_path: Path) -> None:
    for kind in ("POINT", "GEOMETRY", *(["INET6"] if target.server.is_mariadb else [])):
        target.run("DROP TABLE IF EXISTS t")
        target.run(f"CREATE TABLE t (id INT, v {kind})")
        for given in (pa.schema([("v", pa.string())]), pa.schema([("v", pa.binary())])):
            with pytest.raises(ConfigurationError, match="no type of Spark has its values; change"):
                target.sink().check_schema(given)
    target.run("DROP TABLE t")
    target.run("CREATE TABLE t (text VARCHAR(99), v POINT AS (ST_GeomFromText(text)) STORED)")
    run(target.sink(), tmp_path / "recovery", 0, [{"text": "POINT(1 2)"}])
    assert target.run("SELECT ST_X(v) FROM t") == [("1",)]


@pytest.mark.thorough
def test_a_uuid_of_mariadb_is_stored_in_its_own_form_alone(target: Target, tmp_path: Path) -> None:
    if not target.server.is_mariadb:
        pytest.skip("MySQL has no type UUID")
    target.run("DROP TABLE t")
    target.run("CREATE TABLE t (v UUID)")
    text = "123e4567-e89b-12d3-a456-426655440000"
    run(target.sink(), tmp_path / "recovery", 0, [{"v": text}])
    assert target.run("SELECT v FROM t") == [(text,)]
    with pytest.raises(ValueRefusedError, match="no UUID of lower-case digits"):
        run(target.sink(), tmp_path / "recovery", 1, [{"v": text.upper()}])


def test_keys_of_a_new_table_are_as_long_as_an_index_allows(target: Target, tmp_path: Path) -> None:
    target.run("DROP TABLE t")
    given = {"name": "a", "data": b"a", "id": 1}
    options = {"write_mode": "upsert", "key_columns": "name, data", "create_table": "if_missing"}
    run(_described(target.sink(**options), given), tmp_path, 0, [given, given | {"id": 2}, given | {"name": "A"}])
    assert target.run("SELECT name, id FROM t ORDER BY name, id") == [("A", "1"), ("a", "2")]


@pytest.mark.thorough
def test_a_table_without_transactions_is_refused_and_the_advice_works(server: MySQLServer, tmp_path: Path) -> None:
    found = server.run("SELECT engine FROM information_schema.engines WHERE transactions = 'NO' AND support = 'YES'")
    # Each server has some of these.
    engines = {"MyISAM", "Aria", "MEMORY", "CSV", "ARCHIVE"} & {engine for (engine,) in found}
    assert len(engines) > 3
    for engine in sorted(engines):
        columns = "id BIGINT NOT NULL, name VARCHAR(9) NOT NULL"
        target = Target(server, server.new_database(), f"CREATE TABLE t ({columns}) ENGINE = {engine}")
        with pytest.raises(TargetError, match=f"has the engine {engine}") as refused:
            run(target.sink(), tmp_path / engine, 0, rows(1))
        target.run(str(refused.value.do))
        run(target.sink(), tmp_path / engine, 0, rows(1))
        assert target.ids() == [1]


def test_a_view_is_refused(target: Target, tmp_path: Path) -> None:
    target.run("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(TargetError, match="v is a view"):
        run(target.sink(table="v"), tmp_path, 0, rows(1))


def test_an_exception_of_a_trigger_is_a_dead_letter_and_its_text_is_not_shown(target: Target, tmp_path: Path) -> None:
    target.run(
        "DELIMITER //\nCREATE TRIGGER checks BEFORE INSERT ON t FOR EACH ROW IF NEW.id = 2 THEN SIGNAL SQLSTATE '45000'"
        " SET MESSAGE_TEXT = 'secret n2'; END IF//"
    )
    with pytest.raises(OutfallError, match="error 1644") as refused:
        run(target.sink(), tmp_path / "a", 0, rows(1, 2))
    assert "secret" not in str(refused.value)
    run(target.sink(dead_letter_table="dead"), tmp_path / "b", 0, rows(1, 2, 3))
    assert target.ids() == [1, 3]
    assert target.run("SELECT reason, code FROM dead") == [("secret n2", "1644")]


def test_names_with_any_characters_are_quoted(server: MySQLServer, database: str, tmp_path: Path) -> None:
    target = Target(server, database, "CREATE TABLE `t`` %s ö` (`select` BIGINT PRIMARY KEY, `a``b %` TEXT)")
    for mode in ({}, {"write_mode": "upsert", "key_columns": "select", "on_existing": "resume"}):
        sink = target.sink(table="`t`` %s ö`", dead_letter_table="`dead %s`", **mode)
        run(sink, tmp_path / str(len(mode)), 0, [{"select": 1, "a`b %": "x"}])
    assert target.run("SELECT * FROM `t`` %s ö`") == [("1", "x")]
    assert target.json("SELECT `row` FROM `dead %s`") == []


@pytest.fixture
def user(server: MySQLServer, database: str) -> Iterator[str]:
    """A user who may only see the database."""
    name = f"u_{database[-12:]}"
    server.run(
        f"CREATE USER {name}@'%' IDENTIFIED BY 'hunter2-and-more'; GRANT REFERENCES ON {database}.* TO {name}@'%'"
    )
    yield name
    server.run(f"DROP USER {name}@'%'")


def test_the_advice_about_rights_and_tables_of_others_works(target: Target, user: str, tmp_path: Path) -> None:
    """A user with the rights that the page names, and tables that a DBA has made by `ddl()`."""
    dsn = target.dsn(user=f"{user}:hunter2-and-more")
    sink = target.sink(dsn=dsn, create_staging="never")
    with pytest.raises(TargetError, match="privilege is missing: INSERT on t") as refused:
        sink.check_connection()
    # From any database.
    target.server.run(str(refused.value.do))
    with pytest.raises(TargetError, match="ddl"):
        run(sink, tmp_path, 0, rows(1))
    target.run(target.sink().ddl())
    for name in ("ledger", "attempts", target.run("SHOW TABLES LIKE 'staging\\_%'")[0][0]):
        target.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{name}` TO {user}@'%'")
    assert any("INSERT on t granted" in sentence for sentence in sink.check_connection())
    run(sink, tmp_path, 0, rows(1))
    assert target.ids() == [1]
    # To run the statements again changes nothing.
    target.run(target.sink().ddl())
    run(sink, tmp_path, 1, rows(2))
    assert target.ids() == [1, 2]


def test_who_may_not_create_the_database_of_the_ledger_is_told_the_grant(
    target: Target, user: str, tmp_path: Path
) -> None:
    target.run(f"GRANT INSERT ON t TO {user}@'%'")
    sink = target.sink(dsn=target.dsn(user=f"{user}:hunter2-and-more"), metadata_schema=f"own_{user}")
    with pytest.raises(TargetError, match="or set metadata_schema to a database") as refused:
        run(sink, tmp_path, 0, rows(1))
    target.server.run(str(refused.value.do).partition("; or")[0])
    run(sink, tmp_path, 0, rows(1))
    assert target.ids() == [1]


_RIGHTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    # By mode: the privileges on the table, the options, and whether rejected rows need a temporary table.
    "append": ("INSERT", {}, False),
    "upsert": ("INSERT, UPDATE, SELECT", {"key_columns": "id"}, False),
    "order": ("INSERT, UPDATE, SELECT", {"key_columns": "id", "order_column": "seq"}, True),
    "marker": ("INSERT, UPDATE, SELECT, DELETE", {"key_columns": "id", "delete_marker": "gone"}, False),
    "delete": ("DELETE, SELECT", {"key_columns": "id", "write_mode": "delete"}, False),
    "changes": (
        "INSERT, UPDATE, DELETE, SELECT",
        {"key_columns": "id", "write_mode": "changes", "sequence_column": "seq", "operation_column": "op"},
        True,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("mode", _RIGHTS)
def test_the_privileges_that_the_page_lists_are_enough(
    server: MySQLServer, database: str, user: str, tmp_path: Path, mode: str
) -> None:
    rights, options, temporary = _RIGHTS[mode]
    ddl = "CREATE TABLE t (id BIGINT PRIMARY KEY, seq BIGINT, name VARCHAR(9), CHECK (name <> 'bad'))"
    target = Target(server, database, ddl)
    target.run("CREATE TABLE child (id BIGINT, FOREIGN KEY (id) REFERENCES t (id))")
    target.run("INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b'); INSERT INTO child VALUES (2)")
    own = f"own_{database}"
    target.run(
        f"GRANT {rights} ON t TO {user}@'%'; GRANT INSERT, CREATE ON dead TO {user}@'%';"
        f" GRANT CREATE, DROP, SELECT, INSERT, UPDATE, DELETE ON {own}.* TO {user}@'%'"
    )
    if temporary:
        target.run(f"GRANT CREATE TEMPORARY TABLES ON {database}.* TO {user}@'%'")
    extras: dict[str, dict[str, Any]] = {"marker": {"gone": False}, "changes": {"op": "u"}}
    given = [{"id": 3, "seq": 1, "name": "c"}, {"id": 4, "seq": 1, "name": "bad"}]
    if mode == "delete":
        given = [{"id": 1}, {"id": 2}]
    given = [row | extras.get(mode, {}) for row in given]
    options = {"write_mode": "append" if mode == "append" else "upsert"} | options
    dsn = target.dsn(user=f"{user}:hunter2-and-more")
    sink = target.sink(dsn=dsn, metadata_schema=own, dead_letter_table="dead", **options)
    run(_described(sink, *given), tmp_path, 0, given)
    assert target.ids() == ([2] if mode == "delete" else [1, 2, 3])
    assert target.run("SELECT count(*) FROM dead") == [("1",)]
    run(sink, tmp_path, 1, given[:1] if mode != "append" else [])
    assert any(f"{rights} on t granted" in sentence for sentence in sink.check_connection())


def test_a_secret_is_in_no_text(target: Target, user: str, tmp_path: Path) -> None:
    sink = target.sink(dsn=target.dsn(user=f"{user}:wrong-hunter2"), retry_deadline="0.2s")
    with pytest.raises(TargetError, match="1045") as refused:
        run(sink, tmp_path, 0, rows(1))
    assert "hunter2" not in f"{refused.value} {sink!r} {sink.target()} {sink.options!r}"
    with pytest.raises(ConfigurationError, match="the dsn cannot be parsed") as refused_dsn:
        MySQLSink("mysql://u:hunter2@x@host/db", "t").target()
    assert "hunter2" not in str(refused_dsn.value)


def test_a_server_without_tls_is_refused_where_it_must_be_verified(target: Target, tmp_path: Path) -> None:
    sink = target.sink(dsn=target.dsn(query="tls=verify"), retry_deadline="0.2s")
    with pytest.raises((TargetError, TransientError), match=r"(?i)tls=prefer"):
        run(sink, tmp_path, 0, rows(1))


def test_tables_get_a_primary_key_where_the_server_wants_one(own_mysql: Server, tmp_path: Path) -> None:
    name = "innodb_force_primary_key" if own_mysql.client.is_mariadb else "sql_require_primary_key"
    client = own_mysql.client
    with client.settings(**{name: "ON"}):
        target = Target(client, client.new_database(), "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        sink = _described(target.sink(table="made", create_table="if_missing", dead_letter_table="dead"), *rows(1))
        run(sink, tmp_path, 0, rows(1, 2))
        assert target.run("SELECT count(*) FROM made") == [("2",)]
