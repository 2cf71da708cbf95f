"""A driver dies at every step of the protocol; its successor meets another content of the same epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from outfall.testing import crash_at
from tests.unit.support.points import points
from tests.unit.support.setups import EXACTLY_ONCE, Setup, Staging, content, counted


def outcome(steps: list[str], point: str, name: str) -> set[str]:
    """The contents that may result: the recorded one from PREPARED on, the replay's before it is written."""
    other = "b" if name == "a" else "a"
    at = steps.index(point)
    if at >= steps.index("after PREPARED#1"):
        return {name}
    return {other} if at <= steps.index("before PREPARED#1") else {name, other}


def crash_and_replay(setup: Setup, point: str, *, epoch: int, name: str) -> None:
    """Run the epochs before, die in this one at the point, and start again with the other content."""
    driver = setup.driver()
    for before in range(epoch):
        setup.run(driver, before)
    with crash_at(point):
        setup.run(driver, epoch, name)
    setup.run(setup.driver(), epoch, "b" if name == "a" else "a")
    setup.drain(epoch + 1)


def assert_once(setup: Setup, epoch: int, names: set[str]) -> None:
    """Each epoch before has its content, and this one exactly one of those named."""
    before = sum((counted(content(e)) for e in range(epoch)), Counter())
    assert setup.found() in [before + counted(content(epoch, name)) for name in names]


@pytest.mark.parametrize(("epoch", "name"), [(0, "a"), (1, "a"), (1, "b")])
@pytest.mark.parametrize("setup_type", EXACTLY_ONCE)
def test_a_crash_at_any_step_leaves_exactly_one_content(
    setup_type: type[Setup], epoch: int, name: str, subtests: pytest.Subtests
) -> None:
    steps = points(setup_type, epoch, name)
    for point in steps:
        with subtests.test(point):
            setup = setup_type()
            crash_and_replay(setup, point, epoch=epoch, name=name)
            assert_once(setup, epoch, outcome(steps, point, name))


def test_a_crash_at_any_step_of_a_local_log_leaves_exactly_one_content(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    steps = points(Staging, 1, "a", recovery=str(tmp_path / "clean"))
    for index, point in enumerate(step for step in steps if step.startswith("log:")):
        with subtests.test(point):
            setup = Staging(str(tmp_path / str(index)))
            crash_and_replay(setup, point, epoch=1, name="a")
            assert_once(setup, 1, outcome(steps, point, "a"))


@pytest.mark.parametrize("setup_type", EXACTLY_ONCE)
def test_two_crashes_in_a_row_leave_exactly_one_content(setup_type: type[Setup], subtests: pytest.Subtests) -> None:
    for point in points(setup_type, 0, "a")[::3]:
        with subtests.test(point):
            setup = setup_type()
            with crash_at(point):
                setup.run(setup.driver(), 0, "a")
            with crash_at(point):
                setup.run(setup.driver(), 0, "b")
            setup.run(setup.driver(), 0, "a")
            setup.drain(1)
            assert_once(setup, 0, {"a", "b"})


def test_every_arrow_of_the_protocol_is_among_the_steps() -> None:
    arrows = {"BEGIN", "PREPARED", "COMMITTING", "COMPLETED"}
    assert {f"after {arrow}" for arrow in arrows} <= {step.partition("#")[0] for step in points(Staging, 0, "a")}
