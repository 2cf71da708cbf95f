"""docs/writing-a-sql-sink.md: its sink for SQLite is exactly once, and is as short as the page says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import CommitRefusedError, ConfigurationError, TargetError
from outfall.testing import LocalDriver, MemoryRecoveryConfig, run_conformance
from outfall.testing.conformance import CHECKS
from tests.documents import ROOT, blocks
from tests.unit.testing.test_testing_page import imported

# What crashes leave open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

PAGE = blocks(ROOT / "docs" / "writing-a-sql-sink.md")
SINK = [block.code for block in PAGE if "LocalDriver" not in block.code and "SinkConformance" not in block.code]
(HARNESS,) = [block.code for block in PAGE if "SinkConformance" in block.code]
SHORT = ["one_epoch", "two_attempts_finish"]
MORE = [
    "lost_reply_of_a_commit", "late_zombie", "refused_row", "replay_of_a_lost_epoch", "restored_target",
    "changed_layout", "null_in_a_key",
]  # fmt: skip
CLASSES = ["TestAppendedRows", "TestUpsertedRows"]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported("\n".join([*SINK, HARNESS]), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        *(pytest.param(name, SHORT, id=f"{name}-short") for name in CLASSES),
        pytest.param(CLASSES[1], MORE, marks=pytest.mark.thorough, id=f"{CLASSES[1]}-more"),
        # Upserts do all that appends do. Both take 150 s each on a busy machine.
        *(pytest.param(name, None, marks=pytest.mark.long, id=f"{name}-in full") for name in CLASSES),
    ],
)
def test_the_sink_of_the_page_is_exactly_once(page: Any, tmp_path: Path, name: str, checks: list[str] | None) -> None:
    report = run_conformance(getattr(page, name)(), tmp_path / "trials", checks=checks)
    assert report.passed, report


def written(page: Any, path: Path, *epochs: list[dict[str, Any]], **options: Any) -> list[tuple[Any, ...]]:
    sink = page.SqliteSink(str(path / "rows.db"), "t", **options)
    if epochs and epochs[0]:
        sink.check_schema(pa.RecordBatch.from_pylist(epochs[0]).schema)
    driver = LocalDriver(sink, MemoryRecoveryConfig())
    for number, rows in enumerate(epochs):
        driver.run_epoch(number, [rows])
    return content(path)


def content(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path / "rows.db")) as connection:
        return sorted(connection.execute("SELECT * FROM t").fetchall())


def test_the_newest_row_of_a_key_wins_and_markers_remove(page: Any, tmp_path: Path) -> None:
    options = {
        "write_mode": "upsert",
        "key_columns": "id",
        "order_column": "at",
        "delete_marker": "gone",
        "create_table": "if_missing",
    }

    def row(number: int, at: int, *, gone: bool = False) -> dict[str, Any]:
        return {"id": number, "at": at, "gone": gone}

    first = [row(1, 5), row(1, 7), row(1, 6), row(2, 1), row(3, 3)]
    found = written(page, tmp_path, first, [row(1, 6), row(2, 2, gone=True), row(3, 1, gone=True)], **options)
    assert found == [(1, 7), (3, 3)]


@pytest.mark.parametrize("mode", [{}, {"write_mode": "upsert", "key_columns": "id"}], ids=["append", "upsert"])
def test_rejected_rows_are_dead_letters_and_the_others_are_written(
    page: Any, tmp_path: Path, mode: dict[str, str]
) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x REAL CHECK (x > 0), b BLOB)")
    rows = [{"id": number, "x": float(number % 3), "b": b"%"} for number in range(1, 20)]
    nan = {"id": 20, "x": float("nan"), "b": b""}
    found = written(page, tmp_path, [*rows, nan], dead_letter_table="dead", **mode)
    assert [row[0] for row in found] == [row["id"] for row in rows if row["x"]]
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        letters = connection.execute("SELECT row, reason FROM dead ORDER BY rowid").fetchall()
    assert len(letters) == 7
    assert {"CHECK constraint failed: x > 0", "column 'x': SQLite has no NaN"} == {reason for _, reason in letters}
    with pytest.raises(CommitRefusedError, match="CHECK constraint failed"):
        written(page, tmp_path, [{"id": 30, "x": -1.0, "b": b""}], on_existing="resume", **mode)


@pytest.mark.parametrize(
    ("made", "options", "told"),
    [
        ("CREATE TABLE t (id TEXT)", {}, "TEXT does not store int64"),
        ("CREATE TABLE o (id INTEGER); CREATE VIEW t AS SELECT id FROM o", {}, "is a view"),
        ("CREATE TABLE t (id INTEGER)", {"write_mode": "upsert", "key_columns": "id"}, "no unique index on id"),
        (
            "CREATE TABLE t (id INTEGER UNIQUE COLLATE NOCASE)",
            {"write_mode": "upsert", "key_columns": "id"},
            "no unique index on id",
        ),
        ("PRAGMA journal_mode = WAL; CREATE TABLE t (id INTEGER)", {}, "journal of main is wal"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_row(
    page: Any, tmp_path: Path, made: str, options: dict[str, str], told: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.executescript(made)
    with pytest.raises((ConfigurationError, TargetError), match=told):
        written(page, tmp_path, [{"id": 1}], **options)
    assert content(tmp_path) == []


def test_types_that_sqlite_lacks_are_refused(page: Any) -> None:
    dialect = page.SqliteDialect(page.SqliteOptions(path="rows.db", table="t"))
    for kind in (pa.decimal128(10, 2), pa.list_(pa.int64()), pa.uint64(), pa.bool_()):
        with pytest.raises(ConfigurationError, match="cast it"):
            dialect.new_type(kind, "x")


def test_the_sink_is_as_short_as_the_page_says() -> None:
    lines = [line for code in SINK for line in code.splitlines() if line.strip()]
    assert len(lines) <= 300, len(lines)
    assert set(SHORT + MORE) <= set(CHECKS)
