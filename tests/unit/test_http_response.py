"""The reader of common answers gives what `http.client` would give, however the bytes arrive."""

from __future__ import annotations

import http.client
import io
import itertools
import socket
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.http.connection import Connection
from outfall.http.response import Read, ResponseReader, Unusual

ANSWER = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nX-A: 1\r\nx-a:  2 \r\nContent-Length: 5\r\n\r\nhello"


class Wire:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def read(pieces: list[bytes], longest: int = 100) -> Read | None:
    reader = ResponseReader(longest)
    for piece in pieces:
        found = reader.take(piece)
        if found is not None:
            return found
    return None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, len(ANSWER)), max_size=8))
def test_an_answer_in_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(ANSWER)]
    found = read([ANSWER[a:b] for a, b in itertools.pairwise(places)])
    wanted = http.client.HTTPResponse(Wire(ANSWER))  # type: ignore[arg-type]
    wanted.begin()
    assert found is not None
    assert (found.answer.status, found.answer.body) == (wanted.status, wanted.read())
    assert found.answer.headers["retry-after"] == wanted.headers["Retry-After"]
    assert found.answer.headers["x-a"] == "1, 2"
    assert found.again


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_garbage_is_never_an_answer_and_never_an_error(data: bytes) -> None:
    reader = ResponseReader(10)
    try:
        assert reader.take(data) is None or data.startswith(b"HTTP/1.")
    except Unusual:
        return


def test_interim_answers_are_skipped_and_the_connection_is_kept() -> None:
    hints = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    )
    with pytest.raises(Unusual):
        read([hints + ANSWER])
    here, there = socket.socketpair()
    connection = Connection(("http", "x", 80), None, connect_timeout=30, read_timeout=30)
    connection.socket = here
    with here, there:
        for _ in range(2):
            there.sendall(hints + ANSWER)
            answer, again = connection.exchange(b"", b"", method="POST", deadline=time.monotonic() + 30, longest=100)
            assert (answer.status, answer.body, again) == (429, b"hello", True)
            assert "link" not in answer.headers
        answer, again = connection.read_on(
            hints + ANSWER, b"", method="POST", deadline=time.monotonic() + 30, longest=100
        )
        assert (answer.status, answer.body, again) == (429, b"hello", True)
        there.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
        answer, again = connection.exchange(b"", b"", method="POST", deadline=time.monotonic() + 30, longest=100)
        assert answer.status == 101


def test_an_answer_is_not_whole_before_its_last_byte() -> None:
    assert read([ANSWER[:-1]]) is None


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked",
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 1",
        "HTTP/1.1 200 OK\r\nContent-Length: -1",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n folded",
        "HTTP/1.1 100 Continue",
        "HTTP/2 200",
        "nonsense",
    ],
)
def test_other_kinds_of_answers_are_left_to_another_reader(head: str) -> None:
    with pytest.raises(Unusual):
        read([head.encode() + b"\r\n\r\n"])


def test_a_head_without_end_is_left_to_another_reader() -> None:
    with pytest.raises(Unusual):
        read([b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 70_000])


@pytest.mark.parametrize(
    ("head", "body", "again"),
    [
        ("HTTP/1.1 204 No Content", b"", True),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2", b"ok", True),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close", b"ok", False),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2", b"ok", False),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2", b"ok and more", False),
    ],
)
def test_when_a_connection_can_carry_another_request(head: str, body: bytes, again: bool) -> None:
    found = read([head.encode() + b"\r\n\r\n" + body])
    assert found is not None
    assert found.again is again


def test_of_an_endless_body_only_the_beginning_is_kept() -> None:
    found: Any = read([b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x" * 8, b"x" * 8], longest=10)
    assert (found.answer.body, found.answer.whole, found.again) == (b"x" * 10, False, False)
