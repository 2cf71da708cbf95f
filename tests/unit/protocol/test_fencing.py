"""Two drivers on one log: the older one loses, wherever it wakes up."""

from __future__ import annotations

from collections import Counter

import pytest

from outfall.errors import FencedError, OutfallError, ResponsesError, SealError, StaleWriterError, TransientError
from outfall.testing import LocalDriver
from tests.unit.support.journals import entries
from tests.unit.support.points import error_of, meanwhile, points
from tests.unit.support.setups import Bundling, Holding, InPlace, Setup, Staging, content, counted


def assert_contents(setup: Setup, names: list[set[str]]) -> None:
    """The target holds, for each epoch, exactly one of the contents named for it."""
    found = setup.found()
    for epoch, allowed in enumerate(names):
        of_epoch = Counter({row: count for row, count in found.items() if row[0] == epoch})
        assert of_epoch in [counted(content(epoch, name)) for name in allowed]
    assert {row[0] for row in found} <= set(range(len(names)))


@pytest.mark.parametrize(
    ("setup_type", "epoch", "later"),
    [
        (Staging, 0, 0),
        (InPlace, 1, 1),
        pytest.param(Bundling, 1, 0, marks=pytest.mark.thorough),
        pytest.param(Holding, 1, 0, marks=pytest.mark.thorough),
    ],
)
def test_an_old_driver_that_wakes_at_any_step_loses_and_the_step_goes_on(
    setup_type: type[Setup], epoch: int, later: int, subtests: pytest.Subtests
) -> None:
    steps = points(setup_type, epoch, "a")
    # A first driver that has not begun yet comes after the other one, and is not fenced.
    fenced = range(0 if epoch else steps.index("after BEGIN#1"), steps.index("after COMPLETED#1") - 1)
    prepared = steps.index("after PREPARED#1")
    for at, point in enumerate(steps):
        with subtests.test(point):
            setup = setup_type()
            old, new = setup.driver(), setup.driver()
            for before in range(epoch):
                setup.run(old, before)

            def newer(setup: Setup = setup, new: LocalDriver = new) -> None:
                for number in range(epoch, epoch + 1 + later):
                    setup.run(new, number, "b")

            with meanwhile(point, newer):
                error = error_of(lambda setup=setup, old=old: setup.run(old, epoch, "a"))  # type: ignore[misc]
            if at in fenced:
                assert isinstance(error, FencedError | StaleWriterError), error
            setup.run(setup.driver(), epoch + 1 + later)
            setup.drain(epoch + 2 + later)
            before_prepared = {"b"} if at <= steps.index("before PREPARED#1") else {"a", "b"}
            of_this = {"a"} if at >= prepared else before_prepared
            assert_contents(setup, [*[{"a"}] * epoch, of_this, *[{"b"}] * later, {"a"}])


def test_a_driver_that_was_overtaken_between_epochs_is_fenced() -> None:
    setup = Staging()
    old, new = setup.driver(), setup.driver()
    setup.run(old, 0)
    setup.run(new, 1, "b")
    with pytest.raises(FencedError, match="another driver has taken over this step"):
        setup.run(old, 1, "a")
    with pytest.raises(FencedError):
        setup.run(old, 2, "a")
    setup.run(new, 2)


def test_a_first_driver_that_slept_until_its_number_was_cleaned_up_disturbs_nobody() -> None:
    """Its BEGIN, of an incarnation of its own, lands in the place that the clean-up has freed."""
    setup = Staging()
    sleeper, other = setup.driver(), setup.driver()

    def two_epochs() -> None:
        setup.run(other, 0)
        setup.run(other, 1)

    with meanwhile("log: newest checked", two_epochs), pytest.raises(OutfallError):
        setup.run(sleeper, 0, "b")
    assert len({entry["incarnation"] for entry in entries(setup.recovery)}) == 2
    setup.run(setup.driver(), 2)
    assert_contents(setup, [{"a"}, {"a"}, {"a"}])
    assert len({entry["incarnation"] for entry in entries(setup.recovery)}) == 1, "the clean-up removes the stray"


def test_a_fenced_driver_stays_fenced() -> None:
    setup = Staging()
    old, new = setup.driver(), setup.driver()
    setup.run(old, 0)
    setup.run(new, 1)
    for _ in range(3):
        with pytest.raises(FencedError):
            setup.run(old, 2)


def test_a_starting_driver_wins_against_one_that_still_writes() -> None:
    setup = Staging()
    old, new = setup.driver(), setup.driver()
    old_begin = old.coordinator()
    ticket = old_begin.begin(0)
    answers = old.run_tasks(ticket, 0, content(0, "a"))
    with meanwhile("before BEGIN", lambda: old_begin.finish(ticket, answers)):
        result = setup.run(new, 0, "b")
    assert result.skipped
    assert setup.found() == counted(content(0, "a"))


def test_resume_in_another_process_finishes_the_epoch() -> None:
    setup = Staging()
    ticket = setup.driver().coordinator().begin(None)
    answers = setup.driver().run_tasks(ticket, 0, content(0))
    committing = setup.driver().coordinator()
    committing.finish(committing.resume(answers), answers)
    assert setup.found() == counted(content(0))


def test_resume_after_another_begin_is_fenced() -> None:
    setup = Staging()
    ticket = setup.driver().coordinator().begin(None)
    answers = setup.driver().run_tasks(ticket, 0, content(0))
    setup.driver().coordinator().begin(None)
    with pytest.raises(FencedError):
        setup.driver().coordinator().resume(answers)


def test_resume_without_answers_is_refused() -> None:
    setup = Staging()
    setup.driver().coordinator().begin(None)
    with pytest.raises(ResponsesError):
        setup.driver().coordinator().resume([])


def test_an_entry_whose_append_failed_is_no_sign_of_another_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Staging()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answers = driver.run_tasks(ticket, 0, content(0))
    log = coordinator._step.journal.log
    append = log.append

    def unclear(data: bytes, *, after: int) -> int:
        append(data, after=after)
        raise TransientError("the reply was lost")

    monkeypatch.setattr(log, "append", unclear)
    with pytest.raises(TransientError, match="the reply was lost"):
        coordinator.finish(ticket, answers)


def test_an_error_stays_what_it_is_where_the_log_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = InPlace()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    winner = driver.run_task(ticket, 0, 0, [("a", ["winner"])])
    driver.run_task(ticket, 0, 0, [("a", ["speculative"])])

    def away() -> list[int]:
        raise TransientError("the store is away")

    monkeypatch.setattr(coordinator._step.journal.log, "numbers", away)
    with pytest.raises(SealError):
        coordinator.finish(ticket, [winner])
