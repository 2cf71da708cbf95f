"""Connections of the direct way, their other end in the test's hands: what they carry, and when they carry no more."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from outfall.http.connection import Connection
from outfall.http.direct import DirectTransport
from outfall.http.exchange import Answer, Call
from outfall.http.options import HttpOptions
from outfall.http.templates import origin

CHUNKED = b"HTTP/1.1 429 Too Many\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
ENOUGH = 30.0
"""Seconds that nothing here takes."""


class Line:
    """A connection to a host of its own, and its other end, which takes little before it is read."""

    def __init__(self) -> None:
        self.url = f"http://{uuid.uuid4()}.invalid/x"
        self.place = origin(self.url)
        here, self.there = socket.socketpair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.connection = Connection(self.place, None, connect_timeout=ENOUGH, read_timeout=ENOUGH)
        self.connection.socket = here

    def call(self, body: bytes) -> Call:
        return Call("POST", self.url, body, (), (), True, time.monotonic() + ENOUGH, False)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.connection.close()
    made.there.close()


@pytest.mark.parametrize(("size", "kept"), [(60_000, False), (10, True)])
def test_a_server_that_answers_before_it_has_the_body_is_sent_no_other_request_behind_it(
    line: Line, size: int, kept: bool
) -> None:
    """It would take the next request's bytes for the rest of this one's body."""
    transport = DirectTransport(HttpOptions(url=line.url))
    transport.give_back(line.place, line.connection)
    ends: SimpleQueue[Any] = SimpleQueue()
    assert transport.start(line.call(b"A" * size), ends.put)
    line.there.sendall(CHUNKED)
    answer = ends.get(timeout=ENOUGH)()
    assert isinstance(answer, Answer)
    assert (answer.status, answer.body) == (429, b"no")
    assert (line.connection.socket is not None) is kept
    assert transport.start(line.call(b"B"), ends.put) is kept
    transport.close()
