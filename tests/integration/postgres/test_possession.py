"""Taking possession of a table: the cases that all kinds of targets run, on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.postgres.test_conformance import Tables
from tests.integration.postgres.test_offset_conformance import PartTables
from tests.integration.support.postgres import Databases
from tests.one_each import one_each
from tests.unit.support.possession import MODES, STEPS, queries_meet

KINDS: dict[str, type[Tables]] = {"epochs": Tables, "parts": PartTables}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("modes", "step"), one_each(MODES, STEPS))
def test_of_two_queries_that_meet_none_loses_a_row_unnoticed(
    kind: str, modes: tuple[str, str], step: str, tmp_path: Path, postgres: Databases
) -> None:
    harness = KINDS[kind]()
    harness.dsn = postgres.new_database()
    queries_meet(harness, tmp_path, modes, step, stops=False)
