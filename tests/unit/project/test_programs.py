"""Programs that pip cannot install: skipped with a line that says how to get them, or required."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import programs

ROOT = Path(__file__).parents[3]
pytest_plugins = ["pytester"]

TWO_TESTS = """
import pytest
from tests.programs import program

def test_needs_it():
    program("no-such-program")

def test_needs_nothing():
    pytest.skip("for another reason")
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest("from tests.conftest import pytest_unconfigure")
    pytester.makepyfile(TWO_TESTS)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_last_lines_name_what_is_absent_and_the_command_that_installs_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.delenv("OUTFALL_TEST_REQUIRE_ALL", raising=False)
    monkeypatch.setitem(programs.PACKAGES, "no-such-program", "its-package")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = run(pytester, "-n", workers)
    found.assert_outcomes(skipped=2)
    found.stdout.fnmatch_lines(
        ["1 test skipped without no-such-program. To run them: sudo apt-get install its-package"]
    )


def test_what_is_absent_fails_where_nothing_may_be_missing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTFALL_TEST_REQUIRE_ALL", "1")
    found = run(pytester, "-n", "0")
    found.assert_outcomes(failed=1, skipped=1)
    found.stdout.fnmatch_lines(["*needs the program no-such-program, and OUTFALL_TEST_REQUIRE_ALL is set*"])
