"""Many requests on their way, and one thread that waits for all their answers.

A thread for each request spends more on handing over the interpreter than on the request: with 64 of them and a task
that does its own work beside them, a process sent a third of what it sends this way. Only what is common is done here:
a connection that is open already, a small body, an answer with a length. The rest goes to threads that may block.
"""

from __future__ import annotations

import os
import select
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from outfall.http.connection import Connection
from outfall.http.response import Read, ResponseReader, Unusual
from outfall.http.transport import ExchangeError, Fault

_LONGEST_SLEEP = 0.25
"""Seconds by which a timeout may be noticed late."""
_PIECE = 1 << 16
_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

AVAILABLE = hasattr(select, "epoll")
"""Whether this system has what it takes: Linux has."""


class Ending(Protocol):
    """Learns how a request ended. Called once, by the reactor's thread; must not block."""

    def answered(self, read: Read) -> None:
        """The answer is there."""

    def unusual(self, begun: bytes, left: bytes) -> None:
        """An answer has begun that somebody else has to read on, from these bytes; so much of the request is left."""

    def failed(self, error: ExchangeError) -> None:
        """There is no answer."""


class _Flight:
    """One request on its way."""

    def __init__(self, connection: Connection, data: bytes, ending: Ending, deadline: float, longest: int) -> None:
        self.connection = connection
        self.left = memoryview(data)
        self.ending = ending
        self.deadline = deadline
        self.reader = ResponseReader(longest)
        self.active_at = 0.0


class Reactor:
    """Sends on open connections, and tells each request's `Ending` what came of it. Its thread starts when needed.

    Args:
        silence: seconds for which a server may be silent.
        longest: how much of an answer's body is kept.
        clock: seconds.
    """

    def __init__(self, silence: float, longest: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._silence = silence
        self._longest = longest
        self._clock = clock
        self._flights: dict[int, _Flight] = {}
        self._epoll = select.epoll()
        self._wake_out, self._wake_in = os.pipe()
        self._epoll.register(self._wake_out, select.EPOLLIN)
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, connection: Connection, data: bytes, ending: Ending, deadline: float) -> None:
        """Send a request on an open connection, which is the reactor's until the ending is told.

        Args:
            connection: idle.
            data: head and body.
            ending: is told the outcome; not before this returns, nor after `close`.
            deadline: when it must be over.
        """
        flight = _Flight(connection, data, ending, deadline, self._longest)
        flight.active_at = self._clock()
        connection.socket.setblocking(False)
        # What breaks here is seen again by the thread, which is the one to tell.
        with suppress(OSError):
            self._push(flight)
        number = connection.socket.fileno()
        self._flights[number] = flight
        self._epoll.register(number, select.EPOLLIN | (select.EPOLLOUT if flight.left else 0))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="outfall-http", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop, and close the connections of what is under way. Nobody is told."""
        if self._closed:
            return
        self._closed = True
        os.write(self._wake_in, b"x")
        if self._thread is not None:
            self._thread.join()
        for flight in self._flights.values():
            flight.connection.close()
        self._flights.clear()
        self._epoll.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _run(self) -> None:
        look_at = 0.0
        while not self._closed:
            for number, events in self._epoll.poll(_LONGEST_SLEEP):
                flight = self._flights.get(number)
                if flight is not None:
                    self._serve(number, flight, events)
            now = self._clock()
            if look_at <= now:
                self._expire(now)
                look_at = now + _LONGEST_SLEEP

    def _serve(self, number: int, flight: _Flight, events: int) -> None:
        try:
            if flight.left and events & select.EPOLLOUT:
                self._push(flight)
                if not flight.left:
                    self._epoll.modify(number, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                self._pull(number, flight)
        except OSError as error:
            self._end(number, flight, ExchangeError(Fault.LOST, f"the connection broke ({type(error).__name__})"))

    def _push(self, flight: _Flight) -> None:
        with suppress(*_WAIT):
            while flight.left:
                flight.left = flight.left[flight.connection.socket.send(flight.left) :]
                flight.active_at = self._clock()

    def _pull(self, number: int, flight: _Flight) -> None:
        flight.active_at = self._clock()
        while True:
            try:
                data = flight.connection.socket.recv(_PIECE)
            except _WAIT:
                return
            if not data:
                raise ConnectionResetError
            try:
                read = flight.reader.take(data)
            except Unusual:
                self._land(number)
                flight.ending.unusual(bytes(flight.reader.data), bytes(flight.left))
                return
            if read is not None:
                self._land(number)
                if flight.left:
                    flight.ending.unusual(bytes(flight.reader.data), bytes(flight.left))
                else:
                    flight.ending.answered(read)
                return
            if len(data) < _PIECE and not isinstance(flight.connection.socket, ssl.SSLSocket):
                return

    def _expire(self, now: float) -> None:
        for number, flight in list(self._flights.items()):
            if min(flight.deadline, flight.active_at + self._silence) <= now:
                self._end(number, flight, ExchangeError(Fault.LATE, "the server was silent, or too slow"))

    def _end(self, number: int, flight: _Flight, error: ExchangeError) -> None:
        self._land(number)
        if flight.reader.data:
            # It may hold the status, which decides even where the body never comes.
            flight.ending.unusual(bytes(flight.reader.data), bytes(flight.left))
            return
        flight.connection.close()
        flight.ending.failed(error)

    def _land(self, number: int) -> None:
        del self._flights[number]
        with suppress(OSError):
            self._epoll.unregister(number)
