"""Counters and spans of a driver's epochs, through OpenTelemetry's API where that is installed; else nothing is done.

The program that runs the driver sets up a meter and a tracer provider, and so chooses where they go. Without one
OpenTelemetry's API does nothing either.
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
    """What the driver of one epoch tells of it: a span `outfall.epoch` with one for each phase in it, and counters.

    Of an epoch that is begun in one process and finished in another, only the second one tells.
    """

    def __init__(self, location: str, step_id: str) -> None:
        """Tell nothing yet."""
        self._attributes = {"location": location, "step": step_id}
        self._epoch: Span | None = None
        self._tasks: Span | None = None

    def count(self, increments: Mapping[str, int]) -> None:
        """Add to the counters what a completed or skipped epoch adds to the step's totals."""
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
        """Tell of the body as the phase `begin`; the tasks begin where it ends."""
        if not _INSTALLED:
            yield
            return
        self._epoch = self._start("outfall.epoch")
        with self._phase("outfall.begin"):
            yield
        self._tasks = self._start("outfall.tasks")

    @contextmanager
    def committing(self, began_at: float) -> Iterator[None]:
        """Tell of the body as the phase `commit`, which ends the epoch.

        Args:
            began_at: when its BEGIN was written, as Unix time, for an epoch that another process began.
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
        """End what is open, if the tasks have failed, with their error: it is on its way through the caller's frames.

        Without an error the epoch goes on in another process.
        """
        error = sys.exc_info()[1]
        if error is not None:
            self._fail(error, self._tasks)
        self._epoch = self._tasks = None

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        span = self._start(name)
        try:
            # The spans of clients that the sink uses come below it.
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
                # In our words: the API would take texts as they are, those of clients among them.
                texts = {"exception.message": message, "exception.stacktrace": frames}
                span.record_exception(error, texts)
                span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {message}")
                span.end()
        self._epoch = self._tasks = None


@cache
def _counter(name: str, description: str, unit: str = "") -> Counter:
    return metrics.get_meter(_SCOPE).create_counter(name, unit, description)
