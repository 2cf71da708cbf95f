"""The counts of a step's last epochs, and their display in notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import overload

from outfall.counters import TABLES
from outfall.recovery.entries import Completed, Entry, Skipped, decode_entry
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.plots import BarSeries, bar_plot
from outfall.recovery.url import recovery_config

KEPT_EPOCHS = 100
"""The number of epochs whose counts are kept."""


@dataclass(frozen=True)
class EpochSummary:
    """The counts of one epoch, or of one replay of a completed epoch."""

    epoch: int
    batch: int | None
    """Spark's batch id, or the number of a batch job: the epoch without the earlier drains. `None` for a drain."""
    completed_at: datetime
    """UTC."""
    seconds: float
    """The duration from BEGIN to COMPLETED."""
    task_seconds: float
    """The duration from BEGIN to PREPARED, of the tasks. The rest of `seconds` is the commit."""
    rows: int
    """Rows that the tasks received, including `dead_letters`, `dropped` and rows that are now buffered."""
    bytes: int
    retries: int
    """Requests and commits that were retried after a failure. Failed task attempts are `task_retries` in `counts`."""
    dead_letters: int
    skipped: int
    """Rows that were read again and dropped, because their epoch was completed."""
    dropped: int
    """Rows among `rows` that the target rejected and that were dropped, according to the query's `CommitPolicy`."""
    buffered_rows: int
    """Rows that are buffered after this epoch."""
    held_since: datetime | None
    """The write time of the oldest of them, if the sink reports it."""
    counts: dict[str, int]
    """All counters of the epoch, those of the sink included."""
    tables: dict[str, int] = field(default_factory=dict)
    """The ten tables with the most rows of the epoch, if a column names them, and these numbers."""

    @property
    def table_count(self) -> int:
        """The number of tables of the epoch, if a column names them; otherwise 0."""
        return self.counts.get(TABLES, 0)

    @property
    def delivered_rows(self) -> int:
        """The rows to show for the epoch: `rows`, or the buffered rows that a drain delivered.

        The latter were counted as `rows` in their own epochs.
        """
        return self.counts.get("rows_drained", 0) if self.batch is None else self.rows

    @property
    def commit_seconds(self) -> float:
        """The duration from PREPARED to COMPLETED."""
        return max(0.0, self.seconds - self.task_seconds)


class History(Sequence[EpochSummary]):
    """The last epochs of a step, oldest first: an immutable sequence that notebooks display with plots."""

    def __init__(self, epochs: Iterable[EpochSummary] = ()) -> None:
        self._epochs = list(epochs)

    @overload
    def __getitem__(self, index: int) -> EpochSummary: ...

    @overload
    def __getitem__(self, index: slice) -> History: ...

    def __getitem__(self, index: int | slice) -> EpochSummary | History:
        found = self._epochs[index]
        return History(found) if isinstance(found, list) else found

    def __len__(self) -> int:
        return len(self._epochs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, History | list):
            return self._epochs == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({self._epochs!r})"

    def _repr_html_(self) -> str:
        """Return plots and a table for a notebook, in the colors of the notebook."""
        if not self._epochs:
            return "<p>No epochs.</p>"
        plots = "".join(f'<div style="flex:1 1 300px;max-width:420px">{plot}</div>' for plot in epoch_plots(self))
        return (
            f'<div style="display:flex;flex-wrap:wrap;gap:12px 24px;margin:8px 0">{plots}</div>'
            f'<div style="overflow-x:auto;max-height:420px">{epoch_table(self)}</div>'
        )


def history(recovery: str | RecoveryConfig, step_id: str = "sink") -> History:
    """Return the last hundred epochs of a step, oldest first. Reads only, and is safe while the query runs.

    Args:
        recovery: The location of the log: the query's checkpoint location, or its `recovery`.
        step_id: The step id.

    Raises:
        RecordError: An entry is damaged or of a newer format.
    """
    with closing(recovery_config(recovery).open_read_only(step_id)) as log:
        return History(summaries(decode_entry(raw, step_id) for raw in log.read()))


def summaries(entries: Iterable[Entry]) -> list[EpochSummary]:
    """Return the counts in the entries of a log, for the last hundred epochs, oldest first."""
    return [_summary(entry) for entry in entries if isinstance(entry, Completed | Skipped)][-KEPT_EPOCHS:]


