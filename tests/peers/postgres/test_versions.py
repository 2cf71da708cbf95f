"""What only newer servers have: keys without overlaps, virtual columns, constraints that are not enforced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, TargetError
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server, own_server
from tests.integration.support.sql import rows, run
from tests.peers.support.postgres_binaries import postgres_programs


@pytest.fixture(scope="module")
def newest() -> Iterator[Server]:
    with postgres_programs("18") as programs, own_server(programs=programs) as found:
        yield found


PERIODS = (
    "CREATE EXTENSION btree_gist;"
    " CREATE TABLE t (id int, valid daterange, CONSTRAINT once PRIMARY KEY (id, valid WITHOUT OVERLAPS))"
)
EARLY, LATE, APART = "[2020-01-01,2020-02-01)", "[2020-01-15,2020-02-15)", "[2021-01-01,2021-02-01)"


@pytest.mark.parametrize(
    "options",
    [
        {"offset_columns": "id,valid"},
        {"write_mode": "upsert", "key_columns": "id,valid"},
    ],
    ids=["source offsets", "upsert"],
)
def test_a_key_without_overlaps_that_takes_periods_for_equal_is_refused_at_the_start(
    newest: Server, options: dict[str, Any]
) -> None:
    sink = Target(newest.new_database(), PERIODS).sink(**options)
    with pytest.raises(TargetError, match="no unique index"):
        sink.check_schema(pa.schema({"id": pa.int32(), "valid": pa.string()}))


def test_a_row_that_overlaps_is_a_dead_letter(newest: Server, recovery: str) -> None:
    target = Target(newest.new_database(), PERIODS)
    sink = target.sink(dead_letter_table="dead")
    run(sink, recovery, 0, [{"id": 1, "valid": EARLY}])
    run(sink, recovery, 1, [{"id": 1, "valid": LATE}, {"id": 2, "valid": LATE}], [{"id": 1, "valid": APART}])
    assert target.run("SELECT id, valid::text FROM t ORDER BY 1, 2") == [(1, EARLY), (1, APART), (2, LATE)]
    assert target.run("SELECT code, \"row\"::jsonb ->> 'valid' FROM dead") == [("23P01", LATE)]


VIRTUAL = "CREATE TABLE t (id bigint PRIMARY KEY, name text, loud text GENERATED ALWAYS AS (upper(name)) VIRTUAL)"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_mode": "upsert", "key_columns": "id"},
        {"offset_columns": "id"},
        {"parts": 2, "offset_keys": "ledger"},
    ],
    ids=["append", "upsert", "source offsets", "parts"],
)
def test_a_virtual_column_is_the_servers(newest: Server, recovery: str, options: dict[str, Any]) -> None:
    target = Target(newest.new_database(), VIRTUAL)
    sink = target.sink(**options)
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    made = rows(1, 2)
    run(sink, recovery, 0, [("k", row) for row in made] if "parts" in options else made)
    assert target.run("SELECT * FROM t ORDER BY id") == [(1, "n1", "N1"), (2, "n2", "N2")]
    with pytest.raises(ConfigurationError, match="'loud' is a column that the server fills"):
        sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string(), "loud": pa.string()}))


def test_a_virtual_column_that_a_check_reads_refuses_its_row_alone(newest: Server, recovery: str) -> None:
    target = Target(newest.new_database(), f"{VIRTUAL}; ALTER TABLE t ADD CHECK (loud <> 'N2')")
    run(target.sink(dead_letter_table="dead"), recovery, 0, rows(1, 2, 3))
    assert target.ids() == [1, 3]
    assert target.run("SELECT code FROM dead") == [("23514",)]


def test_what_is_not_enforced_refuses_nothing_and_what_is_not_validated_does(newest: Server, recovery: str) -> None:
    target = Target(
        newest.new_database(),
        "CREATE TABLE other (id bigint PRIMARY KEY);"
        " CREATE TABLE t (id bigint CHECK (id < 0) NOT ENFORCED REFERENCES other NOT ENFORCED, name text);"
        " ALTER TABLE t ADD CONSTRAINT named NOT NULL name NOT VALID",
    )
    run(target.sink(dead_letter_table="dead"), recovery, 0, [*rows(1), {"id": 2, "name": None}])
    assert target.ids() == [1]
    assert target.run("SELECT code FROM dead") == [("23502",)]
    with pytest.raises(ConfigurationError, match="'name', which is NOT NULL"):
        target.sink().check_schema(pa.schema({"id": pa.int64()}))
