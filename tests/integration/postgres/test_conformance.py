"""`PostgresSink` is exactly once in each of its modes: the conformance suite does not refute it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outfall.postgres import PostgresSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance


class Tables(SinkHarness):
    """A target is a table of its own, and so has a staging table of its own; they share the ledger."""

    dsn: str
    columns = "id bigint, text text"

    def new_target(self, directory: Path) -> Any:
        name = f"t_{secrets.token_hex(8)}"
        self._run(f"CREATE TABLE {name} ({self.columns})")
        return name

    def make_sink(self, target: Any) -> Any:
        return PostgresSink(
            self.dsn,
            target,
            # So that a checkpoint that was lost is noticed.
            on_existing="error",
            # A stopped driver holds the ledger's row, and whoever waits for it must not wait for long.
            statement_timeout="0.5 seconds",
            retry_deadline="1 second",
            **self.sink_options(),
        )

    def sink_options(self) -> dict[str, Any]:
        return {}

    def read(self, target: Any) -> Iterable[Any]:
        found = self._run(f"SELECT id, text FROM {target}")
        return [{"id": number, "text": text} for number, text in found]

    def lose(self, target: Any, committable: Any) -> None:
        self._run(f"DELETE FROM {self._staging(target)} WHERE _outfall_stage = {committable.stage}")

    def leftovers(self, target: Any) -> int:
        return int(self._run(f"SELECT count(*) FROM {self._staging(target)}")[0][0])

    def _staging(self, target: str) -> str:
        found = self._run(f"SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging_{target}%'")
        return f"outfall.{found[0][0]}"

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


SHORT = [
    "declared_guarantee", "one_epoch", "several_epochs", "empty_epochs_and_tasks", "counts_are_facts", "lost_log",
    "replay_of_a_completed_epoch", "replay_of_a_lost_epoch", "two_attempts_finish", "zombie_of_an_older_generation",
]  # fmt: skip


def test_appended_rows_in_short(conformance_dsn: str, tmp_path: Path) -> None:
    """What takes seconds; the others need minutes with a real server, most of them to wait for locks."""
    tables = Tables()
    tables.dsn = conformance_dsn
    report = run_conformance(tables, tmp_path, checks=SHORT)
    assert report.passed, report


class Suite(Tables, SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _database(self, conformance_dsn: str) -> None:
        self.dsn = conformance_dsn


@pytest.mark.long
class TestAppendedRows(Suite):
    memory_limit = 16 << 20


@pytest.mark.long
class TestUpsertedRows(Suite):
    columns = "id bigint PRIMARY KEY, text text"

    def sink_options(self) -> dict[str, Any]:
        return {"write_mode": "upsert", "key_columns": "id"}
