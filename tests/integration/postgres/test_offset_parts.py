"""`parts=N` in PostgreSQL: columns of JSON, one connection, a pooler. The rest is in tests/integration/sql."""

from __future__ import annotations

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.testing import LocalDriver
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import pgbouncer
from tests.integration.support.sql import listening, mostly_thorough
from tests.integration.support.sql_parts import numbered, one_task, parts_sink, run


def test_a_row_as_json_beside_its_part_and_number(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (p text, n bigint, data jsonb NOT NULL, PRIMARY KEY (p, n))")
    sink = parts_sink(target, 1, offset_keys="columns", part_column="p", part_offset_column="n", payload_column="data")
    run(sink, recovery, 0, 1, 2)
    assert target.run("SELECT * FROM t ORDER BY n") == [("0", 0, numbered(1)[0]), ("0", 1, numbered(2)[0])]


@pytest.mark.parametrize("kind", mostly_thorough(["text", "json", "jsonb"], ["jsonb"]))
def test_a_row_as_json_goes_into_each_type_that_the_option_names(dsn: str, recovery: str, kind: str) -> None:
    target = Target(dsn, f"CREATE TABLE t (data {kind}, name text)")
    sink = parts_sink(target, 1, payload_column="data")
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    run(sink, recovery, 0, 1)
    assert target.run("SELECT data::jsonb, name FROM t") == [(numbered(1)[0], None)]
    with pytest.raises(ConfigurationError, match="write it into a column of type jsonb"):
        target.sink().check_schema(pa.schema({"name": pa.struct([("a", pa.int64())])}))


def test_one_task_writes_all_its_parts_over_one_connection(target: Target, recovery: str) -> None:
    sink = parts_sink(target, 10)
    driver = LocalDriver(sink, recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    most = 0

    def count(step: str) -> None:
        nonlocal most
        if step == "sql: copying":
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outfall'"
            most = max(most, target.run(query + " AND datname = current_database()")[0][0])

    with listening(count):
        answer = one_task(driver, ticket, 0, {str(part): [part, part + 100] for part in range(10)})
    coordinator.finish(ticket, [answer])
    assert most == 1
    assert target.ids() == [*range(10), *range(100, 110)]


def test_all_of_it_goes_through_a_pooler_in_transaction_mode(target: Target, recovery: str) -> None:
    with pgbouncer(target.dsn) as pooled:
        sink = parts_sink(target, dsn=pooled)
        for epoch in range(3):
            run(sink, recovery, epoch, *range(10 * epoch, 10 * epoch + 10))
    assert target.ids() == list(range(30))


def test_the_rows_of_parts_are_removed_with_that_of_their_query(target: Target, recovery: str) -> None:
    run(parts_sink(target), recovery, 0, 1)
    assert target.run("SELECT count(*) FROM outfall.parts") == [(3,)]
    target.run("DELETE FROM outfall.ledger")
    assert target.run("SELECT count(*) FROM outfall.parts") == [(0,)]
