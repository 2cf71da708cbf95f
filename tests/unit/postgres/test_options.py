"""Options, names and statements of the PostgreSQL sink, without a server."""

from __future__ import annotations

import os
import pickle
import pwd
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from outfall.capabilities import Guarantee
from outfall.capability_checks import check_sink, resolve
from outfall.errors import ConfigurationError, TargetError, TransientError, ValueRefusedError
from outfall.postgres import PostgresSink, sink_from_options
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase, timeouts
from outfall.postgres.names import TableName
from outfall.postgres.words import PostgresWords
from outfall.serde import ModelSerializer
from outfall.source_options import make_sink
from outfall.sql.dialect import StagedRows
from outfall.sql.names import staging_name
from outfall.sql.parts.rows import PartRows
from outfall.sql.statements import Statements
from outfall.tls import system_authorities

DSN = "postgresql://app:hunter2@db.example:6432/warehouse"
CHANGES = {"write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "v"}


SYSTEM = system_authorities() or "system"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"write_mode": "upsert"}, "needs key_columns"),
        ({"write_mode": "delete"}, "needs key_columns"),
        ({"order_column": "v"}, "order_column is an option of write_mode upsert"),
        ({"write_mode": "delete", "key_columns": "id", "delete_marker": "gone"}, "delete_marker is an option of"),
        ({"write_mode": "upsert", "key_columns": ["id", "id"]}, "names the column 'id' twice"),
        ({"write_mode": "upsert", "key_columns": "id", "update_columns": "id"}, "contains the key 'id'"),
        ({"write_mode": "upsert", "key_columns": "id", "delete_marker": "id"}, "cannot be a key"),
        ({"write_mode": "upsert", "key_columns": "id", "delete_marker": "v", "order_column": "v"}, "is not stored"),
        ({"write_mode": "upsert", "key_columns": "id", "delete_marker": "v", "update_columns": "v"}, "is not stored"),
        ({"write_mode": "changes", "key_columns": "id", "sequence_column": "v"}, "needs operation_column"),
        ({"write_mode": "changes", "key_columns": "id", "operation_column": "op"}, "needs sequence_column"),
        ({"write_mode": "changes", "sequence_column": "v", "operation_column": "op"}, "needs key_columns"),
        (CHANGES | {"sequence_column": "id"}, "differs between the changes of a key"),
        (CHANGES | {"sequence_column": "op"}, "operation_column is not stored"),
        (CHANGES | {"order_column": "v"}, "order_column is an option of write_mode upsert"),
        (CHANGES | {"conflict_where": "v > 0"}, "conflict_where is an option of write_mode upsert"),
        (CHANGES | {"parts": 3}, "write_mode changes excludes offset_columns and parts"),
        ({"tombstone_retention": 9}, "tombstone_retention is an option of write_mode changes"),
        ({"statement_timeout": "soon"}, "statement_timeout"),
        ({"statement_timeout": "30 days"}, "longer than 24 days, the limit of the server; 0 means no timeout"),
        ({"statement_timeout": -1}, "must not be negative"),
        ({"retry_deadline": 0}, "must be longer than 0"),
        ({"payload_column": "row"}, "is an option of parts"),
        ({"parts": 3, "offset_columns": "id"}, "exclude each other"),
        ({"parts": 0}, "parts"),
        (
            {"parts": 3, "write_mode": "upsert", "key_columns": "id"},
            "write_mode upsert excludes offset_columns and parts",
        ),
        ({"offset_columns": "id", "key_columns": "id"}, "cannot be used with offset_columns"),
        ({"offset_columns": "id, id"}, "names the column 'id' twice"),
        ({"create_table": "always"}, "create_table"),
        ({"metadata_schema": "ä" * 32}, "longer than 63 bytes"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        PostgresSink(DSN, "t", **options)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [(0, 0), ("0.1 ms", 1), ("1 s", 1000), ("24 days", 2_073_600_000), ("10 minutes", 600_000)],
)
def test_a_bound_of_statements_is_given_as_the_server_takes_it(given: Any, milliseconds: int) -> None:
    assert PostgresSink(DSN, "t", statement_timeout=given).options.statement_milliseconds == milliseconds


