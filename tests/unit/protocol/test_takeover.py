"""A starting driver reads again while an older one still writes; a running one that was overtaken stops."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outfall import trace_points
from outfall.errors import FencedError, TargetAheadError
from outfall.protocol.journal import JournalView
from outfall.protocol.step import EpochOptions, RunPosition, Step
from outfall.protocol.takeover import TAKEOVER_ATTEMPTS, take_over
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.journals import kinds
from tests.unit.support.setups import Staging

Begin = Callable[[JournalView], str]


class Overtaking:
    """A driver that finds the target ahead, because another one writes meanwhile, for as many times as are given."""

    def __init__(self, times: int) -> None:
        self.setup = Staging()
        self.other = self.setup.driver()
        self.setup.run(self.other, 0)
        self.step: Step = self.setup.driver().coordinator()._step
        self.times = times
        self.seen: list[int | None] = []

    def begin(self, found: JournalView) -> str:
        self.seen.append(found.completed)
        if len(self.seen) > self.times:
            return "taken"
        self.setup.run(self.other, len(self.seen))
        raise TargetAheadError("the target is ahead")


def test_a_starting_driver_reads_again_until_nobody_writes() -> None:
    found = Overtaking(2)
    assert take_over(found.step, None, found.begin) == "taken"
    assert found.seen == [0, 1, 2]


def test_a_starting_driver_gives_up_where_another_one_always_writes() -> None:
    found = Overtaking(TAKEOVER_ATTEMPTS)
    with pytest.raises(FencedError, match="another driver has taken over"):
        take_over(found.step, None, found.begin)
    assert len(found.seen) == TAKEOVER_ATTEMPTS


def test_a_running_driver_does_not_read_again() -> None:
    found = Overtaking(1)
    position = RunPosition("r", found.step.journal.read().last, 0)
    with pytest.raises(FencedError) as caught:
        take_over(found.step, position, found.begin)
    assert isinstance(caught.value.__cause__, TargetAheadError)
    assert found.seen == [0]


def test_a_driver_whose_begin_is_in_the_log_does_not_begin_again() -> None:
    setup = Staging()
    setup.run(setup.driver(), 0)
    step = setup.driver().coordinator()._step

    def begin(view: JournalView) -> str:
        assert view.begin is not None
        step.journal.append(view.begin.model_copy(update={"token": "ours"}))
        setup.run(setup.driver(), 0)
        raise TargetAheadError("the target is ahead")

    with pytest.raises(FencedError):
        take_over(step, None, begin)


def test_an_error_of_a_target_that_nobody_else_has_changed_stays() -> None:
    setup = Staging()
    step = setup.driver().coordinator()._step

    def begin(view: JournalView) -> str:
        raise TargetAheadError("the target is ahead")

    with pytest.raises(TargetAheadError):
        take_over(step, None, begin)


# The engine's own record of a batch.


def test_the_source_is_durable_before_begin_and_its_log_at_the_first_of_a_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup, calls = Staging(), []

    def durable(batch: int | None, first: bool) -> None:
        calls.append((batch, first, len(kinds(setup.recovery))))

    def driver() -> LocalDriver:
        return LocalDriver(setup.sink(), setup.recovery, options=EpochOptions(make_source_durable=durable))

    with crash_at("before the source is durable"):
        setup.run(driver(), 0)
    assert (calls, kinds(setup.recovery)) == ([], [])
    setup.run(driver(), 0)
    entries = len(kinds(setup.recovery))
    setup.run(driver(), 1)
    assert calls == [(0, True, 0), (1, False, entries)]
    setup.run(driver(), 1)  # which is skipped
    assert len(calls) == 2
    for module in ("takeover", "task"):
        monkeypatch.setattr(f"outfall.protocol.{module}.outfall_version", lambda: "0.0.1")
    setup.run(driver(), 2)
    setup.run(driver(), 3)
    assert [call[:2] for call in calls[2:]] == [(2, True), (3, False)]


def test_a_driver_without_such_a_record_makes_nothing_durable() -> None:
    setup = Staging()
    seen: list[str] = []
    remove = trace_points.listen(seen.append)
    try:
        setup.run(setup.driver(), 0)
    finally:
        remove()
    assert "before BEGIN" in seen
    assert "before the source is durable" not in seen
