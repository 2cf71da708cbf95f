"""A driver dies at every step of the protocol; its successor meets another content of the same epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.testing import crash_at
from tests.unit.support.points import points
from tests.unit.support.setups import Bundling, Holding, InPlace, Setup, Staging, content, counted


def outcome(steps: list[str], point: str, name: str) -> set[str]:
    """The contents that may result: the recorded one from PREPARED on, the replay's before it is written."""
    other = "b" if name == "a" else "a"
    at = steps.index(point)
    if at >= steps.index("after PREPARED#1"):
        return {name}
    return {other} if at <= steps.index("before PREPARED#1") else {name, other}


def crash_and_replay(setup: Setup, point: str, name: str) -> None:
    """Run an epoch, die in the next one at the point, and start again with the other content."""
    driver = setup.driver()
    setup.run(driver, 0)
    with crash_at(point):
        setup.run(driver, 1, name)
    setup.run(setup.driver(), 1, "b" if name == "a" else "a")
    setup.drain(2)


def assert_once(setup: Setup, names: set[str]) -> None:
    """The epoch before has its content, and this one exactly one of those named."""
    assert setup.found() in [counted(content(0)) + counted(content(1, name)) for name in names]


@pytest.mark.parametrize(
    ("setup_type", "name"),
    [
        (Staging, "a"),
        (InPlace, "b"),
        pytest.param(Bundling, "a", marks=pytest.mark.thorough),
        pytest.param(Holding, "b", marks=pytest.mark.thorough),
    ],
)
def test_a_crash_at_any_step_leaves_exactly_one_content(
    setup_type: type[Setup], name: str, subtests: pytest.Subtests
) -> None:
    steps = points(setup_type, 1, name)
    for point in steps:
        with subtests.test(point):
            setup = setup_type()
            crash_and_replay(setup, point, name)
            assert_once(setup, outcome(steps, point, name))


def test_a_crash_at_any_step_of_a_local_log_leaves_exactly_one_content(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    steps = points(Staging, 1, "a", recovery=str(tmp_path / "clean"))
    for index, point in enumerate(step for step in steps if step.startswith("log:")):
        with subtests.test(point):
            setup = Staging(str(tmp_path / str(index)))
            crash_and_replay(setup, point, "a")
            assert_once(setup, outcome(steps, point, "a"))


def test_every_arrow_of_the_protocol_is_among_the_steps() -> None:
    arrows = {"BEGIN", "PREPARED", "COMMITTING", "COMPLETED"}
    assert {f"after {arrow}" for arrow in arrows} <= {step.partition("#")[0] for step in points(Staging, 0, "a")}
