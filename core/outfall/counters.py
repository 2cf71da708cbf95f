"""The counters of every step: their names in the log, their exported names, and their descriptions.

Prometheus receives `outfall.rows` as `outfall_rows_total`, as OpenTelemetry's own exporters write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCounter:
    """A counter that every step has."""

    counted_as: str
    """Its name in `outfall.recovery.entries.Completed.totals`."""
    name: str
    help: str

    @property
    def prometheus(self) -> str:
        """The name of its series."""
        return f"{self.name.replace('.', '_')}_total"


STEP_COUNTERS = (
    StepCounter("epochs", "outfall.epochs", "Completed epochs, including drains."),
    StepCounter(
        "rows",
        "outfall.rows",
        "Rows that the tasks of completed epochs received, including dead letters, buffered and dropped rows.",
    ),
    StepCounter("bytes", "outfall.bytes", "Bytes of completed epochs, if the sink counts them."),
    StepCounter("retries", "outfall.retries", "Requests and commits that were sent again after a failure."),
    StepCounter("task_retries", "outfall.task_retries", "Attempts of Spark tasks after the first."),
    StepCounter("dead_letters", "outfall.dead_letters", "Rows that were written as dead letters."),
    StepCounter(
        "dropped_rows", "outfall.dropped_rows", "Rows that the target rejected and the query's policy dropped."
    ),
    StepCounter(
        "dropped_committables",
        "outfall.dropped_committables",
        "Committables that the target rejected and the query's policy dropped.",
    ),
    StepCounter("skipped", "outfall.skipped_rows", "Rows of completed epochs that Spark replayed; not written."),
    StepCounter("restarts", "outfall.restarts", "Epochs that were started again before they were completed."),
)

PHASE_SECONDS = StepCounter(
    "", "outfall.phase_seconds", "Seconds of completed epochs by phase: tasks until PREPARED, then commit."
)
PHASES = {"task_ms": "tasks", "commit_ms": "commit"}
"""Counter of milliseconds in the totals → its phase."""

WIDEST_ROW = "max_row_bytes"
"""Peak of the Python API: the bytes per row in the widest Arrow batch that a task received. A completed epoch has that
of an earlier one with the same columns, less a tenth for each epoch since, if that is more."""

TABLES = "max_tables"
"""Peak of sinks with `table_column`: the number of tables of an epoch."""

SINK_COUNTER = StepCounter(
    "",
    "outfall.sink",
    "Counters of the sink itself; the label `sink` has the name of a child sink.",
)


def sink_counters(totals: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Yield the counters that only some sinks have: name of the child sink or "", counter, value."""
    common = {counter.counted_as for counter in STEP_COUNTERS} | PHASES.keys()
    for name, value in totals.items():
        if name not in common:
            sink, _, counter = name.rpartition(".")
            yield sink, counter, value
