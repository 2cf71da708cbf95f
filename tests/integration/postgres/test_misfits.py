"""Columns, indexes and names that a table lacks or cannot have, and tables that are made and altered."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import (
    ConfigurationError,
    TargetError,
    TerminalError,
)
from outfall.postgres import PostgresSink
from tests.integration.postgres.support import Target
from tests.integration.support.sql import first, rows, run


def test_a_mismatch_is_explained_column_by_column(dsn: str) -> None:
    target = Target(
        dsn,
        "CREATE TABLE t (id bigint, nam text, n integer NOT NULL, made bigint GENERATED ALWAYS AS (id * 2) STORED)",
    )
    schema = pa.schema({"id": pa.binary(), "name": pa.string(), "made": pa.int64()})
    with pytest.raises(ConfigurationError) as caught:
        target.sink().check_schema(schema)
    for told in ("'id'", "'name', did you mean 'nam'", "'made' is a column that the server fills", "'n', which is NOT"):
        assert told in str(caught.value)


def test_columns_with_names_that_staging_needs_are_refused_before_the_first_row(dsn: str, recovery: str) -> None:
    names = [f"_outfall_{name}" for name in ("stage", "row", "delete", "gone", "number")]
    columns = ", ".join(f"{name} bigint" for name in names)
    target = Target(dsn, f"CREATE TABLE t (id bigint PRIMARY KEY, name text, {columns})")
    upserts: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id"}
    marked = upserts | {"delete_marker": "marked"}
    fields = {"id": pa.int64(), "name": pa.string(), "marked": pa.bool_()}
    for options, taken in (({}, names[:1]), (upserts, [*names[:2], *names[3:]]), (marked, names)):
        given = pa.schema({name: kind for name, kind in fields.items() if name != "marked" or options is marked})
        told = "; ".join(f"the name '{name}' is reserved for the sink" for name in taken)
        with pytest.raises(ConfigurationError, match=rf"do not fit t: {told}\. "):
            target.sink(**options).check_schema(given)
        with pytest.raises(
            ConfigurationError, match=rf"cannot be created: the name '{taken[-1]}' is reserved for the sink"
        ):
            PostgresSink(dsn, "made", create_table="if_missing", **options).check_schema(
                given.append(pa.field(taken[-1], pa.int64()))
            )
    target.run("ALTER TABLE t DROP COLUMN _outfall_stage")
    run(target.sink(), recovery, 0, [{"id": 1, "name": "a", "_outfall_row": 7}])
    assert target.run("SELECT id, name, _outfall_row FROM t") == [(1, "a", 7)]


@pytest.mark.parametrize(
    ("options", "message"),
    first(
        2,
        [
            ({"delete_marker": "gonne"}, "no column 'gonne'"),
            ({"delete_marker": "name"}, "delete marker 'name' is string"),
            ({"order_column": "version"}, "no column 'version'"),
            ({"update_columns": "nam"}, "no column 'nam'"),
            ({"key_columns": "key"}, "no column 'key'"),
            ({"conflict_constraint": "once"}, "no constraint 'once'"),
            ({"conflict_constraint": "made_pkey"}, None),
        ],
    ),
)
def test_columns_of_options_must_be_there_also_for_a_table_that_is_made(
    dsn: str, options: dict[str, Any], message: str | None
) -> None:
    sink = PostgresSink(
        dsn, "made", create_table="if_missing", write_mode="upsert", **({"key_columns": "id"} | options)
    )
    with pytest.raises(ConfigurationError, match=message) if message else nullcontext():
        sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))


@pytest.mark.parametrize("options", [{"create_table": "if_missing"}, {"schema_evolution": "add_columns"}])
def test_columns_that_are_made_have_names_that_the_server_takes_whole(dsn: str, options: dict[str, Any]) -> None:
    target = Target(dsn)
    sink = PostgresSink(dsn, "made" if "create_table" in options else "t", **options)
    for name in ("ä" * 32, "", "a\0b"):
        with pytest.raises(ConfigurationError, match="cannot be a column name"):
            sink.check_schema(pa.schema({"id": pa.int64(), name: pa.int64()}))
    sink.check_schema(pa.schema({"id": pa.int64(), "ä" * 31: pa.int64()}))
    assert target.ids() == []


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    first(
        4,
        [
            ("SELECT 1", {}, r'no unique index on id.*CREATE UNIQUE INDEX ON "t" \("id"\)'),
            ("CREATE UNIQUE INDEX ON t (id)", {}, None),
            ("CREATE UNIQUE INDEX ON t (id, name)", {}, "no unique index"),
            ("CREATE UNIQUE INDEX ON t (id) WHERE n > 0", {}, "no unique index"),
            ("CREATE UNIQUE INDEX ON t (id) WHERE n > 0", {"conflict_where": "n > 0"}, None),
            ("CREATE UNIQUE INDEX ON t (id) WHERE n > 0", {"conflict_where": "n > 5"}, None),
            (
                "CREATE UNIQUE INDEX ON t (id) WHERE n > 5",
                {"conflict_where": "n > 0"},
                "(?s)matches conflict_where.*42P10",
            ),
            (
                "CREATE UNIQUE INDEX ON t (id) WHERE n > 0",
                {"conflict_where": "m > 0"},
                "(?s)matches conflict_where.*42703",
            ),
            ("SELECT 1", {"conflict_where": "n > 0"}, "CREATE UNIQUE INDEX .* WHERE n > 0"),
            ("CREATE UNIQUE INDEX ON t (id)", {"conflict_where": "n > 0 AND name LIKE 'a%s'"}, None),
            ("ALTER TABLE t ADD CONSTRAINT once UNIQUE (id)", {"conflict_constraint": "once"}, None),
            (
                "ALTER TABLE t ADD CONSTRAINT once UNIQUE (id)",
                {"conflict_constraint": "twice"},
                "no constraint 'twice'",
            ),
            ("ALTER TABLE t ADD CONSTRAINT once UNIQUE (id, n)", {"conflict_constraint": "once"}, "is on id, n"),
            (
                "ALTER TABLE t ADD CONSTRAINT once UNIQUE (id) DEFERRABLE",
                {"conflict_constraint": "once"},
                "cannot decide conflicts",
            ),
            (
                "ALTER TABLE t ADD CONSTRAINT once CHECK (id > 0)",
                {"conflict_constraint": "once"},
                "cannot decide conflicts",
            ),
            (
                "ALTER TABLE t RENAME TO b; ALTER TABLE b ADD PRIMARY KEY (id); CREATE VIEW t AS SELECT * FROM b",
                {},
                None,
            ),
        ],
    ),
)
def test_upserts_without_an_index_are_refused_before_the_first_row(
    dsn: str, ddl: str, options: dict[str, Any], message: str | None
) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, name text, n bigint)")
    target.run(ddl)
    sink = target.sink(write_mode="upsert", key_columns="id", **options)
    with pytest.raises(TargetError, match=message) if message else nullcontext():
        sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string(), "n": pa.int64()}))


@pytest.mark.parametrize(
    "options",
    first(
        1,
        [
            {},
            pytest.param({"offset_columns": "id"}, marks=pytest.mark.thorough),
            {"parts": 1, "offset_keys": "ledger"},
        ],
    ),
    ids=["epoch", "offset columns", "parts"],
)
def test_a_column_that_was_dropped_while_rows_bring_it_stops_the_query(
    dsn: str, recovery: str, options: dict[str, Any]
) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    sink: Any = target.sink(**options)

    def epoch(number: int) -> None:
        made = rows(number)
        run(sink, recovery, number, [("k", row) for row in made] if "parts" in options else made)

    epoch(0)
    target.run("ALTER TABLE t DROP COLUMN name")
    with pytest.raises(ConfigurationError, match="the table has no column 'name'"):
        sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    with pytest.raises(TerminalError, match="has no column 'name'"):
        epoch(1)
    assert target.ids() == [0]
    target.run("ALTER TABLE t ADD COLUMN name text")
    epoch(1)
    assert target.run("SELECT * FROM t ORDER BY id") == [(0, None), (1, "n1")]
