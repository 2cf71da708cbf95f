"""`MySQLSink` is exactly once in each of its modes: the conformance suite does not refute it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.mysql import MySQLSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.mysql.support import Target
from tests.integration.support.changes import CHANGES, as_change
from tests.integration.support.mariadb import MariaDB

ONE_ROW_PER_KEY = "a table has one row per key"
OWN = ("ledger", "attempts", "refused")


class Tables(SinkHarness):
    """A target is a table of its own, and so has a staging table of its own; they share the ledger."""

    home: Target
    columns = "id BIGINT, text LONGTEXT"
    not_claimed = {
        "lost_target": "rows that others delete from a table are not missed",
        "target_refuses": "outages of the server are tried in test_epochs.py",
    }

    def new_target(self, directory: Path) -> Any:
        name = f"t_{secrets.token_hex(8)}"
        self.home.run(f"CREATE TABLE {name} ({self.columns})")
        return name

    def make_sink(self, target: Any) -> Any:
        options: dict[str, Any] = {
            # A stopped driver holds the ledger's row, and whoever waits for it must not wait for long.
            "statement_timeout": "2 seconds",
            "retry_deadline": "2 seconds",
            "metadata_schema": self.home.database,
        }
        return MySQLSink(self.home.dsn(), target, **(options | self.sink_options(target)))

    def sink_options(self, target: str) -> dict[str, Any]:
        return {}

    def read(self, target: Any) -> Iterable[Any]:
        return self.home.json(f"SELECT JSON_OBJECT('id', id, 'text', text) AS `row` FROM {target}")

    def lose(self, target: Any, committable: Any) -> None:
        for name in self._named(f"staging_{target}%"):
            self.home.run(f"DELETE FROM {name} WHERE _outfall_stage = {committable.stage}")

    def save_target(self, target: Any) -> Callable[[], None]:
        """Copy the tables of this target, and the ledger, which it shares with others."""
        names = [name for pattern in (f"%{target}%", *OWN) for name in self._named(pattern)]
        saved = {name: f"`{secrets.token_hex(8)}_saved`" for name in names}
        for name, copy in saved.items():
            self.home.run(f"CREATE TABLE {copy} LIKE {name}; INSERT INTO {copy} SELECT * FROM {name}")

        def restore() -> None:
            for name, copy in saved.items():
                self.home.run(f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM {copy}")

        return restore

    def leftovers(self, target: Any) -> int:
        return sum(
            int(self.home.run(f"SELECT count(*) FROM {name}")[0][0]) for name in self._named(f"staging_{target}%")
        )

    def _named(self, pattern: str) -> list[str]:
        query = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{self.home.database}'"
        found = self.home.run(f"{query} AND table_name LIKE '{pattern}' AND table_name NOT LIKE '%\\_saved'")
        return [name for (name,) in found]


class UpsertedTables(Tables):
    columns = "id BIGINT PRIMARY KEY, text LONGTEXT"
    not_claimed = Tables.not_claimed | {"equal_rows": ONE_ROW_PER_KEY}

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"write_mode": "upsert", "key_columns": "id"}


class ChangedTables(Tables):
    """Every third row is a delete; what is read are the rows of the table and the tombstones."""

    columns = "id BIGINT PRIMARY KEY, text LONGTEXT NOT NULL, lsn BIGINT"
    not_claimed = Tables.not_claimed | {"equal_rows": ONE_ROW_PER_KEY}

    def sink_options(self, target: str) -> dict[str, Any]:
        return CHANGES

    def row(self, number: int) -> Any:
        return as_change(super().row(number))

    def read(self, target: Any) -> Iterable[Any]:
        queries = [f"SELECT JSON_OBJECT('op', 'c', 'id', id, 'text', text, 'lsn', lsn) AS `row` FROM {target}"]
        queries += [
            f"SELECT JSON_OBJECT('op', 'd', 'id', id, 'text', '', 'lsn', _outfall_sequence) AS `row` FROM {name}"
            for name in self._named(f"tombstones_{target}%")
        ]
        return [row for query in queries for row in self.home.json(query)]


class SortedTables(Tables):
    """Every third row is refused; what is read are the rows of the table and its dead letters."""

    columns = "id BIGINT, text LONGTEXT, CHECK (text NOT LIKE 'bad%')"
    not_claimed = Tables.not_claimed | {"save_modes": "mode='overwrite' keeps the dead letters of earlier jobs"}

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"dead_letter_table": f"dead_{target}"}

    def row(self, number: int) -> Any:
        row: dict[str, Any] = super().row(number)
        return row | {"text": f"bad {row['text']}"} if number % 3 == 0 else row

    def read(self, target: Any) -> Iterable[Any]:
        found = list(super().read(target))
        if not self._named(f"dead_{target}"):
            return found
        return found + self.home.json(f"SELECT `row` FROM dead_{target}")


@pytest.fixture(scope="session")
def home(server: MariaDB) -> Target:
    """One database for all targets of the suite."""
    return Target(server, server.new_database())


SHORT = [
    "declared_guarantee", "one_epoch", "several_epochs", "many_rows_tasks_and_epochs", "equal_rows",
    "empty_epochs_and_tasks", "counts_are_facts", "lost_log", "replay_of_a_completed_epoch", "replay_of_a_lost_epoch",
    "two_attempts_finish", "second_driver", "late_zombie", "lost_reply_of_a_commit", "failed_commit_is_resumed",
    "rewound_log",
]  # fmt: skip
STALLING = ["zombie_of_an_older_generation", "concurrent_tasks"]
"""They stall at every call."""
CLEANING = ["staged_data_is_kept", "leftovers_are_cleaned_up", "leftovers_are_listed", "failed_job", "save_modes"]
SHORTEST = ["one_epoch", "several_epochs", "counts_are_facts", "lost_log", "two_attempts_finish"]


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (Tables, SHORT),
        pytest.param(Tables, STALLING, marks=pytest.mark.thorough),
        pytest.param(Tables, CLEANING, marks=pytest.mark.thorough),
        (UpsertedTables, SHORTEST),
        (ChangedTables, SHORTEST),
        (SortedTables, SHORTEST),
    ],
)
def test_rows_in_short(home: Target, tmp_path: Path, kind: type[Tables], checks: list[str]) -> None:
    """What takes seconds; the others need minutes with a real server, most of them to wait for locks."""
    tables = kind()
    tables.home = home
    report = run_conformance(tables, tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.thorough
def test_copies_of_the_log_and_of_the_database_in_short(home: Target, tmp_path: Path) -> None:
    tables = Tables()
    tables.home, tables.most_cases = home, 4
    report = run_conformance(tables, tmp_path, checks=["copied_log", "log_copied_during_an_epoch", "restored_target"])
    assert report.passed, report


class Suite(SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _database(self, home: Target) -> None:
        self.home = home


@pytest.mark.long
class TestAppendedRows(Tables, Suite):
    memory_limit = 16 << 20


@pytest.mark.long
class TestUpsertedRows(UpsertedTables, Suite):
    pass


@pytest.mark.long
class TestChanges(ChangedTables, Suite):
    pass


@pytest.mark.long
class TestRowsBesideRefusedOnes(SortedTables, Suite):
    pass
