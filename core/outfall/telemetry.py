"""Counters and spans of a driver's epochs through OpenTelemetry's API. Does nothing if it is not installed.

The driver program sets up a meter provider and a tracer provider and thereby chooses the destination. Without
providers, OpenTelemetry's API does nothing either.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from outfall.counters import PHASE_SECONDS, PHASES, SINK_COUNTER, STEP_COUNTERS, sink_counters
from outfall.redaction import without_credentials

try:
    from opentelemetry import metrics, trace
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter
    from opentelemetry.trace import Span

_SCOPE = "outfall"


class EpochTelemetry:
    """Reports one epoch of a driver: a span `outfall.epoch` with one child span per phase, and counters.

    If an epoch begins in one process and ends in another, only the second one reports it.
    """

    def __init__(self, location: str, step_id: str) -> None:
        """Report nothing yet."""
        self._attributes = {"location": location, "step": step_id}
        self._epoch: Span | None = None
        self._tasks: Span | None = None

    def count(self, increments: Mapping[str, int]) -> None:
        """Add the counts of a completed or skipped epoch to the counters."""
        if not _INSTALLED:
            return
        for counter in STEP_COUNTERS:
            if increments.get(counter.counted_as):
                _counter(counter.name, counter.help).add(increments[counter.counted_as], self._attributes)
        for name, phase in PHASES.items():
            seconds = _counter(PHASE_SECONDS.name, PHASE_SECONDS.help, "s")
            seconds.add(increments.get(name, 0) / 1000, {**self._attributes, "phase": phase})
        for sink, name, value in sink_counters(increments):
            own = _counter(SINK_COUNTER.name, SINK_COUNTER.help)
            own.add(value, {**self._attributes, "sink": sink, "counter": name})

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Report the body as the phase `begin`. The phase `tasks` starts after it."""
        if not _INSTALLED:
            yield
            return
        self._epoch = self._start("outfall.epoch")
        with self._phase("outfall.begin"):
            yield
        self._tasks = self._start("outfall.tasks")

    @contextmanager
    def committing(self, began_at: float) -> Iterator[None]:
        """Report the body as the phase `commit`, which ends the epoch.

        `began_at` is the Unix time of BEGIN, for an epoch that another process began.
        """
        if not _INSTALLED:
            yield
            return
        if self._epoch is None or self._tasks is None:
            self._epoch = self._start("outfall.epoch", began_at)
            self._tasks = self._start("outfall.tasks", began_at)
        epoch = self._epoch
        self._tasks.end()
        with self._phase("outfall.commit"):
            yield
        epoch.end()
        self._epoch = self._tasks = None

    def close(self) -> None:
        """End the open spans with the current exception if the tasks have failed.

        Without an exception, the epoch continues in another process.
        """
        error = sys.exc_info()[1]
        if error is not None:
            self._fail(error, self._tasks)
        self._epoch = self._tasks = None

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        span = self._start(name)
        try:
            # Makes it the parent of the spans of the sink's clients.
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            self._fail(error, span)
            raise
        span.end()

    def _start(self, name: str, at: float | None = None) -> Span:
        below = None if self._epoch is None else trace.set_span_in_context(self._epoch)
        start = None if not at else int(at * 1e9)
        return trace.get_tracer(_SCOPE).start_span(name, below, attributes=self._attributes, start_time=start)

    def _fail(self, error: BaseException, phase: Span | None) -> None:
        message = without_credentials(str(error))
        frames = without_credentials("".join(traceback.format_exception(error)))
        for span in (phase, self._epoch):
            if span is not None:
                # The API would record the unredacted texts of the exception.
                texts = {"exception.message": message, "exception.stacktrace": frames}
                span.record_exception(error, texts)
                span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {message}")
                span.end()
        self._epoch = self._tasks = None


@cache
def _counter(name: str, description: str, unit: str = "") -> Counter:
    return metrics.get_meter(_SCOPE).create_counter(name, unit, description)
