"""docs/writing-a-request-sink.md: its sink with versions is effectively once, and is as short as the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import CapabilityError, StaleWriterError
from outfall.testing import LocalDriver, MemoryRecoveryConfig, run_conformance
from outfall.testing.conformance import CHECKS
from outfall.versioned import Version
from tests.documents import ROOT, Block, blocks
from tests.one_each import thorough
from tests.unit.testing.test_testing_page import imported

# What crashes leave open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

PAGE = blocks(ROOT / "docs" / "writing-a-request-sink.md")
SHORT = ["one_epoch", "refused_row", "two_attempts_finish"]
MORE = [
    "null_in_a_key",
    "lost_target",
    "in_wrappers",
    "replay_of_a_lost_epoch",
    "late_zombie",
    "second_driver",
    "copied_log",
    "no_secret_comes_out",
]


def block_of(class_name: str) -> Block:
    (found,) = [block for block in PAGE if f"class {class_name}(" in block.code]
    return found


STORE = block_of("Store")
PARTS = PAGE[PAGE.index(STORE) + 1 : PAGE.index(block_of("StoreSink")) + 1]
CODE = "\n".join(block.code for block in [STORE, *PARTS, block_of("TestStoreSink")])


def run(code: str, place: Path, monkeypatch: pytest.MonkeyPatch, checks: list[str] | None) -> Any:
    test = imported(code, place, monkeypatch).TestStoreSink()
    try:
        return run_conformance(test, place / "trials", checks=checks)
    finally:
        test.store.shutdown()
        test.store.server_close()


@pytest.mark.parametrize(
    "checks",
    [SHORT, thorough(MORE), pytest.param(None, marks=pytest.mark.long)],
    ids=["short", "more", "in full"],
)
def test_the_sink_of_the_page_is_effectively_once(
    checks: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(CODE, tmp_path, monkeypatch, checks)
    assert report.passed, report


@pytest.mark.thorough
def test_the_suite_fails_if_the_sink_ignores_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignoring = CODE.replace('if "code" in said:', 'if "code" not in said and "before" not in said:')
    assert ignoring != CODE
    assert run(ignoring, tmp_path, monkeypatch, ["refused_row"]).failed


@pytest.mark.thorough
def test_the_suite_fails_if_the_store_ignores_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignoring = CODE.replace("if version is None or before is None or newer(version, before):", "if True:")
    assert ignoring != CODE
    report = run(ignoring, tmp_path, monkeypatch, ["late_zombie"])
    assert re.search("missing in their newest version.*before write", str(report), re.DOTALL), report


@pytest.mark.thorough
def test_the_newest_run_and_the_highest_rank_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = imported(CODE, tmp_path, monkeypatch)
    store = page.TestStoreSink.store
    options = {"id_column": "id", "token": page.TOKEN, "order_column": "at", "delete_marker": "gone"}
    driver = LocalDriver(page.StoreSink(store.url, "flights", **options), MemoryRecoveryConfig())

    def row(number: int, at: int, *, gone: bool = False) -> dict[str, Any]:
        return {"id": number, "at": at, "gone": gone}

    def found() -> dict[str, Any]:
        return {key: entry["document"] for (_, key), entry in store.documents.items()}

    try:
        result = driver.run_epoch(0, [[row(1, 7), row(1, 5), row(2, 1)], [row(1, 6)]])
        assert found() == {"1": {"id": 1, "at": 7}, "2": {"id": 2, "at": 1}}
        assert result.counts["replaced_rows"] == 2
        driver.run_epoch(1, [[row(1, 3), row(2, 1, gone=True)]])
        newest = {"1": {"id": 1, "at": 3}, "2": None}
        assert found() == newest
        monkeypatch.setattr(page.StoreRequestSink, "version", lambda _: Version(1, "older"))
        with pytest.raises(StaleWriterError, match="has a newer version"):
            driver.run_epoch(2, [[row(1, 9), row(2, 9)]])
        assert found() == newest
    finally:
        store.shutdown()
        store.server_close()


def test_a_row_that_is_not_converted_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = imported(CODE, tmp_path, monkeypatch)
    store = page.TestStoreSink.store
    driver = LocalDriver(page.StoreSink(store.url, "flights", id_column="id", token=page.TOKEN), MemoryRecoveryConfig())
    monkeypatch.setattr(page.StorePartition, "writes", lambda self, changes: (["1"], ["{}"], [2]))
    try:
        with pytest.raises(CapabilityError, match="1 keys, 1 writes and 1 sizes for 2 rows"):
            driver.run_epoch(0, [[{"id": 1}, {"id": 2}]])
    finally:
        store.shutdown()
        store.server_close()


def test_the_store_and_the_sink_are_as_short_as_the_page_says() -> None:
    assert len([line for line in STORE.code.splitlines() if line]) <= 60
    assert sum(len(part.code.splitlines()) for part in PARTS) < 200
    assert set(SHORT + MORE) <= set(CHECKS)
