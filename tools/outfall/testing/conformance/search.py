"""Searches for a schedule that violates a guarantee, with Hypothesis."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import outfall.testing.conformance.schedules as act
from outfall.errors import require_extra
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.schedules import play

require_extra("testing", "hypothesis")

from hypothesis import HealthCheck, Verbosity, given, seed, settings
from hypothesis import strategies as st

# Hypothesis prefers small numbers in a large range. With two small ranges, all steps are equally likely.
STEPS = st.builds(lambda coarse, fine: 20 * coarse + fine, st.integers(0, 19), st.integers(0, 19))
TASKS = st.integers(1, 4)
ROWS = st.integers(0, 6)
LONGEST = 12
"""Actions of a schedule."""


def schedules(*, commits: bool) -> st.SearchStrategy[list[Any]]:
    """Return the strategy for schedules, with commit actions if the sink has a committer."""
    which = st.integers(0, 3)
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(act.Write, tasks=TASKS, rows=ROWS),
        st.builds(act.Crash, at=STEPS, tasks=TASKS, rows=ROWS),
        st.builds(act.Fail, at=STEPS, tasks=TASKS, rows=ROWS),
        st.just(act.Restart()),
        st.builds(act.Replay, tasks=TASKS),
        st.builds(act.BeginBeside, tasks=TASKS, rows=ROWS),
        st.builds(act.Attempt, begun=which, task=which, delivered=st.booleans()),
        st.builds(act.Stall, begun=which, task=which, at=STEPS),
        st.builds(act.Finish, begun=which),
        st.builds(act.Sleep, at=STEPS, tasks=TASKS, rows=ROWS),
        st.builds(act.Wake, sleeper=which),
        st.builds(act.WakeWithin, sleeper=which, at=STEPS, tasks=TASKS, rows=ROWS),
    ]
    if commits:
        kinds += [
            st.builds(act.PartialCommit, after=st.integers(0, 2)), st.just(act.LostReply()), st.just(act.SlowReply())
        ]  # fmt: skip
    return st.lists(st.one_of(kinds), min_size=1, max_size=LONGEST)


def search(
    harness: SinkHarness, directory: Path, *, commits: bool, examples: int, random_seed: int | None = None
) -> None:
    """Play random schedules, and reduce a failing schedule to the shortest one that still fails.

    Targets are removed afterwards. `commits` says whether the sink has a committer, `examples` is the number of
    schedules, and a seed of `None` gives the same schedules each time. Raises `ConformanceError`, with a script, if the
    guarantee does not hold.
    """

    @settings(
        max_examples=examples,
        derandomize=random_seed is None,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(schedules(commits=commits))
    def played(schedule: Sequence[act.Action]) -> None:
        place = directory / "schedule"
        place.mkdir()
        try:
            play(harness, schedule, place)
        finally:
            shutil.rmtree(place)

    (played if random_seed is None else seed(random_seed)(played))()
