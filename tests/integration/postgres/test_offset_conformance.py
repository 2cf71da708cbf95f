"""Offsets of the source are exactly once where that source is repeatable: the conformance suite does not refute it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.testing import SinkConformance, run_conformance
from tests.integration.support.sql import Table, first
from tests.integration.support.sql_conformance import SHORT, SHORTEST, UNSTAGED, DirectTables, Tables


class SourceTables(DirectTables):
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


@pytest.mark.parametrize(
    ("tables", "checks"),
    first(
        0,
        [
            (SourceTables, SHORTEST),
            pytest.param(SourceTables, SHORT, marks=pytest.mark.thorough),
            pytest.param(SourceTables, ["changed_layout", "in_wrappers"], marks=pytest.mark.thorough),
        ],
    ),
)
def test_rows_under_offsets_in_short(
    home: Table, tmp_path: Path, tables: type[DirectTables], checks: list[str]
) -> None:
    harness = tables()
    harness.home = home
    report = run_conformance(harness, tmp_path, checks=checks)
    assert report.passed, report


class Suite(SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _database(self, home: Table) -> None:
        self.home = home


@pytest.mark.long
class TestSourceOffsets(SourceTables, Suite):
    memory_limit = 16 << 20