class Server(PostgresConnection):
    """Takes settings."""

    info: Any = None

    def __init__(self, settings: dict[str, str], version: int = 180000) -> None:
        self.settings = settings
        self.info = SimpleNamespace(server_version=version, get_parameters=dict)

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.settings |= zip(params[::2], params[1::2], strict=True)

    def later(self, statement: Any, given: Any = ()) -> None:
        self.execute(statement, given)

    def __del__(self, *args: Any) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize(
    ("given", "settings", "patience"),
    [
        (0, {"statement_timeout": "0ms", "idle_in_transaction_session_timeout": "60000ms"}, None),
        (5, {"statement_timeout": "5000ms", "idle_in_transaction_session_timeout": "5000ms"}, 65),
        (600, {"statement_timeout": "600000ms", "idle_in_transaction_session_timeout": "60000ms"}, 660),
    ],
)
def test_a_driver_that_stops_frees_the_ledger_whatever_statements_may_take(
    given: int, settings: dict[str, str], patience: float | None
) -> None:
    server = Server({})
    PostgresSink(DSN, "t", statement_timeout=given).delegate.database.limit(server)
    lifted = {"lock_timeout": "0ms", "transaction_timeout": "0ms"}
    assert (server.settings, server.patience) == (settings | lifted, patience)


def test_a_server_is_sent_no_timeout_that_it_does_not_have() -> None:
    sent = []
    for version in (90500, 150000, 170000):
        server = Server({}, version)
        server.execute(*timeouts(server, {}))
        sent.append(server.settings.keys())
    assert [len(names) for names in sent] == [2, 3, 4]
    assert sent[2] - sent[1] == {"transaction_timeout"}


def test_a_sink_survives_pickling_and_shows_no_secret() -> None:
    sink = sink_from_options({"dsn": DSN, "table": "t", "writeMode": "upsert", "keycolumns": "a, b"})
    back = pickle.loads(pickle.dumps(sink))
    assert back.options == sink.options
    assert back.options.key_columns == ("a", "b")
    check_sink(sink)
    assert resolve(sink).guarantee() is Guarantee.EXACTLY_ONCE
    assert sink.target() == "postgres:warehouse/t"
    shown = (repr(sink), str(sink.options), sink.target(), sink.delegate.database.name())
    assert not any("hunter2" in text for text in shown)


OFFSETS = {"offset_columns": ["topic", "partition", "offset"]}
PARTS = {"parts": 12}


@pytest.mark.parametrize(
    ("options", "kind", "fixed"),
    [({}, "postgres", False), (OFFSETS, "postgres/source-offsets", False), (PARTS, "postgres/parts", True)],
)
def test_each_delivery_is_a_sink_of_its_own(options: dict[str, Any], kind: str, fixed: bool) -> None:
    sink = PostgresSink(DSN, "t", **options)
    check_sink(sink)
    back = pickle.loads(pickle.dumps(sink))
    found = resolve(sink)
    assert (found.kind(), found.fixed, found.guarantee()) == (kind, fixed, Guarantee.EXACTLY_ONCE)
    assert (type(back), back.options) == (type(sink), sink.options)
    assert (type(sink), repr(sink)) == (PostgresSink, "PostgresSink(table='t', write_mode='append')")
    assert ("a source" in str(resolve(sink).requirements())) is bool(options)


def test_parts_are_numbered_and_keep_their_numbers() -> None:
    sink: Any = PostgresSink(DSN, "t", parts=12)
    assert sink.list_parts() == [str(number) for number in range(12)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"offsetColumns": "topic, offset"},
            r"write_stream\(df, PostgresSink\(dsn, 't', offset_columns=\['topic', 'offset'\]\), checkpoint=…\)",
        ),
        ({"parts": "4"}, r"write_stream\(df, sink, key=…, checkpoint=…\)"),
    ],
)
def test_offsets_are_refused_through_options_with_the_line_to_use(options: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigurationError, match=line) as caught:
        make_sink("postgres", {"dsn": DSN, "table": "t"} | options)
    assert "hunter2" not in str(caught.value)


# --- rows of parts


ROWS = pa.RecordBatch.from_pydict({"id": [7, 8], "text": ["a", None]})


def rows_of(**options: Any) -> PartRows:
    return PartRows(PostgresSink(DSN, "t", parts=3, **options).options)


