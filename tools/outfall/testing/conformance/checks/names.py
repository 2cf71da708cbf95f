"""Rows choose names in the target."""

from __future__ import annotations

from itertools import combinations

from outfall.errors import ValueRefusedError
from outfall.testing.conformance.driver import RemoteTasks
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.trials import Trials


@check
def similar_keys(trials: Trials) -> None:
    """Rows of different keys get one name in the target, which is made of the key: all but one are missing."""
    trials.needs(gives(trials.harness, "similar_rows"), "the test has no similar_rows()")
    for pair in combinations(trials.harness.similar_rows(), 2):
        trial = trials.new()
        harness, taken = trial.harness, 0
        with when(f"{pair[0]!r} was written, and {pair[1]!r} in the next epoch"):
            driver = RemoteTasks(harness.make_sink(trial.target), trial.recovery, options=harness.options())
            for epoch, row in enumerate(pair):
                try:
                    driver.run_epoch(epoch, [[(harness.key(0), row) if trial.fixed else row]])
                except ValueRefusedError:
                    break
                taken += 1
            trial.drain()
            found = len(list(harness.read(trial.target)))
            if found != taken:
                raise ConformanceError(
                    f"the target has {found} rows, and {taken} were accepted",
                    do="escape what divides the parts of a key, or reject rows that could have the name of another",
                )