def _summary(entry: Completed | Skipped) -> EpochSummary:
    counts = entry.counts
    return EpochSummary(
        epoch=entry.epoch,
        batch=None if isinstance(entry, Completed) and entry.drain else entry.epoch - entry.drains,
        completed_at=entry.time,
        seconds=entry.seconds if isinstance(entry, Completed) else 0.0,
        task_seconds=entry.task_seconds if isinstance(entry, Completed) else 0.0,
        rows=counts.get("rows", 0),
        bytes=counts.get("bytes", 0),
        retries=counts.get("retries", 0),
        dead_letters=counts.get("dead_letters", 0),
        skipped=counts.get("skipped", 0),
        dropped=counts.get("dropped_rows", 0),
        buffered_rows=counts.get("rows_held", 0),
        held_since=entry.held_since if isinstance(entry, Completed) else None,
        counts=counts,
        tables=entry.tables if isinstance(entry, Completed) else {},
    )


def written_epochs(epochs: Iterable[EpochSummary]) -> list[EpochSummary]:
    """Return the epochs that wrote data, without replays of completed epochs."""
    return [epoch for epoch in epochs if epoch.seconds > 0]


def rows_per_second(epoch: EpochSummary) -> float:
    """Return the rows per second of an epoch, from BEGIN to COMPLETED."""
    return epoch.delivered_rows / max(epoch.seconds, 1e-9) if epoch.seconds > 0 else 0.0


_COUNTERS: dict[str, tuple[str, Callable[[EpochSummary], int]]] = {
    "retries": ("requests and commits", lambda epoch: epoch.retries),
    "dead letters": ("rows", lambda epoch: epoch.dead_letters),
    "dropped": ("rows", lambda epoch: epoch.dropped),
    "skipped": ("rows", lambda epoch: epoch.skipped),
    "buffered": ("rows", lambda epoch: epoch.buffered_rows),
}
"""Counters that are shown only if one of them is not zero: their unit, and a function that returns them."""


def epoch_plots(epochs: Sequence[EpochSummary]) -> list[str]:
    """Return the plots of the epochs as HTML, without those whose values are all zero."""
    written = written_epochs(epochs)
    names = [str(epoch.epoch) for epoch in written]
    speed = BarSeries("rows", [rows_per_second(epoch) for epoch in written])
    phases = [
        BarSeries("tasks", [epoch.task_seconds for epoch in written]),
        BarSeries("commit", [epoch.commit_seconds for epoch in written]),
    ]
    counters = [
        bar_plot(name.capitalize(), unit, "epoch", names, [BarSeries(name, [count(epoch) for epoch in written])])
        for name, (unit, count) in _COUNTERS.items()
        if any(map(count, written))
    ]
    return [
        bar_plot("Throughput", "rows per second", "epoch", names, [speed]),
        bar_plot("Time", "seconds", "epoch", names, phases),
        *counters,
    ]


_TABLE = "border-collapse:collapse;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"


def epoch_table(epochs: Sequence[EpochSummary]) -> str:
    """Return an HTML table with a row per epoch, newest first, without columns whose values are all zero."""
    columns: dict[str, Callable[[EpochSummary], str]] = {"epoch": lambda epoch: str(epoch.epoch)}
    if any(epoch.batch != epoch.epoch for epoch in epochs):
        columns["batch"] = lambda epoch: "drain" if epoch.batch is None else str(epoch.batch)
    columns |= {
        "completed (UTC)": lambda epoch: epoch.completed_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "rows": lambda epoch: f"{epoch.delivered_rows:,}",
        "rows/s": lambda epoch: f"{rows_per_second(epoch):,.0f}",
        "tasks (s)": lambda epoch: f"{epoch.task_seconds:.2f}",
        "commit (s)": lambda epoch: f"{epoch.commit_seconds:.2f}",
    }
    counters: dict[str, Callable[[EpochSummary], int]] = {
        "tables": lambda epoch: epoch.table_count,
        "bytes": lambda epoch: epoch.bytes,
        **{name: count for name, (_, count) in _COUNTERS.items()},
    }
    for name, count in counters.items():
        if any(map(count, epochs)):
            columns[name] = partial(_counted, count)
    head = "".join(f'<th scope="col" style="text-align:right">{escape(name)}</th>' for name in columns)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(text(epoch))}</td>' for text in columns.values())}</tr>"
        for epoch in reversed(epochs)
    )
    # As an attribute, so that the style sheet of a page or a notebook takes precedence.
    return f'<table style="{_TABLE}" cellpadding="4"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'


def _counted(count: Callable[[EpochSummary], int], epoch: EpochSummary) -> str:
    return f"{count(epoch):,}"
