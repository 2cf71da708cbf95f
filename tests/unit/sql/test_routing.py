"""Which tables rows may name, and what the record of an epoch says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.mysql import MySQLSink
from outfall.mysql.names import MySQLName
from outfall.postgres import PostgresSink
from outfall.postgres.names import TableName
from outfall.sql.changes import Problem
from outfall.sql.dialect import StagedRows, StagedTable
from outfall.sql.many.listed import ListedTables
from outfall.sql.many.routing import Route, Router
from outfall.sql.many.tables import alike, in_two_places, merged, recorded_once
from outfall.sql.names import Found
from outfall.sql.tables import EpochTable

DSN = "postgresql://localhost/d"


@pytest.mark.parametrize(
    ("entry", "named", "found", "allowed"),
    [
        ("orders", "orders", ("app", "orders"), True),
        ("orders", "public.orders", ("public", "orders"), True),
        ("orders", "app.orders", ("app", "orders"), False),
        ("orders", "orders2", ("public", "orders2"), False),
        ("tenant_*", "tenant_7", ("public", "tenant_7"), True),
        ("tenant_*", "tenant_7.users", ("tenant_7", "users"), False),
        ("tenant_*", "my_tenant_7", ("public", "my_tenant_7"), False),
        ("*", "secret.users", ("secret", "users"), False),
        ("app.*", "app.users", ("app", "users"), True),
        ("app.*", "users", ("app", "users"), True),
        ("app.*", "users", ("public", "users"), False),
        ("tenant_*.events", "tenant_7.events", ("tenant_7", "events"), True),
        ("tenant_*.events", "tenant_7.users", ("tenant_7", "users"), False),
        ('"a.*"', '"a.b"', ("public", "a.b"), True),
        ("a+", "aa", ("public", "aa"), False),
    ],
)
def test_a_pattern_lets_no_row_choose_a_schema(entry: str, named: str, found: Found, allowed: bool) -> None:
    sink = PostgresSink(DSN, table_column="c", allowed_tables=entry)
    tables = ListedTables(sink.delegate.dialect(), "public")
    assert tables.allows(TableName.parse(named), found) == allowed


def test_names_are_compared_as_the_catalogue_has_them() -> None:
    sink = MySQLSink("mysql://localhost/d", table_column="c", allowed_tables="orders")
    tables = ListedTables(sink.delegate.dialect(), "d")
    assert tables.allows(MySQLName.parse("ORDERS"), ("d", "orders"))
    assert not tables.allows(MySQLName.parse("ORDERS"), ("d", "ORDERS"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "set either table or table_column"),
        ({"table": "t", "table_column": "c", "allowed_tables": "t"}, "set either table or table_column"),
        ({"table_column": "c"}, "table_column needs allowed_tables"),
        ({"table": "t", "allowed_tables": "t"}, "allowed_tables is an option of table_column"),
        ({"table": "t", "unknown_columns": "leave_out_null"}, "unknown_columns is an option of table_column"),
        (
            {"table_column": "c", "allowed_tables": "t", "write_mode": "upsert", "key_columns": "c"},
            "table_column is not stored",
        ),
        (
            {
                "table_column": "c",
                "allowed_tables": "t",
                "unknown_columns": "leave_out_null",
                "schema_evolution": "add_columns",
            },
            "exclude each other",
        ),
        (
            {"table_column": "c", "allowed_tables": "t", "write_mode": "upsert", "create_table": "if_missing"},
            "create_table needs key_columns or table_keys",
        ),
        ({"table": "t", "table_keys": {"t": "id"}}, "table_keys is an option of table_column"),
        ({"table_column": "c", "allowed_tables": "t", "table_keys": {"t": "id"}}, "table_keys is an option of the"),
        ({"table_column": "c", "allowed_tables": "t", "table_columns": {"t": "id"}}, "table_columns needs unknown_"),
        (
            {
                "table_column": "c",
                "allowed_tables": "t",
                "table_keys": {"t": "s"},
                "write_mode": "changes",
                "operation_column": "o",
                "sequence_column": "s",
            },
            "sequence_column cannot be a key",
        ),
        ({"table_column": "c", "allowed_tables": "t", "parts": 2}, "table_column excludes"),
        ({"table_column": "c", "allowed_tables": "a.b.c"}, "is not the name of a table"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        PostgresSink(DSN, **options)
    with pytest.raises(ConfigurationError, match=says):
        MySQLSink("mysql://localhost/d", **options)


def _attempt(stage: int, staging: str, **tables: tuple[tuple[str, ...], int]) -> StagedRows:
    found = tuple(
        StagedTable(found=("s", name), spelled=spelled, rows=rows) for name, (spelled, rows) in tables.items()
    )
    return StagedRows(
        stage=stage, rows=sum(table.rows for table in found), columns=("id",), staging=("o", staging), tables=found
    )


def test_a_record_has_each_table_once_and_all_spellings_of_it() -> None:
    attempts = [
        _attempt(1, "x", a=(("a",), 2), b=(("b",), 1)),
        _attempt(2, "x", a=(("A", "a"), 3)),
        _attempt(3, "y", c=(("c",), 4)),
    ]
    recorded = recorded_once(attempts)
    assert [(each.stage, each.rows) for each in recorded] == [(1, 3), (2, 3), (3, 4)]
    assert [[table.found[1] for table in each.tables] for each in recorded] == [["a", "b"], [], ["c"]]
    # Read again, it says the same as the attempts.
    for listed in (attempts, recorded):
        first, second = alike(listed)
        assert {table.found[1]: (table.spelled, table.rows) for table in merged(first)} == {
            "a": (("a", "A"), 5),
            "b": (("b",), 1),
        }
        assert [table.rows for table in merged(second)] == [4]
    assert recorded_once(recorded) == recorded


def test_a_table_whose_columns_changed_among_the_tasks_is_found() -> None:
    tables: Any = SimpleNamespace(target="a")
    first, second = _attempt(1, "x", a=(("a",), 2)), _attempt(2, "y", a=(("a",), 3))
    other = _attempt(3, "y", b=(("b",), 3))
    found = [EpochTable(tables, [each], each.tables[0]) for each in (first, second, other)]
    assert set(in_two_places(found)) == {1, 2}
    assert not in_two_places(found[1:])


@pytest.mark.thorough
def test_a_thousand_tables_are_some_kilobytes_of_the_record() -> None:
    names = {f"tenant_{number:04d}": ((f"tenant_{number:04d}",), 100) for number in range(1000)}
    recorded = recorded_once([_attempt(stage, "x", **names) for stage in range(50)])
    assert sum(len(each.model_dump_json()) for each in recorded) < 100_000


def test_rows_are_split_by_layout_and_a_name_without_rows_is_not_asked_about() -> None:
    """The dictionary of a column may have names of rows that were set aside."""
    nothing: Any = SimpleNamespace()
    layouts = {"a": 0, "b": 1, "c": 0}
    routes: dict[str | None, Any] = {name: Route(nothing, (None, name), at, ()) for name, at in layouts.items()}
    dialect = PostgresSink(DSN, table_column="place", allowed_tables="t").delegate.dialect()
    tables: Any = SimpleNamespace(options=dialect.options, dialect=dialect, target=SimpleNamespace(place=None))
    router = Router(tables, None, pa.schema({}))
    router._known |= {**routes, "bad": Problem("it is refused", "correct it")}
    place = pa.array(["bad", "a", "b", "c", "a"]).dictionary_encode()
    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(5)), "place": place}).slice(1)
    assert [(found.rows, found.batch["id"].to_pylist()) for found in router.split(batch)] == [
        ({"a": 2, "c": 1}, [1, 3, 4]),
        ({"b": 1}, [2]),
    ]