def test_rows_get_their_part_and_number_and_go_on_where_they_ended() -> None:
    made = rows_of().batch(ROWS, "2", 40)
    assert made.to_pylist() == [
        {"partition_id": 2, "offset": 40, "id": 7, "text": "a"},
        {"partition_id": 2, "offset": 41, "id": 8, "text": None},
    ]
    text = replace(rows_of(part_column="p", part_offset_column="n"), text=True).batch(ROWS, "2", 0)
    assert text.select(["p", "n"]).to_pylist() == [{"p": "2", "n": 0}, {"p": "2", "n": 1}]


def test_rows_may_stay_as_they_are_or_become_one_value() -> None:
    assert rows_of(offset_keys="ledger").batch(ROWS, "2", 0) == ROWS
    made = rows_of(offset_keys="ledger", payload_column="data").batch(ROWS, "2", 0)
    assert made.to_pylist() == [{"data": {"id": 7, "text": "a"}}, {"data": {"id": 8, "text": None}}]


@pytest.mark.parametrize(("name", "option"), [("offset", "part_offset_column"), ("partition_id", "part_column")])
def test_a_column_where_ours_would_go_is_refused_by_the_option_that_moves_it(name: str, option: str) -> None:
    given = pa.schema([(name, pa.int64())])
    with pytest.raises(ConfigurationError, match=option):
        rows_of().schema(given)
    assert rows_of(offset_keys="ledger").schema(given) == given
    assert rows_of(payload_column="data").schema(given).names == ["partition_id", "offset", "data"]


def test_a_dsn_that_cannot_be_read_is_told_without_it() -> None:
    sink = PostgresSink("postgresql://app:hunter2@[oops/x", "t")
    with pytest.raises(ConfigurationError, match="the dsn cannot be parsed") as caught:
        sink.target()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "app:hun@ter2@db.example:6432/w", "app:hun@@ter2@db.example/w", "app:@hunter2@db.example/w",
        "app:hun/ter2@db.example/w", "app:/hunter2@db.example/w", "app:hunter2/@db.example/w", "app:12/hunter2@db/w",
        "app:hun@x/ter2@db/w", "app:hun/x@ter2@db/w", "app:hun?x/ter2@db/w", "app:hun/te?r2@db/w", "app:hun,t/er2@db/w",
        "app:hun%ter2@db.example/w", "app:hun ter2@db.example/w", "app:hunter2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_password_that_is_not_percent_encoded_is_never_printed(scheme: str, dsn: str) -> None:
    sink = PostgresSink(f"{scheme}://{dsn}", "t")
    for call in (sink.target, sink.delegate.database.name, sink.delegate.database._conninfo):
        with pytest.raises(ConfigurationError, match=r"(?s)the dsn cannot be parsed.*percent-encoded") as caught:
            call()
        for secret in ("hun", "ter2", "db"):
            assert secret not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


@pytest.mark.parametrize("secret", ["hun#ter2", "hun?ter2", "hun:ter2", "hun'ter2", "h%40u%2Fn%25", "hun%20ter2", ""])
def test_passwords_that_can_be_read_are_kept_to_themselves(secret: str) -> None:
    sink = PostgresSink(f"postgresql://app:{secret}@db.example:6432/w", "t")
    assert (sink.target(), sink.delegate.database.name()) == ("postgres:w/t", "db.example:6432/w")


