"""A service in virtual time whose latency grows with its load, and a client that a limiter holds back.

The model is that of the tests of Vector's adaptive request concurrency: each answer takes `delay`, longer by `scale`
for every other request under way, longer by a power beyond a knee, and at random.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from outfall.async_sink.limiting import EndedRequest, InFlight, Limiter

TIMEOUT = 1.0


@dataclass(frozen=True)
class Service:
    delay: float = 0.1
    jitter: float = 0.0
    scale: float = 0.0
    knee: int | None = None
    knee_power: float = 1.1
    most: int | None = None
    """More under way than this are refused."""
    most_per_second: int | None = None
    action: Literal["defer", "drop"] = "defer"

    def seconds(self, level: int, chance: random.Random) -> float:
        beyond = self.knee_power ** max(0, level - self.knee) - 1 if self.knee is not None else 0.0
        return self.delay * (1 + self.scale * (level - 1) + beyond + self.jitter * chance.expovariate(1.0))

    def refuses(self, level: int, rate: int) -> bool:
        return (self.most is not None and level > self.most) or (
            self.most_per_second is not None and rate > self.most_per_second
        )


@dataclass
class Seen:
    """What was seen, weighted by time."""

    in_flight: Counter[int] = field(default_factory=Counter)
    limit: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    sent: int = 0
    refused: int = 0

    @staticmethod
    def mean(levels: Counter[int]) -> float:
        return sum(level * time for level, time in levels.items()) / sum(levels.values())

    @staticmethod
    def mode(levels: Counter[int]) -> int:
        return levels.most_common(1)[0][0]


class Client:
    """Sends requests as they come, as many at a time as the limiter admits; sends refused ones again after a second."""

    def __init__(self, service: Service, limiter: Limiter, *, seed: int = 7) -> None:
        self.service = service
        self._limiter = limiter
        self._chance = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._waiting = 0
        self._in_flight = 0
        self._level = 0
        self._recent: deque[float] = deque()
        self.seen = Seen()

    def run(self, requests: int, *, interval: float = 0.0) -> Seen:
        if interval:
            for number in range(requests):
                self._at(number * interval, self._arrive)
        else:
            self._waiting = requests
        self._start_some()
        while self._events:
            moment, _, event = heapq.heappop(self._events)
            # In whole microseconds, since a Counter of floats would not be comparable.
            passed = round((moment - self._now) * 1e6)
            self.seen.in_flight[self._in_flight] += passed
            self.seen.limit[self._limiter.limit] += passed
            self._now = moment
            event()
            self._start_some()
        self.seen.seconds = self._now
        return self.seen

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _arrive(self) -> None:
        self._waiting += 1

    def _start_some(self) -> None:
        while self._waiting and (
            not self._in_flight or self._limiter.admits(InFlight(self._in_flight, self._in_flight), 1)
        ):
            self._waiting -= 1
            self._start()

    def _start(self) -> None:
        self._in_flight += 1
        self.seen.sent += 1
        self._level += 1
        self._limiter.started(InFlight(self._in_flight, self._in_flight))
        self._recent.append(self._now)
        while self._recent[0] <= self._now - 1:
            self._recent.popleft()
        started = self._now
        if not self.service.refuses(self._level, len(self._recent)):
            seconds = self.service.seconds(self._level, self._chance)
            self._at(self._now + seconds, lambda: self._end(self._now - started, at_service=True))
        elif self.service.action == "defer":
            self._at(self._now + self.service.seconds(1, self._chance), lambda: self._end(None, at_service=True))
        else:
            self._level -= 1
            self._at(self._now + TIMEOUT, lambda: self._end(None, at_service=False))

    def _end(self, seconds: float | None, *, at_service: bool) -> None:
        self._in_flight -= 1
        self._level -= at_service
        self._limiter.ended(EndedRequest(self._now, 1, int(seconds is None), seconds))
        if seconds is None:
            self.seen.refused += 1
            self._at(self._now + self._chance.random(), self._arrive)
