"""`HttpSink` in virtual time: a server that is a function of the moment, and no thread."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from outfall.async_sink import FixedLimiter, HostState
from outfall.async_sink.blocking import Job
from outfall.http import Response
from outfall.http.options import HttpOptions
from outfall.http.partition import HttpPartition
from outfall.http.sink import HttpRequestSink
from outfall.http.transport import Call, Transport
from outfall.options import make_options
from outfall.testing.virtual_time import VirtualEventQueue

URL = "https://api.example/events"

Behaviour = Callable[[float], Response]
"""Answers a request by the moment at which it comes."""


class Server(Transport):
    """Answers after a quarter of a second, and notes when it was asked."""

    def __init__(self, behave: Behaviour, events: VirtualEventQueue) -> None:
        self.times: list[float] = []
        self.bodies: list[bytes] = []
        self._behave = behave
        self._events = events

    def exchange(self, call: Call) -> Response:
        self.times.append(self._events.now())
        self.bodies.append(call.body)
        answer = self._behave(self._events.now())
        self._events.advance(0.25)
        return answer

    def close(self) -> None:
        pass


class _Inline:
    """Runs jobs where they are given."""

    def run(self, job: Job) -> None:
        job()

    def close(self) -> None:
        pass


class TimedSink(HttpRequestSink):
    """Knows its host alone, or as another one does."""

    def __init__(self, state: HostState | None = None, **options: Any) -> None:
        super().__init__(make_options(HttpOptions, {"url": URL} | options))
        self._state = state or HostState(FixedLimiter(self.http.max_in_flight_requests))

    def host_state(self) -> HostState:
        return self._state


def opened(
    behave: Behaviour,
    *,
    sink: HttpRequestSink | None = None,
    events: VirtualEventQueue | None = None,
    chance: random.Random | None = None,
    **options: Any,
) -> tuple[HttpPartition, Server]:
    """A partition and its server.

    Args:
        behave: what the server does.
        sink: what opens it; left out: one of `options`.
        events: its clock.
        chance: where its jitter comes from; left out: always a half.
    """
    events = events or VirtualEventQueue()
    server = Server(behave, events)
    jitter = chance.random if chance else lambda: 0.5
    partition = HttpPartition(sink or TimedSink(**options), transport=server, events=events, jitter=jitter)
    partition._workers = _Inline()  # type: ignore[assignment]
    return partition, server
