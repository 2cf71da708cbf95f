"""`DeltaSink` is exactly once: the conformance suite does not refute it on a disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar

import pytest

from outfall.capabilities import Guarantee
from outfall.tables.data_file import EpochFiles
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from outfall.testing.conformance.checks import power
from outfall.testing.conformance.checks.power import MOMENTS
from tests.integration.support.recorded_elsewhere import DeltaRecordedElsewhere
from tests.one_each import thorough
from tests.unit.support.delta_reader import newest, versions, write_table

COLUMNS = {"id": "long", "text": "string", "kind": "string"}


class DeltaTables(SinkHarness):
    """A target is a table in a directory, partitioned by a column that is NULL in some rows."""

    claim = Guarantee.EXACTLY_ONCE
    options_of_sink: ClassVar[dict[str, Any]] = {}
    partitioned_by: ClassVar[list[str]] = ["kind"]

    def new_target(self, directory: Path) -> Path:
        table = directory / "table"
        write_table(table, COLUMNS, self.partitioned_by, {"delta.checkpointInterval": "3"})
        return table

    def make_sink(self, target: Path) -> Any:
        return DeltaRecordedElsewhere(target, **self.options_of_sink)

    def row(self, number: int) -> Any:
        return {**super().row(number), "kind": None if number % 3 == 0 else f"a b/{number % 3}"}

    def read(self, target: Path) -> Iterable[Any]:
        return newest(target).rows()

    def lose(self, target: Path, committable: EpochFiles) -> None:
        for name in committable.names:
            (target / committable.directory / name).unlink()

    def lose_target(self, target: Path) -> None:
        """Drop the table, and make another one of its name."""
        rmtree(target)
        write_table(target, COLUMNS, self.partitioned_by)

    def leftovers(self, target: Path) -> int:
        named = {path for version in versions(target) for path in version.files}
        return len({str(path.relative_to(target)) for path in target.rglob("outfall/**/*.parquet")} - named)

    @contextmanager
    def breaking(self, target: Path) -> Iterator[None]:
        hidden = target.with_name("hidden")
        target.rename(hidden)
        target.write_text("no directory")
        try:
            yield
        finally:
            target.unlink()
            hidden.rename(target)


class UpsertedDeltaTables(DeltaTables):
    """The same table, with rows that are found by their key."""

    options_of_sink: ClassVar[dict[str, Any]] = {"write_mode": "upsert", "key_columns": "id"}
    not_claimed = {**DeltaTables.not_claimed, "equal_rows": "the table has one row per key"}

    def replacing_row(self, number: int, version: int) -> Any:
        return {"id": number, "text": f"version {version}", "kind": "a"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}", "kind": "a"}


class ManyDeltaTables(DeltaTables):
    """A target is two tables of one directory, which its rows name in turn."""

    names = ("t0", "t1")

    def new_target(self, directory: Path) -> Path:
        target = directory / "tables"
        for name in self.names:
            write_table(target / name, COLUMNS, self.partitioned_by, {"delta.checkpointInterval": "3"})
        return target

    def make_sink(self, target: Path) -> Any:
        return DeltaRecordedElsewhere(target, table_column="place", allowed_tables="t*")

    def row(self, number: int) -> Any:
        return super().row(number) | {"place": self.names[number % 2]}

    def read(self, target: Path) -> Iterable[Any]:
        return [row | {"place": name} for name in self.names for row in newest(target / name).rows()]

    def lose(self, target: Path, committable: EpochFiles) -> None:
        super().lose(target / (committable.table or ""), committable)

    def lose_target(self, target: Path) -> None:
        for name in self.names:
            super().lose_target(target / name)

    def leftovers(self, target: Path) -> int:
        return sum(super(ManyDeltaTables, self).leftovers(target / name) for name in self.names)


SHORT = ["one_epoch", "two_attempts_finish", "lost_reply_of_a_commit", "lost_before_committing", "late_zombie"]
MORE = [
    "nothing_visible_before_commit",
    "lost_log",
    "lost_target",
    "restored_target",
    "staged_data_is_kept",
    "leftovers_are_cleaned_up",
    "leftovers_are_listed",
    "failed_job",
    "save_modes",
    "connection_check",
    "replay_of_a_lost_epoch",
    "changed_layout",
    "null_in_a_key",
    "in_wrappers",
]
HARNESSES = [DeltaTables, thorough(UpsertedDeltaTables), thorough(ManyDeltaTables)]
FORKING = ["memory_over_epochs", "tasks_in_processes_of_their_own", "killed_before_close"]


@pytest.mark.parametrize("harness", HARNESSES)
@pytest.mark.parametrize("checks", [SHORT, pytest.param(MORE, marks=pytest.mark.thorough)], ids=["short", "more"])
def test_the_suite_in_short(tmp_path: Path, harness: type[DeltaTables], checks: list[str]) -> None:
    report = run_conformance(harness(), tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.parametrize("harness", HARNESSES)
@pytest.mark.parametrize(
    ("check", "moment"),
    [
        *(pytest.param(check, None, marks=pytest.mark.long) for check in FORKING),
        *(pytest.param("loss_of_power", moment, marks=pytest.mark.thorough) for moment in MOMENTS),
    ],
)
def test_what_forks_has_a_process_of_its_own(
    tmp_path: Path, harness: type[DeltaTables], check: str, moment: str | None
) -> None:
    """Once deltalake was used in a process, it works in none that is forked from it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        assert fresh.submit(_failures, harness, check, moment, tmp_path).result() == ""


def _failures(harness: type[DeltaTables], check: str, moment: str | None, directory: Path) -> str:
    if moment is not None:
        power.MOMENTS = (moment,)
    report = run_conformance(harness(), directory, checks=[check])
    return "" if report.passed else str(report)


ELSEWHERE = dict.fromkeys([*FORKING, "loss_of_power"], "tried above, in a process of its own") | {
    "killed_at_every_step": "its children are forked from a process that has used deltalake; drivers of Spark are"
    " killed in tests/integration/tables"
}


@pytest.mark.long
class TestDeltaTables(DeltaTables, SinkConformance):
    not_claimed = {**DeltaTables.not_claimed, **ELSEWHERE}


@pytest.mark.long
class TestUpsertedDeltaTables(UpsertedDeltaTables, SinkConformance):
    not_claimed = {**UpsertedDeltaTables.not_claimed, **ELSEWHERE}


@pytest.mark.long
class TestManyDeltaTables(ManyDeltaTables, SinkConformance):
    not_claimed = {**ManyDeltaTables.not_claimed, **ELSEWHERE}
