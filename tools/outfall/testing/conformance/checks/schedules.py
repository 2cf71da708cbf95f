"""Random schedules of drivers, tasks, crashes and zombies."""

from __future__ import annotations

from outfall.capabilities import SupportsCommitter
from outfall.capability_checks import supports
from outfall.testing.conformance.registry import check
from outfall.testing.conformance.trials import Trials


@check
def random_schedules(trials: Trials) -> None:
    """Some sequence of writing, failing, crashing, replaying, sleeping and waking makes the claim untrue."""
    from outfall.testing.conformance.search import search

    search(
        trials.harness,
        trials.directory,
        commits=supports(trials.sink, SupportsCommitter),
        examples=trials.harness.schedules,
        random_seed=trials.harness.schedule_seed,
    )
