"""Two drivers on one log: the older one loses, wherever it wakes up. Two attempts at one part: likewise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outfall.capabilities import WriterInitContext
from outfall.errors import FencedError, OutfallError, ResponsesError, SealError, StaleWriterError, StepInUseError
from outfall.file import FileSink
from outfall.protocol.step import RunPosition, RunRegistry
from outfall.recovery import recovery_config
from outfall.testing import LocalDriver
from outfall.trace_points import listen
from tests.unit.support.journals import entries
from tests.unit.support.points import points
from tests.unit.support.setups import Bundling, Holding, InPlace, Setup, Staging, content, counted


@contextmanager
def meanwhile(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Within the block, run something else the n-th time that a step is reached, and then go on."""
    step, _, times = point.partition("#")
    seen: Counter[str] = Counter()
    acting = False

    def listener(reached: str) -> None:
        nonlocal acting
        if acting or reached != step:
            return
        seen[step] += 1
        if seen[step] == int(times or 1):
            acting = True
            act()
            acting = False

    stop = listen(listener)
    try:
        yield
    finally:
        stop()


def error_of(act: Callable[[], object]) -> OutfallError | None:
    try:
        act()
    except OutfallError as error:
        return error
    return None


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
    with pytest.raises(FencedError, match="another driver has taken this step over"):
        setup.run(old, 1, "a")
    with pytest.raises(FencedError):
        setup.run(old, 2, "a")
    setup.run(new, 2)


def test_a_first_driver_that_slept_until_its_number_was_swept_disturbs_nobody() -> None:
    """Its BEGIN, of an incarnation of its own, lands in the place that the sweep has freed."""
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
    assert len({entry["incarnation"] for entry in entries(setup.recovery)}) == 1, "the sweep removes the stray"


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


def test_the_second_write_of_a_step_in_one_epoch_is_an_error() -> None:
    setup = Staging()
    driver = setup.driver()
    setup.run(driver, 0)
    with pytest.raises(StepInUseError, match="step_id of its own"):
        setup.run(driver, 0)
    assert setup.found() == counted(content(0))


@pytest.mark.parametrize("scheme", ["", "sqlite://"])
def test_the_second_write_of_a_step_under_another_spelling_of_its_location_is_an_error(
    tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    driver = LocalDriver(FileSink(tmp_path / "out"), f"{scheme}{tmp_path}/real")
    driver.run_epoch(0, [[{"id": 1}]])
    driver.recovery = recovery_config(f"{scheme}{tmp_path}/link")
    # It would be taken for a replay, and its rows be dropped.
    with pytest.raises(StepInUseError):
        driver.run_epoch(0, [[{"id": 2}]])


def test_the_second_write_after_a_skipped_one_is_an_error() -> None:
    setup = Staging()
    setup.run(setup.driver(), 0)
    driver = setup.driver()
    assert setup.run(driver, 0).skipped
    with pytest.raises(StepInUseError):
        setup.run(driver, 0)


def test_an_epoch_that_failed_may_be_run_again_by_the_same_driver() -> None:
    setup = Staging()
    driver = setup.driver()
    with setup.warehouse.replies_lost():
        assert error_of(lambda: setup.run(driver, 0)) is not None
    assert setup.run(driver, 0, "b").skipped
    assert setup.found() == counted(content(0, "a"))


def test_two_steps_in_one_epoch_do_not_meet() -> None:
    setup = Staging()
    for step in ("one", "two"):
        setup.run(LocalDriver(setup.sink(), setup.recovery, step_id=step), 0)
    assert setup.found() == counted(content(0) * 2)


def test_memory_of_a_driver_knows_each_run() -> None:
    memory = RunRegistry()
    memory.remember("url", "sink", RunPosition("old", 4, 0))
    memory.remember("url", "sink", RunPosition("new", 8, 1))
    assert memory.recall("url", "sink", "old") == RunPosition("old", 4, 0)
    assert memory.recall("url", "sink", "new") == RunPosition("new", 8, 1)
    assert memory.recall("url", "other", "new") is None


class Stalled:
    """A task attempt that stops after its first value and can be woken, while another attempt of its driver wins."""

    def __init__(self, setup: InPlace) -> None:
        self.driver = setup.driver()
        self.coordinator = self.driver.coordinator()
        self.ticket = self.coordinator.begin(0)
        context = WriterInitContext(
            "sink", self.ticket.incarnation, self.ticket.generation, epoch=0, part="a", attempt=-1
        )
        self._partition = self.driver.sink.bind(context).build_part("sink", "a", None)
        self._partition.write_batch(["stalled"])
        self.answers = self.driver.run_tasks(self.ticket, 0, [[("0", (0, "a", 0))]])

    def wake(self) -> None:
        with pytest.raises(StaleWriterError):
            self._partition.write_batch(["late"])
        with pytest.raises(StaleWriterError):
            self._partition.snapshot()

    def finish(self) -> None:
        self.coordinator.finish(self.ticket, self.answers)


@pytest.mark.parametrize("moment", ["winner wrote", "after PREPARED", "after COMPLETED", "next epoch"])
def test_a_stalled_attempt_of_the_same_generation_changes_nothing(moment: str) -> None:
    setup = InPlace()
    stalled = Stalled(setup)
    if moment == "winner wrote":
        stalled.wake()
    with meanwhile(moment, stalled.wake):
        stalled.finish()
    if moment == "next epoch":
        stalled.driver.run_epoch(1, [])
        stalled.wake()
    assert setup.found() == Counter([(0, "a", 0)])


def test_an_attempt_that_overtakes_the_winner_makes_the_epoch_run_again() -> None:
    setup = InPlace()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    winner = driver.run_task(ticket, 0, 0, [("a", ["winner"])])
    driver.run_task(ticket, 0, 0, [("a", ["speculative"])])
    with pytest.raises(SealError):
        coordinator.finish(ticket, [winner])
    setup.run(driver, 0)
    assert setup.found() == counted(content(0))


def test_a_sealed_part_refuses_the_epochs_own_attempts() -> None:
    setup = InPlace()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answers = [driver.run_task(ticket, 0, 0, [("a", [(0, "a", 0)])])]
    with meanwhile("after PREPARED", lambda: error_of(lambda: driver.run_task(ticket, 0, 0, [("a", ["late"])]))):
        coordinator.finish(ticket, answers)
    with pytest.raises(StaleWriterError):
        driver.run_task(ticket, 0, 0, [("b", ["late"])])
    assert setup.found() == Counter([(0, "a", 0)])


def test_an_attempt_of_a_staging_sink_that_is_not_delivered_stays_invisible_and_is_swept() -> None:
    setup = Staging()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    driver.run_task(ticket, 0, 0, [(None, ["speculative"])])
    coordinator.finish(ticket, [driver.run_task(ticket, 0, 0, [(None, [(0, "a", 0)])])])
    driver.run_task(ticket, 0, 0, [(None, ["late"])])
    assert len(setup.warehouse.staged) == 2
    setup.run(driver, 1)
    assert setup.warehouse.staged == {}
    assert setup.found() == Counter([(0, "a", 0)]) + counted(content(1))
