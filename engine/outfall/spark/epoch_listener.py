"""A listener for streaming queries that adds Outfall's counters to the progress that Spark reports.

Spark's progress does not contain the writes of a `foreachBatch` function or of a Python data source. The listener reads
the counters from the step's log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from outfall.recovery.entries import Begin, Entry, Prepared, decode_entry
from outfall.recovery.history import EpochSummary, summaries
from outfall.recovery.log import RecoveryConfig, RecoveryLog, check_step_id
from outfall.recovery.url import recovery_config
from outfall.redaction import without_credentials

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

_FIRST_READ = 8
"""Number of entries of the first read; more are read if that leaves a gap. A normal epoch has five at most."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpochProgress:
    """An epoch of a query, with Outfall's counters and Spark's progress report."""

    query_id: str
    """Spark's query id, which is the same after restarts."""
    query_name: str | None
    step_id: str
    epoch: EpochSummary
    """Outfall's counters. `batch` is `None` for a drain, which Spark has no report of."""
    progress: StreamingQueryProgress
    """The Spark report with which the epoch was passed on. It is that of the epoch's batch, or a later one for a drain
    and for an epoch without a report because the query failed directly after it."""


class EpochListener(StreamingQueryListener):
    """Passes each epoch of one step on when Spark reports the progress of its batch.

    ```python
    spark.streams.addListener(EpochListener("/data/chk", on_epoch=lambda it: print(it.query_name, it.epoch.rows)))
    ```

    Each completion of an epoch is passed on once and in order, including drains. If Spark runs a completed epoch again,
    it is completed a second time, with `rows` 0 and `skipped`. Progress of other queries is ignored: the log records
    which query writes the step. The first report after the creation of the listener starts
    with its own batch. Errors never reach the query: an unreadable log is logged once as a warning, and missed epochs
    follow with a later report.

    On Spark Connect, since 4.0, listeners run in the client, which must be able to read the log.

    Args:
        recovery: The location of the step's log: the query's checkpoint location, or its `recovery`.
        step_id: The step id.
        on_epoch: Called with each epoch, on the thread of Spark's listeners, so it must not block for long. If it
            raises, a warning is logged once, and the epoch is not passed on again. By default, each epoch is logged at
            level INFO.

    Raises:
        ConfigurationError: The location cannot store a log.
    """

    def __init__(
        self,
        recovery: str | RecoveryConfig,
        step_id: str = "sink",
        *,
        on_epoch: Callable[[EpochProgress], object] | None = None,
    ) -> None:
        self._recovery = recovery_config(recovery)
        self._step_id = check_step_id(step_id)
        self._on_epoch = on_epoch or _log_epoch
        self._lock = Lock()
        """Required because Spark may call from several threads."""
        self._query_id: str | None = None
        """The query that writes the step; `None` until the log contains it."""
        self._done: int | None = None
        """The number of the newest entry that was passed on; `None` before the first report."""
        self._warned: set[str] = set()
        """The operations that have failed since their last success."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing, because Spark waits for this method."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Pass on the epochs that the step has completed or skipped up to the reported batch. Called by Spark."""
        progress = event.progress
        query_id = str(progress.id)
        with self._lock:
            if self._query_id not in (None, query_id):
                return
            try:
                epochs = self._new_epochs(query_id, progress.batchId)
            except Exception as error:
                self._warn("log", "the epochs of step %s cannot be read", self._step_id, error=error)
                return
            self._warned.discard("log")
            for epoch in epochs:
                self._hand_over(EpochProgress(query_id, progress.name, self._step_id, epoch, progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing, because an idle trigger has no epoch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the first report of the next run includes epochs without a report."""

    def _new_epochs(self, query_id: str, batch_id: int) -> list[EpochSummary]:
        """Return the epochs to pass on now, and mark them as passed on."""
        with closing(self._recovery.open_read_only(self._step_id)) as log:
            entries = self._new_entries(log)
        if self._query_id is None:
            ids = [entry.query_id for _, entry in entries if isinstance(entry, Begin | Prepared) and entry.query_id]
            self._query_id = ids[-1] if ids else None
            if self._query_id != query_id:
                return []
        counted = [(number, epoch) for number, entry in entries for epoch in summaries([entry])]
        if self._done is None:
            self._done = max((n for n, it in counted if it.batch is not None and it.batch < batch_id), default=0)
        found = []
        for number, epoch in counted:
            if epoch.batch is not None and epoch.batch > batch_id:
                break  # its own report follows
            if number > self._done:
                found.append(epoch)
                self._done = number
        return found

    def _new_entries(self, log: RecoveryLog) -> list[tuple[int, Entry]]:
        done, size = self._done or 0, _FIRST_READ if self._done else None
        while True:
            raw = log.read(last=size)
            if size is None or len(raw) < size or raw[0].number <= done:
                return [(it.number, decode_entry(it, self._step_id)) for it in raw if it.number > done]
            size *= 2

    def _hand_over(self, it: EpochProgress) -> None:
        try:
            self._on_epoch(it)
        except Exception as error:
            self._warn("on_epoch", "step %s, epoch %d: on_epoch failed", it.step_id, it.epoch.epoch, error=error)
        else:
            self._warned.discard("on_epoch")

    def _warn(self, what: str, text: str, *args: object, error: Exception) -> None:
        if what not in self._warned:
            self._warned.add(what)
            reason = without_credentials(f"{type(error).__name__}: {error}")
            _log.warning(f"{text}; no further warning until it works: %s", *args, reason)


def _log_epoch(it: EpochProgress) -> None:
    epoch = it.epoch
    _log.info(
        "query %s, step %s, epoch %d: %d rows in %.2f s (%d retries, %d dead letters, %d dropped, %d skipped,"
        " %d buffered)",
        it.query_name or it.query_id,
        it.step_id,
        epoch.epoch,
        epoch.rows,
        epoch.seconds,
        epoch.retries,
        epoch.dead_letters,
        epoch.dropped,
        epoch.skipped,
        epoch.buffered_rows,
    )
