"""What the logs of many steps say, for Prometheus.

Stores are looked at in threads of their own, each RECOVERY in several, so that one that is slow or hangs keeps back
neither others nor a scrape, which reads memory only.
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

from outfall.errors import missing_extra
from outfall.metrics.locations import locations_in
from outfall.metrics.series import LOCATION_READABLE, STEP_SERIES, Reading, Series
from outfall.metrics.step_status import StepStatus, StepWatch
from outfall.recovery.log import RecoveryConfig
from outfall.redaction import without_credentials

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_extra("prometheus-client", "metrics") from error

_log = logging.getLogger(__name__)

_THREADS = 4
"""Of each RECOVERY: as many of its logs may hang before its others wait."""
_SEARCH_EVERY = 30.0
"""Seconds between two searches for new locations below a directory."""
_SILENCE = 30.0
"""Seconds after which a log that nobody has finished reading counts as unreadable; longer where looks are rarer."""

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily


class Exporter:
    """Looks at recovery locations and answers scrapes, in threads, from the moment it is made until it is closed."""

    def __init__(self, recoveries: Sequence[RecoveryConfig], *, host: str, port: int, every: float) -> None:
        """Begin.

        Args:
            recoveries: locations, or directories or prefixes with several of them.
            host: the address to listen at.
            port: 0 for one that is free.
            every: seconds between two looks at a step.

        Raises:
            OSError: the address cannot be listened at.
        """
        board = _Board(every)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_StepCollector(board))
        ProcessCollector(registry=registry)
        self._server, _ = start_http_server(port, host, registry)
        self._lookers = [_Looker(recovery, every, board) for recovery in recoveries]
        for looker in self._lookers:
            looker.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def close(self) -> None:
        """End; a look that is under way is not waited for."""
        for looker in self._lookers:
            looker.stop()
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class _Key:
    location: str
    step: str


class _Board:
    """What was read last: all that the threads that look share with a scrape."""

    def __init__(self, every: float) -> None:
        self._lock = threading.Lock()
        self._silence = max(_SILENCE, 3 * every)
        self._steps: dict[_Key, Reading] = {}
        self._locations: dict[str, tuple[bool, float]] = {}

    def expect(self, key: _Key) -> None:
        """Take note of a step that nobody has read yet: one whose log hangs from the beginning must be seen too."""
        status = StepStatus(key.step, "unreadable")
        with self._lock:
            self._steps.setdefault(key, Reading(status, at=0.0, seconds=0.0, readable=False, now=0.0))

    def put(self, key: _Key, status: StepStatus, seconds: float) -> None:
        """Take over what a look has found."""
        now = time.time()
        with self._lock:
            self._steps[key] = Reading(status, at=now, seconds=seconds, readable=status.problem is None, now=now)

    def listed(self, location: str, *, readable: bool) -> None:
        """Take note of whether a location could be listed."""
        with self._lock:
            self._locations[location] = readable, time.time()

    def keep(self, location: str, steps: Sequence[str]) -> None:
        """Forget what is not at a location any more."""
        with self._lock:
            for key in [key for key in self._steps if key.location == location and key.step not in steps]:
                del self._steps[key]

    def forget(self, location: str) -> None:
        """Forget a location that is not there any more."""
        self.keep(location, ())
        with self._lock:
            self._locations.pop(location, None)

    def steps(self) -> list[tuple[_Key, Reading]]:
        """Return all steps as of now; one that was not read for long is not readable."""
        now = time.time()
        with self._lock:
            found = list(self._steps.items())
        return [
            (key, replace(read, now=now, readable=read.readable and not self._silent(read.at))) for key, read in found
        ]

    def locations(self) -> list[tuple[str, bool]]:
        """Return all locations, and whether they can be listed."""
        with self._lock:
            found = list(self._locations.items())
        return [(location, readable and not self._silent(at)) for location, (readable, at) in found]

    def _silent(self, since: float) -> bool:
        return time.time() - since >= self._silence


class _StepCollector(Collector):
    """Makes the samples of a scrape."""

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
    """Looks at one RECOVERY again and again: finds its locations and their steps, and reads what is new of each."""

    def __init__(self, recovery: RecoveryConfig, every: float, board: _Board) -> None:
        self._recovery = recovery
        self._every = every
        self._board = board
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._guard = threading.RLock()
        """Held for what is known of locations and jobs, and never while a store is asked."""
        self._busy: set[object] = set()
        self._said: dict[object, str | None] = {}
        self._watches: dict[_Key, StepWatch] = {}
        self._locations: list[RecoveryConfig] = []
        self._searched: float | None = None
        self._stopped = threading.Event()
        board.listed(recovery.url(), readable=False)

    def start(self) -> None:
        """Begin. The threads are daemons: a store that hangs must not keep the process from ending."""
        for target in (self._run, *[self._work] * _THREADS):
            threading.Thread(target=target, name="outfall-look", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
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
        """Give the threads a job that returns what is wrong, unless they still have the last one of this name."""
        with self._guard:
            if name in self._busy:
                return
            self._busy.add(name)
        self._jobs.put(partial(self._do, name, job))

    def _do(self, name: object, job: Callable[[], str | None]) -> None:
        try:
            problem = job()
        except Exception as error:  # whatever a store's client raises: the next look may succeed
            problem = without_credentials(f"{type(error).__name__}: {error}")
        finally:
            self._busy.discard(name)
        if problem is not None and problem != self._said.get(name):
            _log.warning("%s", problem)
        self._said[name] = problem

    def _search(self) -> str | None:
        """Find the locations from time to time; in between only say that this thread is not kept."""
        given, now = self._recovery.url(), time.monotonic()
        if self._searched is None or now - self._searched >= _SEARCH_EVERY:
            try:
                found = {location.url(): location for location in locations_in(self._recovery)}
            except Exception:
                self._board.listed(given, readable=False)
                raise
            with self._guard:
                gone = {location.url() for location in self._locations} - found.keys()
                self._locations, self._searched = list(found.values()), now
                for url in gone:
                    self._keep(url, ())
                    self._board.forget(url)
            for location in self._locations:
                self._enqueue(("steps of", location.url()), partial(self._list, location))
        if [location.url() for location in self._locations] != [given]:
            self._board.listed(given, readable=True)
        return None if self._locations else f"{given}: no steps are recorded in it or below it yet"

    def _list(self, location: RecoveryConfig) -> None:
        """Find the steps of a location."""
        try:
            steps = location.steps()
        except Exception:
            with self._guard:
                if location in self._locations:
                    self._board.listed(location.url(), readable=False)
            raise
        with self._guard:
            # A search may have found meanwhile that the location is gone.
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
        """Look at a step."""
        watch, started = self._watches.get(key), time.monotonic()
        if watch is None:
            return None
        status = watch.look()
        with self._guard:
            if key in self._watches:
                self._board.put(key, status, time.monotonic() - started)
        return status.problem
