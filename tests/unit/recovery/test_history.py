"""What a step's last epochs counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outfall.capabilities import CommitRequest
from outfall.errors import RecordError
from outfall.protocol.journal import Journal, JournalView
from outfall.recovery import History, history, recovery_config
from outfall.recovery.history import KEPT_EPOCHS, EpochSummary, epoch_table
from outfall.testing import FakeClock, LocalDriver, crash_at
from tests.unit.support.journals import entry_files
from tests.unit.support.setups import Staging, content
from tests.unit.support.warehouse import Staged, StagingCommitter


def test_no_epochs_have_no_history(tmp_path: Path) -> None:
    assert history(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_each_epoch_is_summed_up_oldest_first(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    driver = setup.driver()
    for epoch in range(3):
        setup.run(driver, epoch, "ab"[epoch % 2])
    summaries = history(str(tmp_path))
    assert [(summary.epoch, summary.rows) for summary in summaries] == [(0, 6), (1, 3), (2, 6)]
    assert all(datetime.now(UTC) - summary.completed_at < timedelta(minutes=1) for summary in summaries)


def test_skipped_rows_are_told_apart(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    setup.run(setup.driver(), 0, "a")
    setup.run(setup.driver(), 0, "b")
    summaries = history(str(tmp_path))
    assert [(summary.epoch, summary.rows, summary.skipped) for summary in summaries] == [(0, 6, 0), (0, 0, 3)]


class OnceMore(StagingCommitter):
    """Asks for its first offer to be repeated."""

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        for request in requests:
            if request.number_of_retries == 0:
                request.retry_later()
            else:
                self._commit_one(request)


def test_retries_are_commits_that_were_repeated_and_not_attempts_of_tasks(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    sink = setup.sink()
    sink.create_committer = lambda context: OnceMore(setup.warehouse)
    driver = LocalDriver(sink, setup.recovery, clock=FakeClock())
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answers = [driver.run_task(ticket, 0, 0, [(None, [1])], retries=2)]
    coordinator.finish(ticket, answers)
    (summary,) = history(str(tmp_path))
    assert (summary.retries, summary.counts["retries"], summary.counts["task_retries"]) == (1, 1, 2)


def test_seconds_are_from_begin_to_completed(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    clock = FakeClock()
    driver = LocalDriver(setup.sink(), setup.recovery, clock=clock)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answers = driver.run_tasks(ticket, 0, content(0))
    clock.sleep(90)
    setup.warehouse.after_commit = lambda: clock.sleep(30)
    coordinator.finish(ticket, answers)
    assert history(str(tmp_path))[0].seconds == 120


def test_an_unfinished_epoch_is_not_in_it(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    setup.run(setup.driver(), 0)
    with crash_at("before COMPLETED"):
        setup.run(setup.driver(), 1)
    assert [summary.epoch for summary in history(str(tmp_path))] == [0]


def test_an_epoch_that_a_later_run_finished_is_in_it(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    with crash_at("after PREPARED"):
        setup.run(setup.driver(), 0, "a")
    setup.run(setup.driver(), 0, "b")
    assert [(s.epoch, s.rows, s.skipped) for s in history(str(tmp_path))] == [(0, 6, 0), (0, 0, 3)]


def test_the_last_hundred_are_kept() -> None:
    setup = Staging()
    driver = setup.driver()
    for epoch in range(KEPT_EPOCHS + 5):
        driver.run_epoch(epoch, [])
    assert [summary.epoch for summary in history(setup.recovery)] == list(range(5, KEPT_EPOCHS + 5))


def test_steps_have_histories_of_their_own(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    setup.run(LocalDriver(setup.sink(), str(tmp_path), step_id="orders"), 0)
    assert len(history(str(tmp_path), "orders")) == 1
    assert history(recovery_config(str(tmp_path))) == []


def test_a_damaged_entry_is_an_error(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    setup.run(setup.driver(), 0)
    entry_files(tmp_path)[0].chmod(0o600)
    entry_files(tmp_path)[0].write_bytes(b"")
    with pytest.raises(RecordError):
        history(str(tmp_path))


def test_totals_are_sums_over_all_epochs_whatever_was_cleaned_up_and_without_peaks() -> None:
    setup = Staging()
    for epoch in range(3):
        setup.run(setup.driver(), epoch, "a")
    with crash_at("after BEGIN"):
        setup.run(setup.driver(), 3, "a")
    setup.run(setup.driver(), 3, "b")
    setup.run(setup.driver(), 3, "a")  # again: its rows are skipped
    view = read_view(setup)
    assert {name: view.totals[name] for name in ("rows", "epochs", "skipped", "restarts")} == {
        "rows": 21, "epochs": 4, "skipped": 6, "restarts": 1
    }  # fmt: skip
    assert view.totals_with({"rows": 1, "max_in_flight": 9, "archive.max_in_flight": 9, "rows_held": 5}) == {
        **view.totals, "rows": 22
    }  # fmt: skip


def test_the_time_of_tasks_and_of_committing_are_told_apart() -> None:
    setup = Staging()
    clock = FakeClock()
    sink = setup.sink()
    sink.create_committer = lambda context: OnceMore(setup.warehouse)
    driver = LocalDriver(sink, setup.recovery, clock=clock)
    with closing(driver.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        responses = driver.run_tasks(ticket, 0, setup.tasks(content(0)))
        clock.sleep(5)
        coordinator.finish(ticket, responses)
    (epoch,) = history(setup.recovery)
    assert epoch.task_seconds == pytest.approx(5, abs=0.001)
    assert epoch.seconds > epoch.task_seconds
    totals = read_view(setup).totals
    assert totals["task_ms"] == 5000
    # Absent where the random pause before the retry was below half a millisecond.
    assert totals.get("commit_ms", 0) == pytest.approx(1000 * (epoch.seconds - epoch.task_seconds), abs=1)


def read_view(setup: Staging) -> JournalView:
    with closing(recovery_config(setup.recovery).open("sink")) as log:
        return Journal(log, "sink", FakeClock()).read()


def test_it_is_a_list_whose_slices_are_histories(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    driver = setup.driver()
    for epoch in range(3):
        setup.run(driver, epoch)
    found = history(str(tmp_path))
    assert (len(found), found[-1].epoch, [summary.epoch for summary in reversed(found)]) == (3, 2, [2, 1, 0])
    assert isinstance(found[1:], History)
    assert found[1:] == [found[1], found[2]] == list(found)[1:]
    assert found == history(str(tmp_path))
    assert found != found[:2]


def test_a_notebook_gets_plots_and_a_table_that_need_nothing_else(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    driver = setup.driver()
    for epoch in range(3):
        setup.run(driver, epoch)
    shown = history(str(tmp_path))._repr_html_()
    assert shown.count("<figure") == 2, "nothing was retried, refused or buffered"
    assert re.findall(r"<tr><td[^>]*>(\d+)</td>", shown) == ["2", "1", "0"]
    assert not re.search(r"<script|<link|<img|@import|url\(", shown)
    assert "skipped" not in shown
    setup.run(setup.driver(), 2)
    assert "skipped" in history(str(tmp_path))._repr_html_()
    assert history(str(tmp_path / "none"))._repr_html_() == "<p>No epochs.</p>"


def test_drains_have_no_batch_and_the_table_says_so() -> None:
    epochs = [_summary(0, 0), _summary(1, None), _summary(2, 1)]
    assert re.findall(r"<tr><td[^>]*>(\d+)</td><td[^>]*>(\w+)</td>", epoch_table(epochs)) == [
        ("2", "1"), ("1", "drain"), ("0", "0"),
    ]  # fmt: skip
    assert ">batch<" not in epoch_table(epochs[:1])


def _summary(epoch: int, batch: int | None) -> EpochSummary:
    setup = Staging()
    setup.run(setup.driver(), 0)
    (found,) = history(setup.recovery)
    return replace(found, epoch=epoch, batch=batch)
