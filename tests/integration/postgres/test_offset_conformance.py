"""Offsets and parts are exactly once where their source is repeatable: the conformance suite does not refute it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.support.sql import Table, first
from tests.integration.support.sql_conformance import SHORT, SHORTEST, Tables

UNSTAGED = Tables.not_claimed | dict.fromkeys(["lost_before_committing", "lost_after_committing"], "nothing is staged")
NOT_CLAIMED = UNSTAGED | {
    "leftovers_are_cleaned_up": "nothing is staged",
    "parts_reordered": "an epoch that is in the table in part must be routed as before, or it is refused; the"
    " sink itself lists its parts in one order only",
}


class OffsetTables(Tables):
    """Rows come again as they were, as `requires()` says."""

    repeatable_source = True
    # Nothing is staged that could be lost, or left.
    lose = SinkHarness.lose
    leftovers = SinkHarness.leftovers


class SourceTables(OffsetTables):
    columns = "id bigint PRIMARY KEY, text text"
    leftovers = Tables.leftovers
    not_claimed = UNSTAGED | {
        "nothing_visible_before_commit": "tasks publish; the driver commits that their rows are there",
        "equal_rows": "a row is known by its offset",
        "failed_job": "rows that tasks of a failed job have published remain; the same job then adds the others only",
    }

    def sink_options(self, target: str) -> dict[str, Any]:
        return {
            "offset_columns": "id",
            # Its ledger does not tell which epochs it published: only rows tell that a checkpoint was lost.
            "on_existing": "error",
            # The rows of the largest task are sorted and inserted by one statement.
            "statement_timeout": "5 seconds",
        }


class PartTables(OffsetTables):
    not_claimed = NOT_CLAIMED

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"parts": 4, "offset_keys": "ledger"}


class NumberedTables(PartTables):
    columns = 'id bigint, text text, partition_id integer, "offset" bigint, PRIMARY KEY (partition_id, "offset")'

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"parts": 4}


@pytest.mark.parametrize(
    ("tables", "checks"),
    first(
        0,
        [
            (SourceTables, SHORTEST),
            pytest.param(SourceTables, SHORT, marks=pytest.mark.thorough),
            pytest.param(PartTables, SHORTEST, marks=pytest.mark.thorough),
            pytest.param(PartTables, SHORT, marks=pytest.mark.thorough),
            *(
                pytest.param(tables, ["changed_layout", "in_wrappers"], marks=pytest.mark.thorough)
                for tables in (SourceTables, PartTables)
            ),
        ],
    ),
)
def test_rows_under_offsets_in_short(
    home: Table, tmp_path: Path, tables: type[OffsetTables], checks: list[str]
) -> None:
    harness = tables()
    harness.home = home
    report = run_conformance(harness, tmp_path, checks=checks)
    assert report.passed, report


class Suite(OffsetTables, SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _database(self, home: Table) -> None:
        self.home = home


@pytest.mark.long
class TestSourceOffsets(SourceTables, Suite):
    memory_limit = 16 << 20


@pytest.mark.long
class TestPartsInTheLedger(PartTables, Suite):
    memory_limit = 16 << 20


@pytest.mark.long
class TestPartsInColumns(NumberedTables, Suite):
    pass
