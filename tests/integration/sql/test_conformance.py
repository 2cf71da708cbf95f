"""The sinks of databases are exactly once in each of their modes: the conformance suite does not refute it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.testing import SinkConformance, run_conformance
from tests.integration.support.sql import ON_EACH, THOROUGH, Table
from tests.integration.support.sql_conformance import (
    CLEANING,
    COLUMNS_AND_KEYS,
    SHORT,
    SHORTEST,
    STALLING,
    ChangedTables,
    ManyTables,
    NullableKeys,
    NumberedTables,
    PartTables,
    SortedTables,
    Tables,
    UpsertedTables,
)

pytestmark = ON_EACH


@pytest.mark.parametrize(
    ("harness", "checks"),
    [
        (Tables, SHORTEST),
        pytest.param(Tables, [check for check in SHORT if check not in SHORTEST], marks=THOROUGH),
        pytest.param(Tables, STALLING, marks=THOROUGH),
        pytest.param(Tables, CLEANING, marks=THOROUGH),
        *(pytest.param(harness, SHORTEST, marks=THOROUGH) for harness in (UpsertedTables, ChangedTables, SortedTables)),
        *(
            pytest.param(harness, COLUMNS_AND_KEYS, marks=THOROUGH)
            for harness in (Tables, UpsertedTables, ChangedTables)
        ),
        pytest.param(ManyTables, SHORT, marks=THOROUGH),
        pytest.param(NullableKeys, ["null_in_a_key"], marks=THOROUGH),
        pytest.param(PartTables, SHORTEST, marks=THOROUGH),
        pytest.param(PartTables, [check for check in SHORT if check not in SHORTEST], marks=pytest.mark.long),
        pytest.param(PartTables, ["changed_layout", "in_wrappers", *STALLING], marks=THOROUGH),
        pytest.param(NumberedTables, SHORTEST, marks=THOROUGH),
    ],
)
def test_rows_in_short(home: Table, tmp_path: Path, harness: type[Tables], checks: list[str]) -> None:
    """What takes seconds; the others need minutes with a real server, most of them to wait for locks."""
    tables = harness()
    tables.home = home
    report = run_conformance(tables, tmp_path, checks=checks)
    assert report.passed, report


@THOROUGH
def test_copies_of_the_log_and_of_the_database_in_short(home: Table, tmp_path: Path) -> None:
    tables = Tables()
    tables.home, tables.most_cases = home, 4
    report = run_conformance(tables, tmp_path, checks=["copied_log", "log_copied_during_an_epoch", "restored_target"])
    assert report.passed, report


class Suite(SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _database(self, home: Table) -> None:
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


@pytest.mark.long
class TestPartsInTheLedger(PartTables, Suite):
    memory_limit = 16 << 20


@pytest.mark.long
class TestPartsInColumns(NumberedTables, Suite):
    pass
