"""Deletes by `PostgresSink` are exactly once, as views can tell: the conformance suite does not refute it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outfall.testing import SinkConformance, run_conformance
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Databases
from tests.integration.support.sql import Table
from tests.integration.support.sql_conformance import ONE_ROW_PER_KEY, SHORTEST, Tables

UNIVERSE = 20_000


class DeletedTables(Tables):
    """A target is a view of rows that never go; what is deleted, and how often, is written down by its trigger."""

    not_claimed = Tables.not_claimed | {
        "save_modes": "the target is never empty, and mode='error' rejects it",
        "equal_rows": ONE_ROW_PER_KEY,
    }

    def new_target(self, directory: Path) -> Any:
        name = f"t_{secrets.token_hex(8)}"
        self.home.run(
            f"CREATE VIEW {name} AS SELECT id, text FROM universe; CREATE TABLE log_{name} (id bigint, text text);"
            f" CREATE FUNCTION write_{name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN INSERT INTO log_{name} SELECT OLD.*; RETURN OLD; END $$;"
            f" CREATE TRIGGER deleted INSTEAD OF DELETE ON {name} FOR EACH ROW EXECUTE FUNCTION write_{name}()"
        )
        return name

    def read(self, target: Any) -> Iterable[Any]:
        return super().read(f"log_{target}")

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"write_mode": "delete", "key_columns": "id"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}"}


@pytest.fixture(scope="session")
def universe(postgres: Databases) -> Table:
    """A database with the rows that views show."""
    home = Target(postgres.new_database(), "CREATE TABLE universe (id bigint PRIMARY KEY, text text)")
    with psycopg.connect(home.dsn) as connection, connection.cursor().copy("COPY universe FROM STDIN") as copy:
        for number in range(UNIVERSE):
            copy.write_row(Tables().row(number).values())
    return home


@pytest.mark.thorough
def test_deletes_in_short(universe: Table, tmp_path: Path) -> None:
    tables = DeletedTables()
    tables.home = universe
    report = run_conformance(tables, tmp_path, checks=SHORTEST)
    assert report.passed, report


@pytest.mark.long
class TestDeletedRows(DeletedTables, SinkConformance):
    @pytest.fixture(autouse=True)
    def _database(self, universe: Table) -> None:
        self.home = universe
