"""Connections of the direct way, their other end in the test's hands: what they carry, and when they carry no more."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from outfall.http.connection import Connection
from outfall.http.direct import DirectTransport
from outfall.http.options import HttpOptions
from outfall.http.templates import origin
from outfall.http.transport import Answer, Call, ExchangeError, Fault

CHUNKED = b"HTTP/1.1 429 Too Many\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
ENOUGH = 60.0
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


@pytest.mark.parametrize("early", [CHUNKED, b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\nno"])
@pytest.mark.parametrize(("size", "kept"), [(60_000, False), (10, True)])
def test_a_server_that_answers_before_it_has_the_body_is_sent_no_other_request_behind_it(
    line: Line, size: int, kept: bool, early: bytes
) -> None:
    """It would take the next request's bytes for the rest of this one's body."""
    transport = DirectTransport(HttpOptions(url=line.url))
    transport.give_back(line.place, line.connection)
    ends: SimpleQueue[Any] = SimpleQueue()
    assert transport.start(line.call(b"A" * size), ends.put)
    line.there.sendall(early)
    end = ends.get(timeout=ENOUGH)
    answer = end if isinstance(end, Answer) else end()
    assert (answer.status, answer.body) == (429, b"no")
    assert (line.connection.socket is not None) is kept
    assert transport.start(line.call(b"B"), ends.put) is kept
    transport.close()


REFUSAL = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
HINTS = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
ACCEPTED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BODY = b"A" * 3_000_000 + b"Z"


def exchange(line: Line) -> tuple[int, bytes, bool]:
    answer, again = line.connection.exchange(
        b"", BODY, method="POST", deadline=time.monotonic() + ENOUGH, longest=100
    )  # fmt: skip
    return answer.status, answer.body, again


@pytest.mark.parametrize("half_closes", [True, False])
@pytest.mark.parametrize("before", [b"", HINTS])
def test_a_server_that_refuses_a_large_body_and_does_not_read_it_is_heard(
    line: Line, before: bytes, half_closes: bool
) -> None:
    line.there.sendall(before + REFUSAL)
    if half_closes:
        line.there.shutdown(socket.SHUT_WR)
    started = time.monotonic()
    assert exchange(line) == (413, b"no", False)
    assert line.connection.socket is None
    assert time.monotonic() - started < ENOUGH / 2


@pytest.mark.parametrize("way", ["exchange", "start"])
@pytest.mark.parametrize(("early", "late"), [(HINTS, ACCEPTED), (ACCEPTED, b""), (HINTS + ACCEPTED, b"")])
def test_a_server_that_hints_or_accepts_early_gets_the_whole_body(
    line: Line, early: bytes, late: bytes, way: str
) -> None:
    received = bytearray()

    def serve() -> None:
        while not received.endswith(b"Z"):
            received.extend(line.there.recv(1 << 18))
        line.there.sendall(late)

    server = threading.Thread(target=serve)
    if way == "exchange":
        line.there.sendall(early)
        server.start()
        assert exchange(line) == (200, b"ok", True)
    else:
        transport = DirectTransport(HttpOptions(url=line.url))
        transport.give_back(line.place, line.connection)
        ends: SimpleQueue[Any] = SimpleQueue()
        assert transport.start(line.call(BODY[-60_000:]), ends.put)
        line.there.sendall(early)
        work = ends.get(timeout=ENOUGH)
        server.start()
        answer = work()
        assert (answer.status, answer.body) == (200, b"ok")
        assert line.connection.socket is not None
        transport.close()
    server.join()
    assert received.endswith(BODY[-60_000:])


def test_a_server_that_stops_answering_and_reading_is_an_answer_lost(line: Line) -> None:
    line.there.sendall(HINTS)
    line.there.shutdown(socket.SHUT_WR)
    with pytest.raises(ExchangeError) as caught:
        exchange(line)
    assert caught.value.fault is Fault.LOST


@pytest.mark.parametrize("says", [b"", HINTS, b"nonsense"])
def test_a_server_that_takes_nothing_is_left_in_time(line: Line, says: bytes) -> None:
    line.there.sendall(says)
    line.connection._read_timeout = 0.05
    with pytest.raises(ExchangeError) as caught:
        exchange(line)
    assert caught.value.fault is Fault.LATE
