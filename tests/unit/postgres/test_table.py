"""Which rows a table takes, by what the server says of its columns."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.postgres.catalogue.columns import Kind, TableColumn
from outfall.postgres.connection.database import PostgresDatabase
from outfall.postgres.dialect import PostgresDialect
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.sql.database import Session
from outfall.sql.names import is_own
from outfall.sql.table import Table


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["id", "ID"], "the new column 'ID' differs only in case from 'id'"),
        (["ID"], "the new column 'ID' differs only in case from 'id'"),
        (["id", "new", "New"], "the new column 'New' differs only in case from 'new'"),
        (["id", "new"], None),
        (["Both", "both"], None),
    ],
)
def test_no_column_is_added_that_differs_only_in_case(
    names: list[str], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [TableColumn(name, "bigint", Kind("int8", "int8recv")) for name in ("id", "Both", "both")]
    monkeypatch.setattr("outfall.postgres.dialect.read_columns", lambda *_: columns)
    options: Any = {"dsn": "postgresql:///x", "table": "t", "schema_evolution": "add_columns"}
    made, connection = PostgresOptions(**options), cast(Session, None)
    table = Table(PostgresDialect(made, PostgresDatabase(made)), TableName(None, "t"))
    schema = pa.schema([(name, pa.int64()) for name in names])
    if problem is None:
        table.check(connection, schema)
    else:
        with pytest.raises(ConfigurationError, match=problem):
            table.check(connection, schema)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("outfall.ledger", True), ("outfall.staging_t_job_0123456789ab", True), ("outfall.recovery_entries", True),
        ('"Outfall"."Attempts"', True), ("outfall.prices", False), ("public.ledger", False),
    ],
)  # fmt: skip
def test_the_sinks_own_tables_are_known_by_their_names(name: str, own: bool) -> None:
    assert is_own(TableName.parse(name), "outfall") is own
    parsed = TableName.parse(name)
    bare = TableName(None, parsed.name).resolved((parsed.schema, parsed.name))
    assert is_own(bare, "outfall") is own