@pytest.mark.parametrize(
    ("dsn", "name"),
    [
        ("postgresql://app@a:1,b:2/w", "w"), ("postgresql://db/a%40b", "a@b"), ("host=@abstract dbname=a@b", "a@b"),
        ("postgresql://db/w?user=me@host", "w"), ("postgresql://app@%2Fvar%2Frun/w", "w"),
        ("host=/var/run/postgresql dbname=w", "w"), ("user=app", "app"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_environment")
def test_a_target_is_a_database_and_a_table_wherever_the_server_is(dsn: str, name: str) -> None:
    assert PostgresSink(dsn, "t").target() == f"postgres:{name}/t"


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize(
    ("dsn", "environment", "name"),
    [
        ("host=db dbname=w user=app", {"PGDATABASE": "other"}, "w"),
        ("host=db user=app", {"PGDATABASE": "other", "PGUSER": "me"}, "other"),
        ("host=db user=app", {"PGUSER": "me"}, "app"),
        ("host=db", {"PGUSER": "me"}, "me"),
        ("service=warehouse user=app", {"PGDATABASE": "other"}, "app"),
    ],
)
def test_a_database_without_a_name_is_the_one_that_the_client_takes(
    dsn: str, environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert PostgresSink(dsn, "t").target() == f"postgres:{name}/t"


@pytest.mark.usefixtures("no_environment")
def test_a_database_without_a_name_and_a_user_is_that_of_the_systems_user() -> None:
    assert PostgresSink("host=db", "t").target() == f"postgres:{pwd.getpwuid(os.geteuid()).pw_name}/t"


def test_a_dsn_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = PostgresSink("env:OUTFALL_DSN", "t")
    monkeypatch.setenv("OUTFALL_DSN", DSN)
    assert sink.target() == "postgres:warehouse/t"


@pytest.mark.parametrize(
    ("dsn", "mode", "root"),
    [
        ("postgresql://db.example/x", "verify-full", SYSTEM),
        ("postgresql://db.example/x?sslrootcert=/ca.pem", "verify-full", "/ca.pem"),
        ("postgresql://db.example/x?sslmode=require", "require", None),
        ("postgresql://127.0.0.1/x", None, None),
        ("host=/var/run/postgresql dbname=x", None, None),
        ("dbname=x", None, None),
        ("host=127.0.0.1,localhost dbname=x", None, None),
        ("host=localhost,db.example dbname=x", "verify-full", SYSTEM),
        ("host=localhost hostaddr=192.0.2.1 dbname=x", "verify-full", SYSTEM),
        ("host=db.example hostaddr=127.0.0.1 dbname=x", "verify-full", SYSTEM),
    ],
)
def test_certificates_are_verified_unless_the_dsn_says_otherwise(dsn: str, mode: str | None, root: str | None) -> None:
    database: PostgresDatabase = PostgresSink(dsn, "t").delegate.database
    found = conninfo_to_dict(database._conninfo())
    assert (found.get("sslmode"), found.get("sslrootcert")) == (mode, root)
    assert found["client_encoding"] == "UTF8"


@pytest.mark.parametrize(
    ("name", "value", "mode", "root"),
    [
        ("PGHOST", "db.example", "verify-full", SYSTEM),
        ("PGHOSTADDR", "192.0.2.1", "verify-full", SYSTEM),
        ("PGHOST", "/var/run/postgresql", None, None),
        ("PGSSLMODE", "require", None, None),
        ("PGSSLROOTCERT", "/ca.pem", None, None),
    ],
)
def test_the_environment_names_hosts_and_ways_to_verify_them(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, mode: str | None, root: str | None
) -> None:
    monkeypatch.setenv(name, value)
    found = conninfo_to_dict(PostgresSink("dbname=x", "t").delegate.database._conninfo())
    assert (found.get("sslmode"), found.get("sslrootcert")) == (mode, root)


def test_an_authority_that_the_environment_names_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", "/ca.pem")
    found = conninfo_to_dict(PostgresSink(DSN, "t").delegate.database._conninfo())
    assert (found["sslmode"], found.get("sslrootcert")) == ("verify-full", None)


@pytest.mark.parametrize(("dsn", "told"), [(DSN, True), (f"{DSN}?sslmode=require", False), ("dbname=x", False)])
def test_who_did_not_choose_to_verify_is_told_why_a_connection_failed(dsn: str, told: bool) -> None:
    error = psycopg.OperationalError("server does not support SSL, but SSL was required")
    assert ("sslmode=prefer" in str(PostgresSink(dsn, "t").delegate.database.translated("writing", error))) is told


# --- names


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("Flights", None, "flights"),
        ("Air.Flights", "air", "flights"),
        ('"Air"."My ""Flights"""', "Air", 'My "Flights"'),
        ('air."a.b"', "air", "a.b"),
    ],
)
def test_names_are_read_as_sql_reads_them(text: str, schema: str | None, name: str) -> None:
    assert TableName.parse(text) == TableName(schema, name)


@pytest.mark.parametrize("text", ["a.b.c", "a.", ".a", 'a"b', '"a', "a" * 64, "", 'a".b'])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        TableName.parse(text)


def test_staging_is_named_by_table_and_step_within_the_servers_bound() -> None:
    names = {
        str(staging_name("outfall", TableName(schema, table), step))
        for schema in (None, "a")
        for table in ("t", "T", "ä" * 30)
        for step in ("sink", "x" * 100)
    }
    assert len(names) == 12
    assert all(len(name.removeprefix("outfall.").encode()) <= 63 for name in names)


def test_a_table_that_a_search_path_finds_is_told_from_others_of_its_name() -> None:
    table = TableName(None, "t")
    assert table.found_in("public") == table.found_in(None) == table
    assert table.found_in("a") == TableName("a", "t") == TableName("a", "t").found_in("b")


def test_staged_rows_that_were_recorded_without_their_table_are_read() -> None:
    serializer = ModelSerializer(StagedRows)
    former = b'{"stage":7,"rows":2,"columns":["id"],"letters":0}'
    assert serializer.deserialize(1, former) == StagedRows(stage=7, rows=2, columns=("id",))
    staged = StagedRows(stage=7, rows=2, columns=("id",), staging=("My Schema", "a.b"))
    assert serializer.deserialize(1, serializer.serialize(staged)) == staged


# --- statements


def text(**options: Any) -> str:
    sink = PostgresSink(DSN, 's."T"', **options)
    names, words = (sink.delegate.table, TableName("outfall", "staging"), ("id", "a b", "v")), PostgresWords()
    return "; ".join(Statements(words, sink.options, *names).moving(words.all([1])))


def test_appended_rows_are_those_of_the_winners() -> None:
    assert text() == (
        'INSERT INTO "s"."T" ("id", "a b", "v") SELECT "id", "a b", "v" FROM "outfall"."staging"'
        ' WHERE "_outfall_stage" = ANY(%(stages)s)'
    )


def test_upserts_take_the_last_of_each_key_in_the_order_of_keys() -> None:
    made = text(write_mode="upsert", key_columns=["id"], order_column="v", delete_marker="removed")
    assert 'DISTINCT ON ("id")' in made
    assert 'ORDER BY "id", "v" DESC NULLS LAST, "_outfall_stage" DESC, "_outfall_row" DESC' in made
    assert made.startswith(
        'DELETE FROM "s"."T" AS target USING (SELECT DISTINCT ON ("id") "id" AS "_outfall_0", "v" AS "_outfall_1"'
        ' FROM "outfall"."staging" WHERE "_outfall_stage" = ANY(%(stages)s) AND coalesce("_outfall_delete", false)'
    )
    assert (
        ' AS removed WHERE target."id" = removed."_outfall_0"'
        ' AND (target."v" IS NULL OR target."v" <= removed."_outfall_1");'
    ) in made
    assert 'WHERE NOT "_outfall_gone" ORDER BY "id" ON CONFLICT ("id") DO UPDATE SET "a b" = EXCLUDED."a b"' in made
    assert made.endswith('WHERE (target."v" IS NULL OR target."v" <= excluded."v")')


# --- errors


class Failed(psycopg.Error):
    """An error with a code of the server's."""

    def __init__(self, code: str) -> None:
        super().__init__("the server's text")
        self.sqlstate = code


@pytest.mark.parametrize(
    ("code", "passes", "kind"),
    [
        ("08006", True, TransientError), ("40001", True, TransientError), ("40P01", True, TransientError),
        ("53300", True, TransientError), ("57P01", True, TransientError), ("57P03", True, TransientError),
        ("25006", True, TransientError), ("55P03", True, TransientError), ("57014", False, TargetError),
        ("22003", False, ValueRefusedError), ("23505", False, ValueRefusedError), ("42703", False, TargetError),
        ("42501", False, TargetError),
    ],
)  # fmt: skip
def test_codes_say_whether_trying_again_may_help(code: str, passes: bool, kind: type[Exception]) -> None:
    error, database = Failed(code), PostgresSink(DSN, "t").delegate.database
    assert database.is_transient(error) is passes
    made = database.translated("writing", error)
    assert type(made) is kind
    assert f"SQLSTATE {code}" in str(made)
    assert "hunter2" not in str(made)
