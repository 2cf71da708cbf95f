"""Taking possession of a table by parts: the cases that all kinds of targets run, on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.support.sql import Table
from tests.integration.support.sql_conformance import PartTables
from tests.one_each import one_each
from tests.unit.support.possession import MODES, STEPS, queries_meet


@pytest.mark.thorough
@pytest.mark.parametrize(("modes", "step"), one_each(MODES, STEPS))
def test_of_two_queries_that_meet_none_loses_a_row_unnoticed(
    modes: tuple[str, str], step: str, tmp_path: Path, home: Table
) -> None:
    harness = PartTables()
    harness.home = home
    queries_meet(harness, tmp_path, modes, step, stops=False)
