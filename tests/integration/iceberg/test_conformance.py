"""`IcebergSink` is exactly once: the conformance suite does not refute it, on the embedded catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from outfall.capabilities import Guarantee
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.support.iceberg_epochs import NAME, Lake
from tests.integration.support.iceberg_reader import TableFiles
from tests.integration.support.recorded_elsewhere import IcebergRecordedElsewhere

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})


class IcebergTables(SinkHarness):
    """A target is a table in a catalogue of its own, in partitions, so that a task has several files."""

    claim = Guarantee.EXACTLY_ONCE
    not_claimed = {
        "memory_over_epochs": "caches of pyiceberg, SQLAlchemy and urllib grow to their bounds of 128 entries"
    }
    memory_limit: int | None = 192 << 20
    """A row group of 64 MiB for each of two partitions, and one that is encoded."""
    options_of_sink: ClassVar[dict[str, Any]] = {}
    partitioned_by: tuple[str, ...] = ("bucket[2]: id",)

    def new_target(self, directory: Path) -> Any:
        lake = Lake(directory)
        lake.create(SCHEMA, *self.partitioned_by)
        return lake

    def make_sink(self, target: Any) -> Any:
        return IcebergRecordedElsewhere(
            NAME,
            catalog_options=target.properties,
            retry_deadline="10 seconds",
            max_snapshot_age="1 second",
            **self.options_of_sink,
        )

    def read(self, target: Any) -> Iterable[Any]:
        return target.files.rows() if target.files.history() else []

    def lose(self, target: Any, committable: Any) -> None:
        for name in committable.names:
            (target.directory / "warehouse/db/flights/data" / committable.directory / name).unlink(missing_ok=True)

    def lose_target(self, target: Any) -> None:
        target.catalog.drop_table(NAME)
        target.create(SCHEMA, *self.partitioned_by)

    def save_target(self, target: Any) -> Callable[[], None]:
        """Note what a backup of the catalogue holds; the files stay."""
        location = target.table.metadata_location

        def restore() -> None:
            target.catalog.drop_table(NAME)
            target.catalog.register_table(NAME, location)

        return restore

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        database = target.directory / "catalog.db"
        away = database.rename(database.with_name("away"))
        database.mkdir()
        try:
            yield
        finally:
            database.rmdir()
            away.rename(database)

    def leftovers(self, target: Any) -> int:
        named = {path for snapshot in target.files.history() for path in snapshot.paths}
        return len(target.data_files() - named)


class UpsertedIcebergTables(IcebergTables):
    """The same table, with rows that are found by their key."""

    options_of_sink: ClassVar[dict[str, Any]] = {"write_mode": "upsert", "key_columns": "id"}
    not_claimed = {**IcebergTables.not_claimed, "equal_rows": "the table has one row per key"}

    def replacing_row(self, number: int, version: int) -> Any:
        return {"id": number, "text": f"version {version}"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}"}


class ManyIcebergTables(IcebergTables):
    """A target is two tables of one catalogue, which its rows name in turn."""

    options_of_sink: ClassVar[dict[str, Any]] = {"table_column": "place", "allowed_tables": "db.flights*"}
    names = (NAME, f"{NAME}_too")

    def new_target(self, directory: Path) -> Any:
        lake = super().new_target(directory)
        lake.catalog.create_table(self.names[1], SCHEMA)
        return lake

    def make_sink(self, target: Any) -> Any:
        return IcebergRecordedElsewhere(
            catalog_options=target.properties, retry_deadline="10 seconds", **self.options_of_sink
        )

    def row(self, number: int) -> Any:
        return super().row(number) | {"place": self.names[number % 2]}

    def read(self, target: Any) -> Iterable[Any]:
        return [
            row | {"place": name} for name in self.names for files in [self._files(target, name)] if files.history()
            for row in files.rows()
        ]  # fmt: skip

    def lose(self, target: Any, committable: Any) -> None:
        for name in committable.names:
            place = target.directory / "warehouse" / committable.table.replace(".", "/") / "data"
            (place / committable.directory / name).unlink(missing_ok=True)

    def lose_target(self, target: Any) -> None:
        super().lose_target(target)
        target.catalog.drop_table(self.names[1])
        target.catalog.create_table(self.names[1], SCHEMA)

    def save_target(self, target: Any) -> Callable[[], None]:
        locations = {name: target.catalog.load_table(name).metadata_location for name in self.names}

        def restore() -> None:
            for name, location in locations.items():
                target.catalog.drop_table(name)
                target.catalog.register_table(name, location)

        return restore

    def leftovers(self, target: Any) -> int:
        snapshots = (snapshot for name in self.names for snapshot in self._files(target, name).history())
        return len(target.data_files() - {path for snapshot in snapshots for path in snapshot.paths})

    def _files(self, target: Any, name: str) -> TableFiles:
        return TableFiles.of(target.directory / "catalog.db", name)


SHORT = ["two_attempts_finish", "lost_before_committing", "late_zombie", "leftovers_are_cleaned_up"]
MORE = [
    "one_epoch", "lost_reply_of_a_commit", "nothing_visible_before_commit", "lost_log", "lost_target",
    "replay_of_a_lost_epoch", "loss_of_power", "staged_data_is_kept", "leftovers_are_listed", "failed_job",
    "save_modes", "connection_check", "copied_log", "restored_target", "changed_layout", "null_in_a_key", "in_wrappers",
]  # fmt: skip


@pytest.mark.parametrize(
    ("harness", "checks"),
    [
        (IcebergTables, SHORT),
        *(
            pytest.param(harness, SHORT, marks=pytest.mark.thorough)
            for harness in (UpsertedIcebergTables, ManyIcebergTables)
        ),
        *(pytest.param(harness, MORE, marks=pytest.mark.thorough) for harness in (IcebergTables, ManyIcebergTables)),
        pytest.param(UpsertedIcebergTables, MORE, marks=pytest.mark.long),
    ],
)
def test_the_suite_in_short(tmp_path: Path, harness: type[IcebergTables], checks: list[str]) -> None:
    tables = harness()
    tables.most_cases = 4
    report = run_conformance(tables, tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.long
class TestIcebergTables(IcebergTables, SinkConformance):
    most_cases = 60


@pytest.mark.long
class TestManyIcebergTables(ManyIcebergTables, SinkConformance):
    most_cases = 30


@pytest.mark.long
class TestUpsertedIcebergTables(UpsertedIcebergTables, SinkConformance):
    most_cases = 60
