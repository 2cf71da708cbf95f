"""The columns of the rows change between two runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from outfall.capabilities import SupportsTarget
from outfall.testing.conformance.faults import check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.rows import Content
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials
from outfall.values import rows_to_batch


@check
def changed_layout(trials: Trials) -> None:
    """The columns of the rows change between two runs, and readers find values in the wrong columns, or no rows.

    The sink may reject the new columns, or write them so that readers find the rows of both runs.
    """
    harness = trials.harness
    has_columns = isinstance(harness.row(0), Mapping) or gives(harness, "changed_row")
    trials.needs(has_columns, "the rows have no columns, and the test has no changed_row()")
    trial = trials.new()
    _run(trial, trial.bring(0))
    trial.rows.row = harness.changed_row
    with when("the columns of the rows changed between two runs of the query"):
        content = trial.bring(1)
        # An error is acceptable, because no reader has found anything wrong then.
        with suppress(Exception):
            _run(trial, content)
        trial.verify_delivered()
        if trial.epoch == 1:
            trial.rows.row = harness.row
            trial.finish(1)
        trial.drain()
        trial.verify()


def _run(trial: Trial, content: Content) -> None:
    """Run an epoch as the engine does, which passes the columns to the sink before the first epoch of a run."""
    driver = trial.driver()
    rows: list[Any] = [trial.rows.make(number) for number in content.numbers]
    if SupportsTarget in trial.resolved.capabilities and isinstance(rows[0], Mapping):
        driver.sink.check_schema(rows_to_batch(rows).schema)
    trial.run(driver, content)
