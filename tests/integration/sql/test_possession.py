"""Taking possession of a table: the cases that all kinds of targets run, on a server."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.integration.support.sql import THOROUGH, Table
from tests.integration.support.sql_conformance import Tables
from tests.unit.support.possession import MODES, STEPS, queries_meet

BY_DEFAULT = (("append", "overwrite"), "after open target")


@pytest.mark.parametrize(
    ("modes", "step"),
    [pytest.param(*case, marks=[] if case == BY_DEFAULT else THOROUGH) for case in product(MODES, STEPS)],
)
def test_of_two_queries_that_meet_none_loses_a_row_unnoticed(
    modes: tuple[str, str], step: str, tmp_path: Path, home: Table
) -> None:
    harness = Tables()
    harness.home = home
    queries_meet(harness, tmp_path, modes, step, stops=False)
