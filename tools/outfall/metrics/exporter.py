"""Prometheus metrics from the logs of many steps.

Each RECOVERY has its own threads, so a slow or hanging store delays neither other stores nor scrapes, which read only
memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias
from wsgiref.simple_server import WSGIServer

from outfall.errors import require_extra
from outfall.metrics.locations import locations_in
from outfall.metrics.series import LOCATION_READABLE, STEP_SERIES, Reading, Series
from outfall.metrics.step_status import StepStatus, StepWatch
from outfall.recovery.log import RecoveryConfig
from outfall.redaction import without_credentials

require_extra("metrics", "prometheus_client")

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)

_THREADS = 4
"""Threads per RECOVERY: its other logs wait if this many logs hang."""
_SEARCH_EVERY = 30.0
"""Seconds between searches for new locations below a directory."""
_SILENCE = 30.0
"""Seconds without a finished read until a log counts as unreadable; longer with a long interval."""

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily


class Exporter:
    """Reads recovery locations and serves scrapes in threads, from `start` until `close`."""

    def __init__(self, server: WSGIServer, lookers: Sequence[_Looker]) -> None:
        self._server = server
        self._lookers = lookers

    @classmethod
    def start(cls, recoveries: Sequence[RecoveryConfig], *, host: str, port: int, every: float) -> Exporter:
        """Start reading and listening.

        Args:
            recoveries: locations, or directories or prefixes that contain locations.
            host: listen address.
            port: listen port; 0 selects a free one.
            every: seconds between two reads of a step.

        Raises:
            OSError: the address is not available.
        """
        board = _Board(every)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_StepCollector(board))
        ProcessCollector(registry=registry)
        server, _ = start_http_server(port, host, registry)
        lookers = [_Looker(recovery, every, board) for recovery in recoveries]
        for looker in lookers:
            looker.start()
        return cls(server, lookers)

    @property
    def port(self) -> int:
        """The listen port."""
        return self._server.server_port

    def close(self) -> None:
        """Stop, without waiting for reads in progress."""
        for looker in self._lookers:
            looker.stop()
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class _Key:
    location: str
    step: str


class _Board:
    """The last reads, shared by the reading threads and scrapes."""

    def __init__(self, every: float) -> None:
        self._lock = threading.Lock()
        self._silence = max(_SILENCE, 3 * every)
        self._steps: dict[_Key, Reading] = {}
        self._locations: dict[str, tuple[bool, float]] = {}

    def expect(self, key: _Key) -> None:
        """Add a step before its first read, so that a log that hangs from the beginning is visible."""
        status = StepStatus(key.step, "unreadable")
        with self._lock:
            self._steps.setdefault(key, Reading(status, at=0.0, seconds=0.0, readable=False, now=0.0))

    def put(self, key: _Key, status: StepStatus, seconds: float) -> None:
        """Store the result of a read."""
        now = time.time()
        with self._lock:
            self._steps[key] = Reading(status, at=now, seconds=seconds, readable=status.problem is None, now=now)

    def listed(self, location: str, *, readable: bool) -> None:
        """Store whether a location could be listed."""
        with self._lock:
            self._locations[location] = readable, time.time()

    def keep(self, location: str, steps: Sequence[str]) -> None:
        """Remove steps that no longer exist at a location."""
        with self._lock:
            for key in [key for key in self._steps if key.location == location and key.step not in steps]:
                del self._steps[key]

    def forget(self, location: str) -> None:
        """Remove a location that no longer exists."""
        self.keep(location, ())
        with self._lock:
            self._locations.pop(location, None)

    def steps(self) -> list[tuple[_Key, Reading]]:
        """Return all steps. A step without a recent read is not readable."""
        now = time.time()
        with self._lock:
            found = list(self._steps.items())
        return [
            (key, replace(read, now=now, readable=read.readable and not self._silent(read.at))) for key, read in found
        ]

    def locations(self) -> list[tuple[str, bool]]:
        """Return all locations and whether they can be listed."""
        with self._lock:
            found = list(self._locations.items())
        return [(location, readable and not self._silent(at)) for location, (readable, at) in found]

    def _silent(self, since: float) -> bool:
        return time.time() - since >= self._silence


class _StepCollector(Collector):
    """Creates the samples of a scrape."""

    def __init__(self, board: _Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Family]:
        steps = self._board.steps()
        for series in STEP_SERIES:
            family = _family(series, ("location", "step"))
            for key, reading in steps:
                for labels, value in series.samples(reading):
                    family.add_metric([key.location, key.step, *labels], value)
            yield family
        family = _family(LOCATION_READABLE, ("location",))
        for location, readable in self._board.locations():
            family.add_metric([location], float(readable))
        yield family


def _family(series: Series, labels: Sequence[str]) -> Family:
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    return kind(series.name, series.help, labels=[*labels, *series.labels])


class _Looker:
    """Reads one RECOVERY repeatedly: finds its locations and steps, and reads their new entries."""

    def __init__(self, recovery: RecoveryConfig, every: float, board: _Board) -> None:
        self._recovery = recovery
        self._every = every
        self._board = board
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._guard = threading.RLock()
        """Protects the known locations and jobs. Never held during a call of a store."""
        self._busy: set[object] = set()
        self._said: dict[object, str | None] = {}
        self._watches: dict[_Key, StepWatch] = {}
        self._locations: list[RecoveryConfig] = []
        self._searched: float | None = None
        self._stopped = threading.Event()
        board.listed(recovery.url(), readable=False)

    def start(self) -> None:
        """Start. The threads are daemons, so that a hanging store does not prevent the process from exiting."""
        for target in (self._run, *[self._work] * _THREADS):
            threading.Thread(target=target, name="outfall-look", daemon=True).start()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._enqueue(self._recovery.url(), self._search)
            for location in self._locations:
                self._enqueue(("steps of", location.url()), partial(self._list, location))
            for key in list(self._watches):
                self._enqueue(key, partial(self._look, key))
            self._stopped.wait(self._every)
        for _ in range(_THREADS):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _enqueue(self, name: object, job: Callable[[], str | None]) -> None:
        """Queue a job that returns a problem, unless the previous job of this name is still queued or running."""
        with self._guard:
            if name in self._busy:
                return
            self._busy.add(name)
        self._jobs.put(partial(self._do, name, job))

    def _do(self, name: object, job: Callable[[], str | None]) -> None:
        try:
            problem = job()
        except Exception as error:  # any error of a store's client may be temporary
            problem = without_credentials(f"{type(error).__name__}: {error}")
        finally:
            self._busy.discard(name)
        if problem is not None and problem != self._said.get(name):
            _log.warning("%s", problem)
        self._said[name] = problem

    def _search(self) -> str | None:
        """Search for locations at intervals. Otherwise only report that the threads are not blocked."""
        given, now = self._recovery.url(), time.monotonic()
        if self._searched is None or now - self._searched >= _SEARCH_EVERY:
            try:
                found = {location.url(): location for location in locations_in(self._recovery)}
            except Exception:
                self._board.listed(given, readable=False)
                raise
            with self._guard:
                removed = {location.url() for location in self._locations} - found.keys()
                self._locations, self._searched = list(found.values()), now
                for url in removed:
                    self._keep(url, ())
                    self._board.forget(url)
            for location in self._locations:
                self._enqueue(("steps of", location.url()), partial(self._list, location))
        if [location.url() for location in self._locations] != [given]:
            self._board.listed(given, readable=True)
        return None if self._locations else f"{given}: no steps are recorded in this location or below it yet"

    def _list(self, location: RecoveryConfig) -> None:
        """List the steps of a location."""
        try:
            steps = location.steps()
        except Exception:
            with self._guard:
                if location in self._locations:
                    self._board.listed(location.url(), readable=False)
            raise
        with self._guard:
            # A search may have removed the location in the meantime.
            if location in self._locations:
                self._keep(location.url(), steps)
                for step in steps:
                    self._expect(location, step)
                self._board.listed(location.url(), readable=True)

    def _expect(self, location: RecoveryConfig, step: str) -> None:
        key = _Key(location.url(), step)
        if key not in self._watches:
            self._watches[key] = StepWatch(location, step)
            self._board.expect(key)
            self._enqueue(key, partial(self._look, key))

    def _keep(self, location: str, steps: Sequence[str]) -> None:
        for key in [key for key in list(self._watches) if key.location == location and key.step not in steps]:
            del self._watches[key]
        self._board.keep(location, steps)

    def _look(self, key: _Key) -> str | None:
        """Read a step."""
        watch, started = self._watches.get(key), time.monotonic()
        if watch is None:
            return None
        status = watch.look()
        with self._guard:
            if key in self._watches:
                self._board.put(key, status, time.monotonic() - started)
        return status.problem
