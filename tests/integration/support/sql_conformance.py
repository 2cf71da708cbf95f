"""Tables of databases as targets of the conformance suite, by write mode."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from outfall.testing import SinkHarness
from tests.integration.support.changes import CHANGES, as_change
from tests.integration.support.sql import UPSERT, Table

ONE_ROW_PER_KEY = "a table has one row per key"
SHORT = [
    "declared_guarantee", "one_epoch", "several_epochs", "many_rows_tasks_and_epochs", "equal_rows",
    "empty_epochs_and_tasks", "counts_are_facts", "lost_log", "replay_of_a_completed_epoch", "replay_of_a_lost_epoch",
    "two_attempts_finish", "second_driver", "late_zombie", "lost_reply_of_a_commit", "failed_commit_is_resumed",
    "rewound_log",
]  # fmt: skip
COLUMNS_AND_KEYS = ["changed_layout", "null_in_a_key", "older_row_later", "in_wrappers"]
STALLING = ["zombie_of_an_older_generation", "concurrent_tasks"]
"""They stall at every call."""
CLEANING = ["staged_data_is_kept", "leftovers_are_cleaned_up", "leftovers_are_listed", "failed_job", "save_modes"]
SHORTEST = ["one_epoch", "several_epochs", "counts_are_facts", "lost_log", "two_attempts_finish"]


class Tables(SinkHarness):
    """A target is a table of its own, and so has a staging table of its own; they share the ledger."""

    home: Table
    columns = "id bigint, text {text}"
    not_claimed = {
        "lost_target": "rows that others delete from a table are not missed",
        "target_refuses": "outages of the server are tried in test_epochs.py",
    }

    def new_target(self, directory: Path) -> Any:
        name = f"t_{secrets.token_hex(8)}"
        self.home.run(f"CREATE TABLE {name} ({self.columns.format(text=self.home.long_text)})")
        return name

    def make_sink(self, target: Any) -> Any:
        # A stopped driver holds the ledger's row, and whoever waits for it must not wait for long.
        options = {"statement_timeout": "2 seconds", "retry_deadline": "2 seconds"} | self.sink_options(target)
        return self.home.sink(table=target, **options)

    def sink_options(self, target: str) -> dict[str, Any]:
        return {}

    def read(self, target: Any) -> Iterable[Any]:
        return [{"id": number, "text": text} for number, text in self.home.read(f"SELECT id, text FROM {target}")]

    def lose(self, target: Any, committable: Any) -> None:
        for name in self._staging(target):
            self.home.run(f"DELETE FROM {name} WHERE _outfall_stage = {committable.stage}")

    def save_target(self, target: Any) -> Callable[[], None]:
        """Copy the tables of this target, and the ledger, which it shares with others."""
        patterns = (f"%{target}%", "ledger", "attempts", "refused", "parts")
        saved = {name: f"saved_{secrets.token_hex(8)}" for pattern in patterns for name in self.home.tables(pattern)}
        for name, copy in saved.items():
            self.home.run(f"CREATE TABLE {copy} AS SELECT * FROM {name}")

        def restore() -> None:
            emptied = [f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM {copy}" for name, copy in saved.items()]
            self.home.run("; ".join([self.home.unchecked, *emptied]))

        return restore

    def leftovers(self, target: Any) -> int:
        return sum(self.home.count(name) for name in self._staging(target))

    def _staging(self, target: str) -> list[str]:
        return self.home.tables(f"staging_{target}%")


UNSTAGED = Tables.not_claimed | dict.fromkeys(["lost_before_committing", "lost_after_committing"], "nothing is staged")


class DirectTables(Tables):
    """Tasks publish their rows, which come again as they were, as `requires()` says."""

    not_claimed = UNSTAGED
    repeatable_source = True
    # Nothing is staged that could be lost, or left.
    lose = SinkHarness.lose
    leftovers = SinkHarness.leftovers


class PartTables(DirectTables):
    not_claimed = UNSTAGED | {
        "leftovers_are_cleaned_up": "nothing is staged",
        "parts_reordered": "an epoch that is in the table in part must be routed as before, or it is refused; the"
        " sink itself lists its parts in one order only",
    }

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"parts": 4, "offset_keys": "ledger"}


class NumberedTables(PartTables):
    columns = "id bigint, text {text}, part integer, number bigint, PRIMARY KEY (part, number)"

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"parts": 4, "part_column": "part", "part_offset_column": "number"}


class UpsertedTables(Tables):
    columns = "id bigint PRIMARY KEY, text {text}"
    not_claimed = Tables.not_claimed | {"equal_rows": ONE_ROW_PER_KEY}

    def sink_options(self, target: str) -> dict[str, Any]:
        return UPSERT

    def replacing_row(self, number: int, version: int) -> Any:
        return {"id": number, "text": f"version {version}"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}"}


class ManyTables(Tables):
    """A target is two tables of its own, which its rows name. All such targets share staging tables."""

    def new_target(self, directory: Path) -> Any:
        self._newest = super().new_target(directory)
        for name in self._tables(self._newest):
            self.home.run(f"CREATE TABLE {name} ({self.columns.format(text=self.home.long_text)})")
        return self._newest

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"table": None, "table_column": "place", "allowed_tables": f"{target}_*"}

    def make_sink(self, target: Any) -> Any:
        options = {"statement_timeout": "2 seconds", "retry_deadline": "2 seconds"} | self.sink_options(target)
        return self.home.sink(**options)

    def row(self, number: int) -> Any:
        return super().row(number) | {"place": self._tables(self._newest)[number % 2]}

    def read(self, target: Any) -> Iterable[Any]:
        return [row | {"place": name} for name in self._tables(target) for row in super(ManyTables, self).read(name)]

    def _staging(self, target: str) -> list[str]:
        return self.home.tables("staging_sink_%")

    def _tables(self, target: str) -> list[str]:
        return [f"{target}_0", f"{target}_1"]


class NullableKeys(UpsertedTables):
    """A key whose column may be NULL."""

    columns = "id bigint UNIQUE, text {text}"


class ChangedTables(Tables):
    """Every third row is a delete; what is read are the rows of the table and the tombstones."""

    columns = "id bigint PRIMARY KEY, text {text} NOT NULL, lsn bigint"
    not_claimed = Tables.not_claimed | {"equal_rows": ONE_ROW_PER_KEY}

    def sink_options(self, target: str) -> dict[str, Any]:
        return CHANGES

    def row(self, number: int) -> Any:
        return as_change(super().row(number))

    def replacing_row(self, number: int, version: int) -> Any:
        return {"op": "c", "id": number, "text": f"version {version}", "lsn": version}

    def null_key_row(self, version: int) -> Any:
        return {"op": "c", "id": None, "text": f"version {version}", "lsn": version}

    def read(self, target: Any) -> Iterable[Any]:
        found = self.home.read(f"SELECT 'c', id, text, lsn FROM {target}")
        for name in self.home.tables(f"tombstones_{target}%"):
            found += self.home.read(f"SELECT 'd', id, '', _outfall_sequence FROM {name}")
        return [dict(zip(("op", "id", "text", "lsn"), row, strict=True)) for row in found]


class SortedTables(Tables):
    """Every third row is refused; what is read are the rows of the table and its dead letters."""

    columns = "id bigint, text {text}, CHECK (text NOT LIKE 'bad%')"
    not_claimed = Tables.not_claimed | {"save_modes": "mode='overwrite' keeps the dead letters of earlier jobs"}

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"dead_letter_table": f"dead_{target}"}

    def row(self, number: int) -> Any:
        row: dict[str, Any] = super().row(number)
        return row | {"text": f"bad {row['text']}"} if number % 3 == 0 else row

    def read(self, target: Any) -> Iterable[Any]:
        found = list(super().read(target))
        if not self.home.tables(f"dead_{target}"):
            return found
        return found + [row for row, _ in self.home.letters(table=f"dead_{target}")]
