"""What a starting driver refuses: other people's records, and a target that is not what the records say."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import (
    CapabilityError,
    ForeignRecordsError,
    RecordError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TerminalError,
    UnexpectedEpochError,
)
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.journals import entries, entry_files
from tests.unit.support.setups import InPlace, Setup, Staging, content, counted
from tests.unit.support.shelf import PartFile, ShelfSink
from tests.unit.support.warehouse import BundlingSink, StagingSink


def refused(
    setup: Setup, epoch: int, error: type[Exception] | tuple[type[Exception], ...], match: str, **driver: Any
) -> str:
    """Begin, and check that it is refused with nothing written to log or target. Returns the text."""
    before, found = entries(setup.recovery), setup.found()
    with pytest.raises(error, match=match) as caught:
        setup.driver(**driver).coordinator().begin(epoch, query_id=driver.get("query_id"))
    assert (entries(setup.recovery), setup.found()) == (before, found)
    return str(caught.value)


def in_place(tmp_path: Path, epochs: int) -> InPlace:
    setup = InPlace(str(tmp_path / "chk"))
    driver = setup.driver()
    for epoch in range(epochs):
        setup.run(driver, epoch)
    return setup


def test_another_spark_query_is_refused() -> None:
    setup = Staging()
    setup.run(setup.driver(query_id="q1"), 0)
    text = refused(setup, 1, ForeignRecordsError, "belongs to Spark query q1, not to q2", query_id="q2")
    assert "step_id" in text


def test_a_task_of_another_spark_query_is_refused() -> None:
    setup = Staging()
    ticket = setup.driver().coordinator().begin(0, query_id="q1")
    with pytest.raises(ForeignRecordsError):
        setup.driver(query_id="q2").run_tasks(ticket, 0, content(0))


def test_an_unknown_query_is_not_compared() -> None:
    setup = Staging()
    setup.run(setup.driver(query_id="q1"), 0)
    setup.run(setup.driver(), 1)
    assert setup.found() == counted(content(0)) + counted(content(1))


def test_the_query_is_remembered_through_epochs_that_do_not_know_it() -> None:
    setup = Staging()
    setup.run(setup.driver(query_id="q1"), 0)
    for epoch in range(1, 4):
        setup.run(setup.driver(), epoch)
    refused(setup, 4, ForeignRecordsError, "q1", query_id="q2")


def test_a_query_that_only_the_tasks_know_is_remembered() -> None:
    setup = Staging()
    driver = setup.driver(query_id="q1")
    coordinator = driver.coordinator()
    ticket = coordinator.begin(None)
    coordinator.finish(ticket, driver.run_tasks(ticket, 0, content(0)))
    refused(setup, 1, ForeignRecordsError, "q1", query_id="q2")


def test_another_kind_of_sink_is_refused() -> None:
    setup = Staging()
    setup.run(setup.driver(), 0)
    driver = LocalDriver(BundlingSink(setup.warehouse), setup.recovery)
    with pytest.raises(ForeignRecordsError, match=r"of the sink tests\.unit\.support\.warehouse\.StagingSink, not of"):
        driver.coordinator().begin(1)


def test_another_target_is_refused() -> None:
    class Elsewhere(StagingSink):
        def target(self) -> str:
            return "elsewhere"

    Elsewhere.__qualname__, Elsewhere.__module__ = "StagingSink", StagingSink.__module__
    setup = Staging()
    setup.run(setup.driver(), 0)
    with pytest.raises(ForeignRecordsError, match="of the target warehouse, not of elsewhere"):
        LocalDriver(Elsewhere(setup.warehouse), setup.recovery).coordinator().begin(1)


def test_first_contact_with_somebodys_data_is_refused() -> None:
    setup = InPlace()
    setup.shelf.files["b"] = PartFile(["theirs"])
    refused(setup, 0, TargetNotEmptyError, "somebody's data")


def test_first_contact_goes_on_after_somebodys_data_when_told() -> None:
    setup = InPlace()
    setup.shelf.files["b"] = PartFile(["theirs"])
    driver = LocalDriver(ShelfSink(setup.shelf, on_existing="resume"), setup.recovery)
    with crash_at("after collect"):
        setup.run(driver, 0, "a")
    setup.run(LocalDriver(ShelfSink(setup.shelf, on_existing="resume"), setup.recovery), 0, "b")
    assert setup.found() == counted(content(0, "b")) + Counter(["theirs"])
    assert setup.shelf.files["b"].values[0] == "theirs"


def test_a_target_that_lost_rows_is_refused(tmp_path: Path) -> None:
    setup = in_place(tmp_path, 2)
    del setup.shelf.files["a"].values[1:]
    refused(setup, 2, TargetLostError, "too short")


def test_a_target_that_was_deleted_is_refused(tmp_path: Path) -> None:
    setup = in_place(tmp_path, 2)
    setup.shelf.files.clear()
    refused(setup, 2, TargetLostError, "too short")


def test_a_ledger_that_lost_its_rows_is_refused() -> None:
    setup = Staging()
    setup.warehouse.ledger = True
    setup.run(setup.driver(), 0)
    setup.warehouse.published.clear()
    refused(setup, 1, TargetLostError, "empty")


def test_a_deleted_checkpoint_over_a_kept_target_is_refused(tmp_path: Path) -> None:
    setup = in_place(tmp_path, 2)
    shutil.rmtree(tmp_path / "chk")
    refused(setup, 0, TargetAheadError, "ahead")


def test_a_checkpoint_restored_from_an_older_copy_is_refused(tmp_path: Path) -> None:
    setup = in_place(tmp_path, 1)
    shutil.copytree(tmp_path / "chk", tmp_path / "copy")
    setup.run(setup.driver(), 1)
    shutil.rmtree(tmp_path / "chk")
    shutil.move(tmp_path / "copy", tmp_path / "chk")
    refused(setup, 1, TargetAheadError, "ahead")


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_newest_entries_are_refused_and_nothing_is_cut(tmp_path: Path, lost: int) -> None:
    setup = in_place(tmp_path, 4)
    for file in entry_files(tmp_path / "chk")[-lost:]:
        file.unlink()
    refused(setup, 5, (UnexpectedEpochError, RecordError), "Epochs are missing|Entries were lost")


def test_a_log_restored_from_an_older_copy_refuses_the_newer_batch(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path / "chk"))
    driver = setup.driver()
    setup.run(driver, 0)
    shutil.copytree(tmp_path / "chk", tmp_path / "copy")
    setup.run(driver, 1)
    setup.run(driver, 2)
    restored = Staging(str(tmp_path / "copy"))
    refused(restored, 3, UnexpectedEpochError, "epochs are missing")


def test_a_task_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Staging()
    ticket = setup.driver().coordinator().begin(0)
    monkeypatch.setattr("outfall.protocol.task.outfall_version", lambda: "0.0.9")
    with pytest.raises(TerminalError, match=r"a task runs outfall 0\.0\.9.*install the same version"):
        setup.driver().run_tasks(ticket, 0, content(0))


@pytest.mark.parametrize(
    ("parts", "text"), [([1, 2], "returned 1, a int.*str"), ("ab", "returned a str"), (None, "returned a NoneType")]
)
def test_parts_without_names_are_refused(monkeypatch: pytest.MonkeyPatch, parts: Any, text: str) -> None:
    setup = InPlace()
    monkeypatch.setattr(ShelfSink, "list_parts", lambda self: parts)
    with pytest.raises(CapabilityError, match=text):
        LocalDriver(ShelfSink(setup.shelf), setup.recovery).coordinator().begin(0)
    assert entries(setup.recovery) == []


def test_a_batch_is_skipped_with_a_warning_where_its_query_was_never_recorded(caplog: pytest.LogCaptureFixture) -> None:
    setup = InPlace()
    setup.run(setup.driver(), 0)
    setup.driver().coordinator().begin(0, query_id="q1")
    assert "does not record which query wrote batch 0" in caplog.text


def test_a_batch_is_skipped_without_a_warning_where_its_query_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    setup = InPlace()
    setup.driver().coordinator().begin(0, query_id="q1")
    setup.run(setup.driver(), 0)
    setup.driver().coordinator().begin(0, query_id="q1")
    assert "which query wrote" not in caplog.text


@pytest.mark.parametrize("parts", [[], ["a", "a"]])
def test_a_list_of_parts_that_cannot_be_is_refused(parts: list[str]) -> None:
    setup = InPlace()
    with pytest.raises(CapabilityError, match="return at least one name, and each name only once"):
        LocalDriver(ShelfSink(setup.shelf, parts), setup.recovery).coordinator().begin(0)
    assert entries(setup.recovery) == []
