"""The target refuses a row."""

from __future__ import annotations

from outfall.capabilities import SupportsDeadLetterSink
from outfall.testing.conformance.discarding import DiscardingSink
from outfall.testing.conformance.driver import RemoteTasks
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.trials import Trials
from outfall.wrappers import DeadLetteringSink

_ROWS = 10


@check
def refused_row(trials: Trials) -> None:
    """A row that the target refuses takes rows with it that were sent together: they are missing, or dead letters."""
    trials.needs(SupportsDeadLetterSink in trials.resolved.capabilities, "the sink reports no rejected rows")
    trials.needs(gives(trials.harness, "refused_row"), "the test has no refused_row()")
    for place in (0, _ROWS // 2, _ROWS):
        trial = trials.new()
        content = trial.bring(0, rows=_ROWS, tasks=1)
        (values,) = trial.values(content)
        # A number that the epoch does not have: a sink with one row per key would refuse two of one key.
        refused = trial.harness.refused_row(_ROWS)
        values.insert(place, (trial.harness.key(_ROWS), refused) if trial.fixed else refused)
        sink = DeadLetteringSink(trial.harness.make_sink(trial.target), DiscardingSink())
        with when(f"the target refused the row at position {place} of {_ROWS + 1}"):
            driver = RemoteTasks(sink, trial.recovery, options=trial.harness.options())
            result = driver.run_epoch(0, [values])
            trial.note(result, content)
            letters = result.counts.get("dead_letters.rows", 0)
            if letters != 1:
                raise ConformanceError(
                    f"{letters} rows are dead letters, and one was refused",
                    do="count a row as refused only if it was sent alone, or if the response names it",
                )
            trial.drain(driver)
            trial.verify()
