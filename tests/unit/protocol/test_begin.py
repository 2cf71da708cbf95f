"""Taking a step over: which batch ids are accepted, and what BEGIN stores."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from outfall.counters import WIDEST_ROW
from outfall.errors import UnexpectedEpochError
from outfall.protocol.step import EpochOptions
from outfall.testing import FakeClock, LocalDriver, crash_at
from tests.unit.support.journals import entries, kinds
from tests.unit.support.setups import InPlace, Setup, Staging, content, counted
from tests.unit.support.warehouse import PlainSink


def completed(epochs: int) -> Staging:
    """A target and log with some completed epochs."""
    setup = Staging()
    driver = setup.driver()
    for epoch in range(epochs):
        setup.run(driver, epoch)
    return setup


def died(epoch: int, point: str) -> Staging:
    """As `completed`, and a driver that died in the next epoch."""
    setup = completed(epoch)
    with crash_at(point):
        setup.run(setup.driver(), epoch)
    return setup


def test_an_empty_log_begins_at_batch_0() -> None:
    assert completed(1).found() == counted(content(0))


@pytest.mark.parametrize("epoch", [1, 5])
def test_an_empty_log_refuses_any_other_batch(epoch: int) -> None:
    with pytest.raises(UnexpectedEpochError, match='adopt_checkpoint="rerun"') as caught:
        completed(0).driver().coordinator().begin(epoch)
    assert f"Spark runs batch {epoch}, expected was 0" in str(caught.value)


def test_an_empty_log_begins_anywhere_when_told() -> None:
    setup = completed(0)
    driver = LocalDriver(setup.sink(), setup.recovery, options=EpochOptions(adopt_checkpoint=True))
    setup.run(driver, 41)
    setup.run(driver, 42)
    assert setup.found() == counted(content(41)) + counted(content(42))


def test_a_batch_that_the_earlier_sink_began_is_not_adopted() -> None:
    setup = completed(0)
    adopting = EpochOptions(adopt_checkpoint=True, open_before=41)
    with pytest.raises(UnexpectedEpochError, match='adopt_checkpoint="rerun"'):
        LocalDriver(setup.sink(), setup.recovery, options=adopting).coordinator().begin(41)
    assert setup.found() == counted([])
    # Once the log has begun, the batch is this sink's own.
    LocalDriver(setup.sink(), setup.recovery, options=EpochOptions(adopt_checkpoint=True)).coordinator().begin(41)
    setup.run(LocalDriver(setup.sink(), setup.recovery, options=adopting), 41)
    assert setup.found() == counted(content(41))


def test_adopting_applies_to_an_empty_log_only() -> None:
    setup = completed(3)
    driver = LocalDriver(setup.sink(), setup.recovery, options=EpochOptions(adopt_checkpoint=True))
    with pytest.raises(UnexpectedEpochError):
        driver.coordinator().begin(7)


def test_an_adopted_batch_that_only_began_is_the_one_expected() -> None:
    setup = completed(0)
    adopting = EpochOptions(adopt_checkpoint=True)
    LocalDriver(setup.sink(), setup.recovery, options=adopting).coordinator().begin(41)
    driver = LocalDriver(setup.sink(), setup.recovery, options=adopting)
    with pytest.raises(UnexpectedEpochError):
        driver.coordinator().begin(43)
    setup.run(driver, 41)


def test_the_batch_after_the_completed_one_is_written() -> None:
    setup = completed(3)
    assert not setup.run(setup.driver(), 3).skipped


def test_the_completed_batch_is_skipped_said_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    setup = completed(3)
    with caplog.at_level(logging.INFO):
        result = setup.run(setup.driver(), 2, "b")
    assert result.skipped
    assert result.counts["skipped"] == 3
    assert "epoch 2: skipped 3 rows" in caplog.text
    assert kinds(setup.recovery)[-1] == "skipped"
    assert setup.found() == sum((counted(content(e)) for e in range(3)), counted([]))


def test_the_completed_batch_may_come_many_times() -> None:
    setup = completed(2)
    for _ in range(15):
        assert setup.run(setup.driver(), 1).skipped
    assert not setup.run(setup.driver(), 2).skipped


@pytest.mark.parametrize(("epoch", "why"), [(0, "rewound"), (1, "rewound"), (4, "epochs are missing"), (9, "missing")])
def test_batches_lower_or_higher_are_refused_and_nothing_is_written(epoch: int, why: str) -> None:
    setup = completed(3)
    before = entries(setup.recovery)
    with pytest.raises(UnexpectedEpochError, match=why) as caught:
        setup.driver().coordinator().begin(epoch)
    assert "expected was 3" in str(caught.value)
    assert entries(setup.recovery) == before


@pytest.mark.parametrize("point", ["after BEGIN", "after collect", "before PREPARED"])
def test_after_begin_the_same_batch_is_written(point: str) -> None:
    setup = died(1, point)
    assert not setup.run(setup.driver(), 1, "b").skipped
    assert setup.found() == counted(content(0)) + counted(content(1, "b"))


@pytest.mark.parametrize("point", ["after BEGIN", "after PREPARED", "after COMMITTING"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_unfinished_batch_cannot_be_passed_over(point: str, epoch: int) -> None:
    setup = died(2, point)
    with pytest.raises(UnexpectedEpochError):
        setup.driver().coordinator().begin(epoch)
    assert setup.found() <= sum((counted(content(e)) for e in range(3)), counted([]))
    assert "completed" not in kinds(setup.recovery)[-1]


def test_after_completed_the_next_batch_is_written() -> None:
    setup = died(1, "after COMPLETED")
    assert not setup.run(setup.driver(), 2).skipped


def test_a_batch_job_may_leave_numbers_out_and_never_goes_back() -> None:
    setup = completed(0)
    options = EpochOptions(any_later=True)

    def job(epoch: int) -> bool:
        return bool(setup.run(LocalDriver(setup.sink(), setup.recovery, options=options), epoch).skipped)

    assert [job(20261120), job(20261125), job(20261125)] == [False, False, True]
    with pytest.raises(UnexpectedEpochError):
        job(20261121)


def test_a_batch_job_that_died_is_finished_by_the_next_one() -> None:
    setup = completed(0)
    options = EpochOptions(any_later=True)
    with crash_at("after PREPARED"):
        setup.run(LocalDriver(setup.sink(), setup.recovery, options=options), 5)
    setup.run(LocalDriver(setup.sink(), setup.recovery, options=options), 9)
    assert setup.found() == counted(content(5)) + counted(content(9))


def test_begin_without_a_batch_id_takes_the_next_one() -> None:
    setup = completed(2)
    assert setup.driver().coordinator().begin(None).epoch == 2


@pytest.mark.parametrize(("point", "expected"), [("after BEGIN", 1), ("after PREPARED", 2), ("after COMPLETED", 2)])
def test_begin_without_a_batch_id_takes_the_unfinished_one(point: str, expected: int) -> None:
    assert died(1, point).driver().coordinator().begin(None).epoch == expected


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_task_of_an_unexpected_batch_is_refused(epoch: int) -> None:
    driver = completed(2).driver()
    ticket = driver.coordinator().begin(None)
    with pytest.raises(UnexpectedEpochError):
        driver.run_tasks(ticket, epoch, content(epoch))


def test_tasks_of_the_completed_batch_drop_their_rows_though_the_next_one_began() -> None:
    setup = completed(2)
    driver = setup.driver()
    ticket = driver.coordinator().begin(None)
    answers = driver.run_tasks(ticket, 1, content(1, "b"))
    committing = setup.driver().coordinator()
    assert committing.finish(committing.resume(answers), answers).skipped
    assert setup.driver().coordinator().begin(None).epoch == 2


def test_begin_stores_who_and_what_before_the_first_byte() -> None:
    setup = InPlace()
    with crash_at("after BEGIN"):
        LocalDriver(setup.sink(), setup.recovery, query_id="q1", clock=FakeClock()).run_epoch(0, [[("0", 1)]])
    (begin,) = entries(setup.recovery)
    assert begin["epoch"] == 0
    assert begin["target"] == "shelf"
    assert begin["sink"].endswith("shelf.ShelfSink")
    assert begin["query_id"] == "q1"
    assert begin["step"] == "sink"
    assert begin["time"] == "1970-01-01T00:00:00Z"
    assert {part: json.loads(state["text"]) for part, state in begin["bases"].items()} == {"a": 0, "b": 0, "c": 0}
    assert len(bytes.fromhex(begin["incarnation"])) == 8
    assert not any(file.values for file in setup.shelf.files.values())


def test_all_entries_carry_the_incarnation_of_the_first() -> None:
    setup = completed(3)
    setup.run(setup.driver(), 3)
    assert len({entry["incarnation"] for entry in entries(setup.recovery)}) == 1


@pytest.mark.parametrize("make", [Staging, InPlace])
def test_two_logs_are_two_incarnations(make: Callable[[], Setup]) -> None:
    incarnations = set()
    for _ in range(3):
        setup = make()
        setup.run(setup.driver(), 0)
        incarnations.add(entries(setup.recovery)[0]["incarnation"])
    assert len(incarnations) == 3


def test_generations_grow() -> None:
    setup = completed(0)
    generations = [setup.driver().coordinator().begin(0).generation for _ in range(4)]
    assert generations == [1, 2, 3, 4]


def test_a_start_says_sink_step_guarantee_and_last_epoch_once(caplog: pytest.LogCaptureFixture) -> None:
    setup = completed(2)
    driver = setup.driver()
    with caplog.at_level(logging.INFO):
        setup.run(driver, 2)
        setup.run(driver, 3)
    starts = [record.message for record in caplog.records if "guarantee" in record.message]
    assert len(starts) == 1
    assert "step sink, sink StagingSink, target warehouse" in starts[0]
    assert "guarantee EXACTLY_ONCE, last completed epoch 1" in starts[0]


def test_a_plain_sink_repeats_what_a_lost_attempt_wrote_and_is_declared_so(caplog: pytest.LogCaptureFixture) -> None:
    setup = completed(0)
    sink = PlainSink()
    with crash_at("after collect"):
        LocalDriver(sink, setup.recovery).run_epoch(0, [[1, 2]])
    with caplog.at_level(logging.INFO):
        LocalDriver(sink, setup.recovery).run_epoch(0, [[1, 2]])
    assert sink.rows == [1, 2, 1, 2]
    assert "guarantee AT_LEAST_ONCE" in caplog.text


# What decides on the size of batches.


def driver_of(setup: Staging, columns: str = "id") -> LocalDriver:
    return LocalDriver(setup.sink(), setup.recovery, options=EpochOptions(columns=columns))


def written(setup: Staging, epoch: int, *widths: int, columns: str = "id") -> None:
    """Write an epoch whose tasks received rows of these widths."""
    driver = driver_of(setup, columns)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(epoch)
    answers = driver.run_tasks(ticket, epoch, setup.tasks(content(epoch)))
    pairs = zip(answers, widths, strict=True)
    coordinator.finish(
        ticket, [answer.model_copy(update={"counts": answer.counts | {WIDEST_ROW: width}}) for answer, width in pairs]
    )


def test_a_ticket_has_the_widest_row_of_the_last_epochs_which_fades() -> None:
    setup = completed(0)
    found = [driver_of(setup).coordinator().begin(0).widest_row]
    for epoch, widths in enumerate([(10, 1000, 0), (20, 20, 20), (0, 0, 0), (2000, 1, 1)]):
        written(setup, epoch, *widths)
        found.append(driver_of(setup).coordinator().begin(epoch + 1).widest_row)
    assert found == [0, 1000, 900, 810, 2000]


def test_a_width_counts_only_for_the_columns_that_had_it() -> None:
    setup = completed(0)
    written(setup, 0, 1000, 1000, 1000)
    assert driver_of(setup, "id, text").coordinator().begin(1).widest_row == 0
    written(setup, 1, 10, 10, 10, columns="id, text")
    assert driver_of(setup, "id, text").coordinator().begin(2).widest_row == 10
    assert driver_of(setup).coordinator().begin(2).widest_row == 0


@pytest.mark.parametrize(
    ("point", "before"), [("before BEGIN", False), ("after BEGIN", True), ("before PREPARED", True)]
)
def test_a_ticket_says_whether_its_epoch_was_begun_before(point: str, before: bool) -> None:
    setup = died(2, point)
    assert setup.driver().coordinator().begin(2).begun_before is before
    setup.run(setup.driver(), 2)
    assert not setup.driver().coordinator().begin(3).begun_before
