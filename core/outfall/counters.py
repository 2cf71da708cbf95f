"""What is counted of every step, under which names it is exported, and what it means.

Prometheus gets `outfall.rows` as `outfall_rows_total`, as OpenTelemetry's own exporters write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCounter:
    """One counter that every step has."""

    counted_as: str
    """Its name in `outfall.recovery.entries.Completed.totals`."""
    name: str
    help: str

    @property
    def prometheus(self) -> str:
        """The name of its series."""
        return f"{self.name.replace('.', '_')}_total"


STEP_COUNTERS = (
    StepCounter("epochs", "outfall.epochs", "Completed epochs, drains included."),
    StepCounter("rows", "outfall.rows", "Rows of completed epochs. Dropped ones are among them."),
    StepCounter("bytes", "outfall.bytes", "Bytes of completed epochs, where the sink counts them."),
    StepCounter("retries", "outfall.retries", "Requests and commits that were sent again after a failure."),
    StepCounter("task_retries", "outfall.task_retries", "Attempts of Spark's tasks after the first."),
    StepCounter("dead_letters", "outfall.dead_letters", "Rows that went to the dead letters."),
    StepCounter("dropped_rows", "outfall.dropped_rows", "Rows that the target refused and the query's policy dropped."),
    StepCounter(
        "dropped_committables",
        "outfall.dropped_committables",
        "Committables that the target refused and the query's policy dropped.",
    ),
    StepCounter("skipped", "outfall.skipped_rows", "Rows of completed epochs that Spark brought again; not written."),
    StepCounter("restarts", "outfall.restarts", "Epochs that were begun again before they were completed."),
)

PHASE_SECONDS = StepCounter(
    "", "outfall.phase_seconds", "Seconds of completed epochs by phase: tasks up to PREPARED, commit after it."
)
PHASES = {"task_ms": "tasks", "commit_ms": "commit"}
"""Milliseconds in the totals → the phase that they are of."""

SINK_COUNTER = StepCounter(
    "",
    "outfall.sink",
    "What the sink counts of its own; `sink` names the one of several that a sink consists of.",
)


def sink_counters(totals: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Yield what only some sinks count: the sink's name within the step's, empty for itself; the counter; its value."""
    common = {counter.counted_as for counter in STEP_COUNTERS} | PHASES.keys()
    for name, value in totals.items():
        if name not in common:
            sink, _, counter = name.rpartition(".")
            yield sink, counter, value
