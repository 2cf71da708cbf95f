"""A listener for Spark's streaming queries that adds what Outfall counted to what Spark reports of a batch.

Spark's own progress says nothing of what a function of `foreachBatch` or a data source in Python wrote. The counts are
in the step's log, so that is what is read.
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
"""Entries that are read at first; more where that leaves a gap. An epoch without surprises has five at most."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpochProgress:
    """An epoch of a query, as Outfall counted it and as Spark reported it."""

    query_id: str
    """Spark's id of the query, which survives restarts."""
    query_name: str | None
    step_id: str
    epoch: EpochSummary
    """What Outfall counted. Its `batch` is `None` for a drain, which Spark knows nothing of."""
    progress: StreamingQueryProgress
    """Spark's report that the epoch was handed over with: of its own batch, or of a later one for a drain and for an
    epoch whose own report Spark never made, since the query failed right after it."""


class EpochListener(StreamingQueryListener):
    """Hands each epoch of one step over, when Spark reports the progress of its batch.

    ```python
    spark.streams.addListener(EpochListener("/data/chk", on_epoch=lambda it: print(it.query_name, it.epoch.rows)))
    ```

    Epochs come in their order and each once, those that were skipped and drains included. Progress of other queries is
    passed over: which one writes the step stands in its log. The first report after the listener was made begins with
    its own batch. Nothing that goes wrong here reaches the query: a log that cannot be read is warned of once, and what
    was missed comes with a later report.

    On Spark Connect, since 4.0, listeners run in the client, which must reach the log.

    Args:
        recovery: where the step's log is: the query's checkpoint location, or what was given as `recovery`.
        step_id: the step's id.
        on_epoch: called with each epoch, on the thread of Spark's listeners, so it must not wait for long. One that
            raises is warned of once, and the epoch does not come again. Left out: each epoch is logged at level INFO.

    Raises:
        ConfigurationError: no log can lie there.
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
        """Spark may call from several threads."""
        self._query_id: str | None = None
        """The query that writes the step; `None` until the log tells it."""
        self._done: int | None = None
        """The number of the newest entry that counts as handed over; `None` before the first report."""
        self._warned: set[str] = set()
        """What fails, and has not worked since it was warned of."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: Spark waits here."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Hand over what the step has completed or skipped up to the batch that is reported. Called by Spark."""
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
        """Do nothing: an idle trigger has no epoch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: what has no report yet comes with the first one of the next run."""

    def _new_epochs(self, query_id: str, batch_id: int) -> list[EpochSummary]:
        """Return what is to be handed over now, and count it as handed over."""
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
                break  # its own report is still to come
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
            _log.warning(f"{text}, which is not said again until it works: %s", *args, reason)


def _log_epoch(it: EpochProgress) -> None:
    epoch = it.epoch
    _log.info(
        "query %s, step %s, epoch %d: %d rows in %.2f s (%d retries, %d dead letters, %d dropped, %d skipped, %d held)",
        it.query_name or it.query_id,
        it.step_id,
        epoch.epoch,
        epoch.rows,
        epoch.seconds,
        epoch.retries,
        epoch.dead_letters,
        epoch.dropped,
        epoch.skipped,
        epoch.rows_held,
    )
