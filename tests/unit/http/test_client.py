"""The client, the other end of its connections in the test's hands: what they carry, and when they carry no more."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from outfall.http import client
from outfall.http.client import ClientTransport, close_idle_connections
from outfall.http.options import HttpOptions
from outfall.http.transport import Call, ExchangeError, Fault, Response
from tests.one_each import one_each

CHUNKED = b"HTTP/1.1 429 Too Many\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
REFUSAL = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
BUSY = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nX-A: 1\r\nx-a:  2 \r\nContent-Length: 5\r\n\r\nhello"
HINTS = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
ACCEPTED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LARGE = 3_000_000
ENOUGH = 60.0
"""Seconds that nothing here takes."""


def small(info: Any) -> socket.socket:
    made = socket.socket(*info[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return made


class Line:
    """A client, and a server of bare sockets, which takes little before it is read."""

    def __init__(self) -> None:
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.server.bind(("127.0.0.1", 0))
        self.server.listen()
        self.server.settimeout(ENOUGH)
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}/x"
        self.there = socket.socket()
        self.ends: SimpleQueue[Response | ExchangeError] = SimpleQueue()
        self.set_up()

    def set_up(self, **options: Any) -> None:
        self.transport = ClientTransport(HttpOptions(url=self.url, **options))

    def send(self, body: bytes = b"x", *, repeatable: bool = False, seconds: float = ENOUGH) -> None:
        deadline = time.monotonic() + seconds
        call = Call("POST", self.url, body, (("X-A", "1"),), (), True, deadline, repeatable)
        assert self.transport.start(call, self.ends.put)

    def accept(self) -> None:
        """Take the next connection."""
        self.there.close()
        self.there, _ = self.server.accept()
        self.there.settimeout(ENOUGH)

    def read(self, end: bytes = b"x") -> bytes:
        """Read a request up to the end of its body."""
        received = bytearray()
        while not received.endswith(b"\r\n\r\n" + end) and not (len(end) > 1 and received.endswith(end)):
            piece = self.there.recv(1 << 18)
            if not piece:
                raise ConnectionResetError
            received += piece
        return bytes(received)

    def response(self) -> Response:
        end = self.ends.get(timeout=ENOUGH)
        assert isinstance(end, Response), end
        return end

    def fault(self) -> Fault:
        end = self.ends.get(timeout=ENOUGH)
        assert isinstance(end, ExchangeError), end
        return end.fault

    def is_kept(self) -> bool:
        """Whether the connection carries the next request."""
        self.send(b"next request")
        self.server.setblocking(False)
        self.there.settimeout(0.05)
        started = time.monotonic()
        kept = None
        while kept is None and time.monotonic() - started < ENOUGH:
            with suppress(OSError):
                self.read(b"next request")
                kept = True
            with suppress(BlockingIOError):
                self.accept()
                kept = False
        assert kept is not None
        return kept

    def close(self) -> None:
        self.transport.close()
        close_idle_connections()
        self.there.close()
        self.server.close()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(client, "_Connector", partial(client._Connector, socket_factory=small))
    close_idle_connections()
    made = Line()
    yield made
    made.close()


@pytest.mark.parametrize("early", [CHUNKED, BUSY])
@pytest.mark.parametrize(("size", "kept"), [(LARGE, False), (60_000, False), (10, True)])
def test_a_server_that_answers_before_it_has_the_body_is_sent_no_other_request_behind_it(
    line: Line, size: int, kept: bool, early: bytes
) -> None:
    """It would take the next request's bytes for the rest of this one's body."""
    line.send(b"A" * size)
    line.accept()
    line.there.sendall(early)
    response = line.response()
    assert (response.status, response.body) == (429, b"no" if early is CHUNKED else b"hello")
    if size == 10:
        line.read(b"A" * 10)
    assert line.is_kept() is kept


@pytest.mark.parametrize("half_closes", [True, False])
@pytest.mark.parametrize("before", [b"", HINTS])
def test_a_server_that_refuses_a_large_body_and_does_not_read_it_is_heard(
    line: Line, before: bytes, half_closes: bool
) -> None:
    started = time.monotonic()
    line.send(b"A" * LARGE)
    line.accept()
    line.there.sendall(before + REFUSAL)
    if half_closes:
        line.there.shutdown(socket.SHUT_WR)
    response = line.response()
    assert (response.status, response.body) == (413, b"no")
    received = 0
    with suppress(ConnectionResetError):
        while piece := line.there.recv(1 << 18):
            received += len(piece)
    assert received < LARGE, "the rest is not sent"
    assert not line.is_kept()
    assert time.monotonic() - started < ENOUGH / 2


@pytest.mark.parametrize("size", [LARGE, 60_000])
@pytest.mark.parametrize(("early", "late"), [(HINTS, ACCEPTED), (ACCEPTED, b""), (HINTS + ACCEPTED, b"")])
def test_a_server_that_hints_or_accepts_early_gets_the_whole_body(
    line: Line, early: bytes, late: bytes, size: int
) -> None:
    body = b"A" * size + b"the end"
    line.send(body)
    line.accept()
    line.there.sendall(early)
    time.sleep(0.05)
    received = line.read(b"the end")
    line.there.sendall(late)
    assert received.endswith(body)
    response = line.response()
    assert (response.status, response.body) == (200, b"ok")
    assert line.is_kept()


def test_a_server_that_stops_answering_and_reading_is_an_answer_lost(line: Line) -> None:
    line.send(b"A" * LARGE)
    line.accept()
    line.there.sendall(HINTS)
    line.there.shutdown(socket.SHUT_WR)
    assert line.fault() is Fault.LOST


@pytest.mark.parametrize(("says", "fault"), [(b"", Fault.LATE), (HINTS, Fault.LATE), (b"nonsense\r\n", Fault.LOST)])
def test_a_server_that_takes_nothing_is_left_in_time(line: Line, says: bytes, fault: Fault) -> None:
    line.set_up(read_timeout=0.05)
    line.send(b"A" * LARGE)
    line.accept()
    line.there.sendall(says)
    assert line.fault() is fault


def trickle(line: Line, data: bytes, over: threading.Event) -> None:
    with suppress(OSError):
        for byte in data:
            line.there.sendall(bytes([byte]))
            if over.wait(0.02):
                return


@pytest.mark.parametrize(("limit", "part"), one_each(["read_timeout", "deadline"], ["head", "interim responses"]))
def test_a_head_that_trickles_in_byte_by_byte_is_left_in_time(line: Line, limit: str, part: str) -> None:
    line.set_up(read_timeout=0.2 if limit == "read_timeout" else ENOUGH)
    started = time.monotonic()
    line.send(seconds=0.2 if limit == "deadline" else ENOUGH)
    line.accept()
    line.read()
    over = threading.Event()
    head = b"HTTP/1.1 200 OK\r\nX: " + b"y" * 5000 if part == "head" else HINTS * 100
    serving = threading.Thread(target=trickle, args=(line, head, over))
    serving.start()
    assert line.fault() is Fault.LATE
    over.set()
    serving.join()
    assert time.monotonic() - started < 20
    assert not line.is_kept()


def test_a_body_that_trickles_in_has_the_exchanges_bound_and_its_status_decides(line: Line) -> None:
    started = time.monotonic()
    line.send(seconds=0.2)
    line.accept()
    line.read()
    over = threading.Event()
    line.there.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n")
    serving = threading.Thread(target=trickle, args=(line, b"x" * 5000, over))
    serving.start()
    response = line.response()
    over.set()
    serving.join()
    assert (response.status, response.whole) == (503, False)
    assert set(response.body) == set(b"x")
    assert time.monotonic() - started < 20


def test_a_head_in_pieces_is_read_when_it_is_whole(line: Line) -> None:
    line.send()
    line.accept()
    line.read()
    for byte in BUSY[:-1]:
        line.there.sendall(bytes([byte]))
    time.sleep(0.05)
    assert line.ends.empty()
    line.there.sendall(BUSY[-1:])
    response = line.response()
    assert (response.status, response.body, response.whole) == (429, b"hello", True)
    assert (response.headers["retry-after"], response.headers["x-a"]) == ("7", "1, 2")


def test_interim_responses_are_skipped_and_the_connection_is_kept(line: Line) -> None:
    line.send()
    line.accept()
    for _ in range(2):
        line.read()
        line.there.sendall(HINTS + BUSY)
        response = line.response()
        assert (response.status, response.body, "link" in response.headers) == (429, b"hello", False)
        line.send()
    line.read()
    line.there.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
    assert line.response().status == 101
    assert not line.is_kept()


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        ACCEPTED + b" and more",
        b"nonsense\r\n\r\n",
        b"",
    ],
)
def test_what_is_no_response_is_a_response_lost(line: Line, said: bytes) -> None:
    line.send()
    line.accept()
    line.read()
    with suppress(OSError):
        line.there.sendall(said)
        line.there.shutdown(socket.SHUT_WR)
    assert line.fault() is Fault.LOST
    assert not line.is_kept()


@pytest.mark.parametrize(
    ("head", "body", "kept"),
    [
        ("HTTP/1.1 204 No Content", b"", True),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2", b"ok", True),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"2\r\nok\r\n0\r\n\r\n", True),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close", b"ok", False),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2", b"ok", False),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2", b"ok" + ACCEPTED, False),
        ("HTTP/1.1 204 No Content", ACCEPTED, False),
    ],
)
def test_when_a_connection_can_carry_another_request(line: Line, head: str, body: bytes, kept: bool) -> None:
    line.send()
    line.accept()
    line.read()
    line.there.sendall(head.encode() + b"\r\n\r\n" + body)
    response = line.response()
    assert (response.body, response.whole) == (b"" if "204" in head else b"ok", True)
    assert line.is_kept() is kept


STRAYS: dict[str, Callable[[Line], None]] = {
    "a response": lambda line: line.there.sendall(ACCEPTED),
    "an interim one": lambda line: line.there.sendall(HINTS),
    "its end": lambda line: line.there.shutdown(socket.SHUT_WR),
}


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("seen", [True, False])
def test_what_a_server_says_unasked_while_the_connection_is_idle_is_no_response_to_the_next_request(
    line: Line, stray: str, seen: bool
) -> None:
    line.send()
    line.accept()
    line.read()
    line.there.sendall(ACCEPTED)
    assert line.response().status == 200
    busy = threading.Event()
    if not seen:  # the loop has not come to read it when it takes the connection
        line.transport._network.soon(lambda: busy.wait(ENOUGH))
    STRAYS[stray](line)
    time.sleep(0.05)
    line.send(b"second request")
    busy.set()
    line.accept()  # another connection
    line.read(b"second request")
    line.there.sendall(REFUSAL)
    assert line.response().status == 413


def test_a_response_that_begins_while_the_connection_is_idle_is_none_to_the_next_request(line: Line) -> None:
    line.send()
    line.accept()
    line.read()
    line.there.sendall(ACCEPTED)
    assert line.response().status == 200
    line.there.sendall(ACCEPTED[:20])
    time.sleep(0.05)
    line.send(b"second request")
    time.sleep(0.05)
    with suppress(OSError):
        line.there.sendall(ACCEPTED[20:])
    line.server.settimeout(0.01)
    accepted = False
    while not accepted and line.ends.empty():
        with suppress(TimeoutError):
            line.accept()
            accepted = True
    if not accepted:  # it went out on the same connection, and the rest of a head is no head
        assert line.fault() is Fault.LOST
        return
    line.read(b"second request")
    line.there.sendall(REFUSAL)
    assert line.response().status == 413


def test_of_an_endless_body_only_the_beginning_is_kept(line: Line) -> None:
    line.set_up(max_response_bytes=10)
    line.send()
    line.accept()
    line.read()
    line.there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 16)
    response = line.response()
    assert (response.body, response.whole) == (b"x" * 10, False)
    assert not line.is_kept()


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_kept_connection_that_ends_in_the_moment_of_sending_is_replaced_where_that_is_allowed(
    line: Line, repeatable: bool
) -> None:
    line.send()
    line.accept()
    line.read()
    line.there.sendall(ACCEPTED)
    line.response()
    line.send(repeatable=repeatable)
    line.read()
    line.there.shutdown(socket.SHUT_WR)
    if not repeatable:
        assert line.fault() is Fault.LOST
        return
    line.accept()
    line.read()
    line.there.sendall(ACCEPTED)
    assert line.response().status == 200


def test_who_is_closed_sends_nothing_more_and_lets_nobody_wait(line: Line) -> None:
    line.send()
    line.accept()
    line.read()
    line.transport.close()
    assert line.fault() is Fault.LOST
    assert line.there.recv(10) == b""
    line.send()
    assert line.fault() is Fault.LOST
    line.server.settimeout(0.1)
    with pytest.raises(TimeoutError):
        line.server.accept()


def exchange(line: Line, body: bytes) -> int:
    line.set_up()
    line.send(body)
    line.accept()
    line.read(body)
    line.there.sendall(ACCEPTED)
    return line.response().status


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_forked_after_the_first_use_has_a_client_of_its_own(line: Line) -> None:
    assert exchange(line, b"of the parent") == 200
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            status = 0 if exchange(line, b"of the child") == 200 else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # The parent's connection was not touched.
    line.send(b"of the parent again")
    line.read(b"of the parent again")
    line.there.sendall(ACCEPTED)
    assert line.response().status == 200
