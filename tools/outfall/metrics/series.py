"""The Prometheus series of a step: names, labels, descriptions and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, get_args

from outfall.counters import PHASE_SECONDS, PHASES, SINK_COUNTER, STEP_COUNTERS, StepCounter, sink_counters
from outfall.metrics.step_status import State, StepStatus

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Values with the values of the series' own labels."""


@dataclass(frozen=True)
class Reading:
    """The last read of a step."""

    status: StepStatus
    at: float
    """Time of the read, as Unix time."""
    seconds: float
    """Duration of the read."""
    readable: bool
    """Whether the read succeeded and is recent."""
    now: float
    """The time of the scrape, as Unix time."""

    @property
    def known(self) -> bool:
        """Whether the log was ever read and had entries."""
        return self.status.incarnation is not None

    def age(self, time: datetime | None) -> float:
        """Seconds since a time; 0 for `None`, or if the driver's clock is ahead."""
        return 0.0 if time is None else max(0.0, self.now - time.timestamp())


@dataclass(frozen=True)
class Series:
    """One series and the function for its samples. All series have the labels `location` and `step`."""

    name: str
    help: str
    samples: Callable[[Reading], Samples]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`counter` or `gauge`."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _gauge(name: str, help: str, value: Callable[[Reading], float | None]) -> Series:
    """Return a gauge without own labels. It is absent without a value or if the step was never read."""

    def samples(reading: Reading) -> Iterator[tuple[tuple[str, ...], float]]:
        found = value(reading) if reading.known else None
        if found is not None:
            yield (), found

    return Series(name, help, samples)


def _counter(counter: StepCounter) -> Series:
    def value(reading: Reading) -> float:
        return reading.status.restarts if counter.counted_as == "restarts" else _total(reading, counter.counted_as)

    return _gauge(counter.prometheus, counter.help, value)


def _total(reading: Reading, name: str) -> int:
    return reading.status.totals.get(name, 0)


def _info(status: StepStatus) -> tuple[str, ...]:
    return status.sink or "", status.outfall or "", "streaming" if status.query_id else "batch"


def _states(reading: Reading) -> Samples:
    return [((state,), float(state == reading.status.state)) for state in get_args(State)]


def _open(reading: Reading) -> Samples:
    if not reading.known:
        return []
    found, age = reading.status.phase, reading.age(reading.status.opened_at)
    return [((phase,), age if phase == found else 0.0) for phase in PHASES.values()]


def _phase_seconds(reading: Reading) -> Samples:
    return [((phase,), _total(reading, name) / 1000) for name, phase in PHASES.items()] if reading.known else []


def _sink_counters(reading: Reading) -> Samples:
    return [((sink, counter), value) for sink, counter, value in sink_counters(reading.status.totals)]


def _peaks(reading: Reading) -> Samples:
    split = ((name.rpartition("."), peak) for name, peak in reading.status.peaks.items())
    return [((sink, counter), peak) for (sink, _, counter), peak in split]


def _timestamp(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


STEP_SERIES = (
    Series(
        "outfall_log_readable",
        "1 if the last read of the step's log succeeded; 0 if the log is damaged, or its store fails or hangs.",
        lambda reading: [((), float(reading.readable))],
    ),
    Series("outfall_state", "1 for the current state of the step, 0 for all other states.", _states, ("state",)),
    Series(
        "outfall_log_last_read_timestamp_seconds",
        "Unix time of the last read of the step's log.",
        lambda reading: [((), reading.at)],
    ),
    Series(
        "outfall_log_read_seconds",
        "Duration of the last read of the step's log, in seconds.",
        lambda reading: [((), reading.seconds)],
    ),
    Series(
        "outfall_step_info",
        "Always 1; the labels have the sink and the version of Outfall of the newest epoch. `mode` is `streaming` for a"
        " step of a streaming query, and `batch` for batch jobs and `outfall replay`.",
        lambda reading: [(_info(reading.status), 1.0)] if reading.known else [],
        ("sink", "version", "mode"),
    ),
    *(_counter(counter) for counter in STEP_COUNTERS),
    Series(PHASE_SECONDS.prometheus, PHASE_SECONDS.help, _phase_seconds, ("phase",)),
    Series(SINK_COUNTER.prometheus, SINK_COUNTER.help, _sink_counters, ("sink", "counter")),
    _gauge("outfall_last_completed_epoch", "Number of the last completed epoch.", lambda found: found.status.completed),
    _gauge(
        "outfall_last_completed_timestamp_seconds",
        "Completion time of the last completed epoch, as Unix time by the driver's clock.",
        lambda found: _timestamp(found.status.completed_at),
    ),
    _gauge(
        "outfall_last_completed_age_seconds",
        "Seconds since the last completed epoch.",
        lambda found: found.age(found.status.completed_at) if found.status.completed_at else None,
    ),
    Series(
        "outfall_epoch_open_seconds",
        "Seconds since the first BEGIN of the open epoch, by its phase; 0 if no epoch is open.",
        _open,
        ("phase",),
    ),
    _gauge(
        "outfall_recorded_rows",
        "Rows that are recorded but not fully published; the next start publishes them.",
        lambda found: found.status.recorded_rows,
    ),
    _gauge(
        "outfall_buffered_rows", "Rows that the sink buffers across epochs.", lambda found: found.status.buffered_rows
    ),
    _gauge(
        "outfall_buffered_age_seconds",
        "Age of the oldest buffered row; 0 if no row is buffered, or the sink does not report it.",
        lambda found: found.age(found.status.held_since),
    ),
    _gauge(
        "outfall_failed",
        "1 after an error has ended the query or job, or its driver has ended on the exporter's host with an epoch"
        " open, until the next BEGIN.",
        lambda found: float(found.status.failed),
    ),
    _gauge(
        "outfall_retrying",
        "1 while the driver or a task retries an operation, and for 90 seconds after the last attempt.",
        lambda found: float(found.status.retrying),
    ),
    _gauge(
        "outfall_retrying_attempts",
        "Failed attempts of the current retries, of the driver and all tasks.",
        lambda found: sum(beat.attempts for beat in found.status.heartbeats),
    ),
    _gauge(
        "outfall_retrying_seconds",
        "Seconds since the first failed attempt of the current retries.",
        lambda found: found.age(min((beat.since for beat in found.status.heartbeats), default=None)),
    ),
    Series(
        "outfall_last_epoch_peak",
        "Largest value in any task of the last completed epoch, for example requests in flight.",
        _peaks,
        ("sink", "counter"),
    ),
    _gauge(
        "outfall_generation",
        "Number of the newest BEGIN; each driver and each epoch appends a new one.",
        lambda found: found.status.generation,
    ),
)

LOCATION_READABLE = Series(
    "outfall_location_readable",
    "1 if the last listing of the location succeeded: of its steps, or of the locations below a directory.",
    lambda reading: [],
)
"""A series of locations, without the label `step`."""
