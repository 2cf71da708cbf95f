"""docs/testing-a-sink.md: its sink passes the suite as a file of its own, and its table is that of the code."""

from __future__ import annotations

import importlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outfall.testing import SinkHarness, run_conformance
from outfall.testing.conformance import CHECKS
from tests.documents import ROOT, blocks
from tests.one_each import thorough

# What crashes leave open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

PAGE = ROOT / "docs" / "testing-a-sink.md"


def file_block(name: str) -> str:
    found = re.search(rf"^<!-- file: {re.escape(name)} -->\n```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert found
    return found[1]


@pytest.mark.parametrize("most_cases", [thorough(3), pytest.param(None, marks=pytest.mark.long)])
def test_the_sink_of_the_page_passes_with_its_test_as_a_file(most_cases: int | None, tmp_path: Path) -> None:
    # The class of the test stands last.
    shorter = f"    most_cases = schedules = {most_cases}\n" if most_cases else ""
    (tmp_path / "test_lines.py").write_text(file_block("test_lines.py") + shorter)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lines.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    counted = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert counted
    assert int(counted[1]) + int(counted[2]) == len(CHECKS)


def test_the_sink_and_its_test_take_fifty_lines() -> None:
    lines = file_block("test_lines.py").splitlines()
    assert len([line for line in lines if line and not line.startswith(("import", "from"))]) <= 50


@pytest.mark.parametrize(
    ("break_it", "check"),
    [
        (("-{c.attempt}", ""), "two_attempts_finish"),
        (("-{c.generation}", ""), "zombie_of_an_older_generation"),
        (("if (self.directory / request.committable).exists()", "if False"), "lost_reply_of_a_commit"),
        (('f".{name}", "w"', 'name, "w"'), "nothing_visible_before_commit"),
    ],
)
def test_the_sink_of_the_page_fails_when_it_is_broken(
    break_it: tuple[str, str], check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = file_block("test_lines.py")
    assert break_it[0] in code
    module = imported(code.replace(*break_it), tmp_path, monkeypatch)
    assert run_conformance(module.TestLinesSink(), tmp_path, checks=[check]).failed


def test_the_table_names_every_check_and_what_it_finds() -> None:
    table = re.search(r"<!-- checks -->\n(.*?)<!-- /checks -->", PAGE.read_text(), re.DOTALL)
    assert table
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table[1], re.MULTILINE)
    assert rows == [(check.name, check.finds) for check in CHECKS.values()]


def test_the_page_says_how_many_checks_there_are() -> None:
    assert f"runs {len(CHECKS)} tests" in PAGE.read_text()


def imported(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import code as a module: classes that no module has are pickled whole with each task, which takes long."""
    name = f"page_{place.name}"
    (place / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(place))
    return importlib.import_module(name)


SLOW = {"crash_at_every_line", "killed_at_every_step"}
IN_SHORT = [
    "one_epoch",
    "several_epochs",
    "replay_of_a_lost_epoch",
    "lost_reply_of_a_commit",
    "two_attempts_finish",
    "late_zombie",
    "second_query",
]


@pytest.mark.parametrize(
    "checks",
    [IN_SHORT, pytest.param([name for name in CHECKS if name not in SLOW], marks=pytest.mark.long)],
    ids=["in short", "in full"],
)
def test_the_sink_of_the_other_page_passes_too(
    checks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = imported(blocks(ROOT / "docs" / "writing-a-sink.md")[0].code, tmp_path, monkeypatch)

    class Table(SinkHarness):
        schedules = 20
        not_claimed = dict.fromkeys(
            [
                "loss_of_power", "rewound_log", "copied_log", "log_copied_during_an_epoch", "foreign_log",
                "lost_target", "restored_target",
            ],
            "the page says that the sink leaves it out",
        )  # fmt: skip

        def new_target(self, directory: Path) -> Path:
            with closing(sqlite3.connect(directory / "rows.db")) as db, db:
                db.execute("CREATE TABLE flights (carrier TEXT, distance INTEGER)")
                db.execute("CREATE TABLE ledger (file TEXT PRIMARY KEY)")
            return directory

        def make_sink(self, target: Path) -> Any:
            return page.TableSink(target / "rows.db", target)

        def read(self, target: Path) -> Iterable[Any]:
            with closing(sqlite3.connect(target / "rows.db")) as db:
                rows = db.execute("SELECT carrier, distance FROM flights").fetchall()
            return [{"carrier": carrier, "distance": distance} for carrier, distance in rows]

        def row(self, number: int) -> Any:
            return {"carrier": f"Ä{number}", "distance": number}

    report = run_conformance(Table(), tmp_path / "trials", checks=checks)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    "checks",
    [["second_driver", "copied_log", "failed_job"], pytest.param(None, marks=pytest.mark.thorough)],
    ids=["in short", "in full"],
)
def test_the_sink_of_the_other_page_that_checks_its_target_passes_too(
    checks: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = [block.code for block in blocks(ROOT / "docs" / "writing-a-sink.md")]
    checking = next(code for code in rest if "class DirectorySink" in code)
    page = imported(f"{first}\n{checking}", tmp_path, monkeypatch)

    class Lines(SinkHarness):
        most_cases = 6
        schedules = 20

        def make_sink(self, target: Path) -> Any:
            return page.DirectorySink(target)

        def read(self, target: Path) -> Iterable[Any]:
            batches = [line for path in target.glob("[!.]*") for line in path.read_text().splitlines()]
            return [row for batch in batches for row in json.loads(batch)]

        def leftovers(self, target: Path) -> int:
            return len(list((target / ".staging").iterdir()))

    report = run_conformance(Lines(), tmp_path / "trials", checks=checks)
    assert report.passed, str(report)
