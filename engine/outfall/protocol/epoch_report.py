"""The log lines of an epoch: its result, and the rows that it leaves buffered.

A condition can last, such as some dead letters in every epoch. A run of a query therefore reports it at first, and then
at most every ten minutes.
"""

from __future__ import annotations

import atexit
import logging
import shlex
from datetime import datetime, timedelta

from outfall.capabilities import SupportsBufferedRows
from outfall.protocol.clock import utc_time
from outfall.protocol.states import ROWS_BUFFERED, ROWS_BY_SPARK, ROWS_DRAINED
from outfall.protocol.step import PROCESS_REGISTRY, Step
from outfall.recovery.entries import Completed

_log = logging.getLogger(__name__)

_REPEAT_AFTER = 600.0
"""Seconds until a run of a query reports the same condition again."""


def report_completed(step: Step, completed: Completed) -> None:
    """Log the result of an epoch and the rows that it leaves buffered. Called after COMPLETED is appended."""
    counts = completed.counts
    dead_letters, buffered = counts.get("dead_letters", 0), counts.get(ROWS_BUFFERED, 0)
    rows = counts.get(ROWS_DRAINED, 0) if completed.drain else counts.get("rows", 0)
    writer = " by Spark's writer" if ROWS_BY_SPARK in counts else ""
    _log_at(
        bool(dead_letters) and _is_due(step, "dead letters"),
        "step %s, epoch %d: %s in %.2f s (%d retries%s%s)",
        step.step_id,
        completed.epoch,
        f"delivered {rows} buffered rows" if completed.drain else f"completed {rows} rows{writer}",
        completed.seconds,
        counts.get("retries", 0),
        f", {dead_letters} dead letters" if dead_letters else "",
        f", {buffered} rows buffered" if buffered else "",
    )
    # The command that runs a drain repeats it until no rows remain.
    _report_buffered(step, completed.epoch, quietly=completed.drain)


def report_skipped(step: Step, epoch: int, rows: int) -> None:
    """Log that rows of a completed epoch were skipped. Called after SKIPPED is appended."""
    _log.info("step %s, epoch %d: skipped %d rows", step.step_id, epoch, rows)
    _report_buffered(step, epoch)


def _report_buffered(step: Step, epoch: int, *, quietly: bool = False) -> None:
    """Log the command that delivers buffered rows, because the end of a query is not visible here."""
    held, location = step.journal.view.buffered, step.recovery.url()
    # Without a run, each epoch of a query may have its own process, whose end is not the end of the query.
    step.registry.remember_buffered(location, step.step_id, held.rows if step.run is not None else 0)
    overdue = _is_overdue(step, held.oldest)
    if quietly or not held.rows or not _is_due(step, "overdue rows" if overdue else "buffered rows"):
        return
    _log_at(
        overdue,
        "step %s, epoch %d: %d rows%s are buffered and not in the target yet. Later epochs deliver them. If the"
        " query ends here, deliver them with outfall.spark.drain, or in a shell, with the sink's options: %s",
        step.step_id,
        epoch,
        held.rows,
        f", the oldest since {held.oldest.isoformat()}," if held.oldest else "",
        _drain_command(location, step.step_id),
    )


def _is_overdue(step: Step, oldest: datetime | None) -> bool:
    most = step.sink.max_time_in_buffer() if SupportsBufferedRows in step.capabilities else timedelta(0)
    return oldest is not None and utc_time(step.clock) - oldest > most


def _is_due(step: Step, topic: str) -> bool:
    """Return whether this run should report a condition now. If so, it is not due again in the same period."""
    period = int(step.clock.time() // _REPEAT_AFTER)
    return step.registry.reports(step.recovery.url(), step.step_id, step.run or "", topic, period)


def _log_at(warns: bool, text: str, *args: object) -> None:
    if warns:
        _log.warning(text, *args)
    else:
        _log.info(text, *args)


def _drain_command(location: str, step_id: str) -> str:
    return f"outfall drain {shlex.quote(location)} {step_id}"


@atexit.register
def _warn_of_buffered_rows() -> None:
    for location, step_id, rows in PROCESS_REGISTRY.buffered():
        _log.warning(
            "step %s: the driver ends while %d rows are buffered and not in the target yet. The next run of the query"
            " continues with them. If there is none, deliver them with the sink's options: %s",
            step_id,
            rows,
            _drain_command(location, step_id),
        )
