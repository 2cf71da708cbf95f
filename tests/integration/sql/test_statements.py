"""The statements of each write mode and option are those of the files that stand beside this one."""

from __future__ import annotations

import pytest

from tests.integration.sql.conftest import Database
from tests.integration.support.sql import Make, first
from tests.integration.support.sql_statements import CASES, file_of, statements, text_of


@pytest.mark.parametrize("name", first(1, CASES))
def test_statements_are_those_that_were_reviewed(make: Make, kind: Database, name: str) -> None:
    """A difference is shown with the command that writes the files anew: see `sql_statements`."""
    if kind.shared not in CASES[name].only:
        pytest.skip("an option of another database")
    assert text_of(statements(make, name)) == file_of(kind.shared, name).read_text()


def test_each_file_has_its_case(kind: Database) -> None:
    files = {file_of(kind.shared, name) for name, case in CASES.items() if kind.shared in case.only}
    assert {*file_of(kind.shared, "").parent.iterdir()} == files
