"""`PostgresSink` is exactly once in each of its modes: the conformance suite does not refute it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outfall.postgres import PostgresSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.support.changes import CHANGES, as_change
from tests.integration.support.postgres import Databases

ONE_ROW_PER_KEY = "a table has one row per key"


class Tables(SinkHarness):
    """A target is a table of its own, and so has a staging table of its own; they share the ledger."""

    dsn: str
    columns = "id bigint, text text"
    not_claimed = {
        "lost_target": "rows that others delete from a table are not missed",
        "target_refuses": "outages of the server are tried in test_faults.py",
    }

    def new_target(self, directory: Path) -> Any:
        name = f"t_{secrets.token_hex(8)}"
        self._run(f"CREATE TABLE {name} ({self.columns})")
        return name

    def make_sink(self, target: Any) -> Any:
        options: dict[str, Any] = {
            # A stopped driver holds the ledger's row, and whoever waits for it must not wait for long.
            "statement_timeout": "2 seconds",
            "retry_deadline": "2 seconds",
        }
        return PostgresSink(self.dsn, target, **(options | self.sink_options(target)))

    def sink_options(self, target: str) -> dict[str, Any]:
        return {}

    def read(self, target: Any) -> Iterable[Any]:
        found = self._run(f"SELECT id, text FROM {target}")
        return [{"id": number, "text": text} for number, text in found]

    def lose(self, target: Any, committable: Any) -> None:
        self._run(f"DELETE FROM {self._staging(target)} WHERE _outfall_stage = {committable.stage}")

    def save_target(self, target: Any) -> Callable[[], None]:
        """Dump the tables of this target, and the ledger, which it shares with others."""
        found = self._run(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            f" WHERE tablename LIKE '%{target}%' OR (schemaname, tablename) IN"
            " (('outfall', 'ledger'), ('outfall', 'attempts'), ('outfall', 'parts'))"
        )
        names = [name for (name,) in found]
        with psycopg.connect(self.dsn) as connection:
            dump = {name: _copied(connection, f"COPY {name} TO STDOUT") for name in names}

        def restore() -> None:
            with psycopg.connect(self.dsn) as connection:
                # Foreign keys are checked by triggers.
                connection.execute("SET session_replication_role = replica")
                connection.execute(f"TRUNCATE {', '.join(names)}")
                for name, data in dump.items():
                    with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                        copy.write(data)

        return restore

    def leftovers(self, target: Any) -> int:
        return int(self._run(f"SELECT count(*) FROM {self._staging(target)}")[0][0])

    def _staging(self, target: str) -> str:
        found = self._run(f"SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging_{target}%'")
        return f"outfall.{found[0][0]}"

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


def _copied(connection: psycopg.Connection, statement: str) -> bytes:
    with connection.cursor().copy(statement) as copy:
        return b"".join(bytes(data) for data in copy)


class UpsertedTables(Tables):
    columns = "id bigint PRIMARY KEY, text text"
    not_claimed = Tables.not_claimed | {"equal_rows": ONE_ROW_PER_KEY}

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"write_mode": "upsert", "key_columns": "id"}


class DeletedTables(Tables):
    """A target is a view of rows that never go; what is deleted, and how often, is written down by its trigger."""

    not_claimed = Tables.not_claimed | {
        "save_modes": "the target is never empty, and mode='error' rejects it",
        "equal_rows": ONE_ROW_PER_KEY,
    }

    def new_target(self, directory: Path) -> Any:
        name = f"t_{secrets.token_hex(8)}"
        self._run(
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


class ChangedTables(Tables):
    """Every third row is a delete; what is read are the rows of the table and the tombstones."""

    columns = "id bigint PRIMARY KEY, text text NOT NULL, lsn bigint"
    not_claimed = Tables.not_claimed | {"equal_rows": ONE_ROW_PER_KEY}

    def sink_options(self, target: str) -> dict[str, Any]:
        return CHANGES

    def row(self, number: int) -> Any:
        return as_change(super().row(number))

    def read(self, target: Any) -> Iterable[Any]:
        found = self._run(f"SELECT 'c', id, text, lsn FROM {target}")
        for (name,) in self._run(f"SELECT tablename FROM pg_tables WHERE tablename LIKE 'tombstones_{target}%'"):
            found += self._run(f"SELECT 'd', id, '', _outfall_sequence FROM outfall.{name}")
        return [dict(zip(("op", "id", "text", "lsn"), row, strict=True)) for row in found]


class SortedTables(Tables):
    """Every third row is refused; what is read are the rows of the table and its dead letters."""

    columns = "id bigint, text text, CHECK (text NOT LIKE 'bad%')"
    not_claimed = Tables.not_claimed | {"save_modes": "mode='overwrite' keeps the dead letters of earlier jobs"}

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"dead_letter_table": f"dead_{target}"}

    def row(self, number: int) -> Any:
        row: dict[str, Any] = super().row(number)
        return row | {"text": f"bad {row['text']}"} if number % 3 == 0 else row

    def read(self, target: Any) -> Iterable[Any]:
        found = list(super().read(target))
        if self._run(f"SELECT to_regclass('dead_{target}')")[0][0] is None:
            return found
        return found + [json.loads(row) for (row,) in self._run(f"SELECT row FROM dead_{target}")]


UNIVERSE = 20_000


@pytest.fixture(scope="session")
def conformance_dsn(postgres: Databases) -> str:
    """One database for all targets of the suite, with the rows that views show."""
    dsn: str = postgres.new_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE universe (id bigint PRIMARY KEY, text text)")
        with connection.cursor().copy("COPY universe FROM STDIN") as copy:
            for number in range(UNIVERSE):
                copy.write_row(Tables().row(number).values())
    return dsn


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
        pytest.param(DeletedTables, SHORTEST, marks=pytest.mark.thorough),
        (ChangedTables, SHORTEST),
        (SortedTables, SHORTEST),
    ],
)
def test_rows_in_short(conformance_dsn: str, tmp_path: Path, kind: type[Tables], checks: list[str]) -> None:
    """What takes seconds; the others need minutes with a real server, most of them to wait for locks."""
    tables = kind()
    tables.dsn = conformance_dsn
    report = run_conformance(tables, tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.thorough
def test_copies_of_the_log_and_of_the_database_in_short(conformance_dsn: str, tmp_path: Path) -> None:
    tables = Tables()
    tables.dsn, tables.most_cases = conformance_dsn, 4
    report = run_conformance(tables, tmp_path, checks=["copied_log", "log_copied_during_an_epoch", "restored_target"])
    assert report.passed, report


class Suite(SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _database(self, conformance_dsn: str) -> None:
        self.dsn = conformance_dsn


@pytest.mark.long
class TestAppendedRows(Tables, Suite):
    memory_limit = 16 << 20


@pytest.mark.long
class TestUpsertedRows(UpsertedTables, Suite):
    pass


@pytest.mark.long
class TestDeletedRows(DeletedTables, Suite):
    pass


@pytest.mark.long
class TestChanges(ChangedTables, Suite):
    pass


@pytest.mark.long
class TestRowsBesideRefusedOnes(SortedTables, Suite):
    pass
