"""Reads what a server answers within bounds: of bytes, time, depth, and of the pause that it requests."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

from urllib3 import PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from outfall.errors import TransientError
from outfall.serde import parse_json

P = TypeVar("P", bound=PoolManager)

LARGEST = 64 << 20
"""Bytes: no API that a sink uses responds with more."""
_PIECE = 1 << 16


class Body(NamedTuple):
    """A response body."""

    data: bytes
    """Its beginning, if it is incomplete."""
    lacks: str | None
    """Why it is incomplete; `None` if it is complete."""
    too_long: bool = False
    """Whether only the limit of bytes makes it incomplete."""


def read_body(
    response: Any,
    *,
    most: int,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
    decode: bool = True,
) -> Body:
    """Read the body of a response of urllib3.

    A body that arrives byte by byte does not extend the deadline, as it does each read with a timeout of its own.

    Args:
        response: a `urllib3.response.BaseHTTPResponse` whose content is not preloaded, or what an adapter has in its
            place. Its connection is used again if the body is complete.
        most: maximum number of bytes.
        deadline: the end of the read, on the clock.
        clock: returns seconds.
        decode: whether the body is decoded by its `Content-Encoding`.
    """
    pieces: list[bytes] = []
    size, lacks = 0, None
    try:
        for piece in _pieces(response, decode):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                lacks = f"it is longer than {most} bytes"
            elif clock() > deadline:
                lacks = "it did not end in time"
            if lacks is not None:
                break
    except (HTTPError, OSError) as error:
        lacks = f"the connection broke ({type(error).__name__})"
    if lacks is not None:
        response.close()
    elif isinstance(response, BaseHTTPResponse):
        response.release_conn()
    return Body(b"".join(pieces)[:most], lacks, size > most)


def _pieces(response: Any, decode: bool) -> Iterator[bytes]:
    """Return what has arrived, piece by piece."""
    if isinstance(response, BaseHTTPResponse):
        while piece := response.read1(_PIECE, decode_content=decode):
            yield piece
    elif hasattr(response, "stream"):  # of adapters and stubs
        yield from response.stream()
    else:
        while piece := response.read(_PIECE):
            yield piece


def parsed_object(body: Body, what: str, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the JSON object of a response.

    Args:
        body: the response body.
        what: the response, as an error names it.
        hide: masks secrets in the text that the error shows.

    Raises:
        TransientError: it is incomplete, no JSON object, or nested too deeply. What the server did is unknown.
    """
    why = body.lacks
    if why is None:
        try:
            found = parse_json(body.data)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        why = "it is not a JSON object that can be read"
    raise unreadable(what, f"{why}: it begins with {hide(body.data[:_SHOWN].decode(errors='replace'))!r}")


_SHOWN = 200


def unreadable(what: str, why: str) -> TransientError:
    """Return the error for a response whose content is not that of the API."""
    return TransientError(
        f"{what} cannot be read",
        why=why,
        do="try again; if it persists, check that the url leads to the service, and what stands in between",
    )


@contextmanager
def head_within(connection: Any, seconds: float | None) -> Iterator[None]:
    """End the wait for the head of a response in time, also if it arrives byte by byte.

    Args:
        connection: an `http.client.HTTPConnection`.
        seconds: maximum time; `None` for no limit.
    """
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, _shut_down, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(connection: Any) -> None:
    with suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


class _HttpConnection(HTTPConnection):
    def getresponse(self) -> Any:
        with head_within(self, self.timeout):
            return super().getresponse()


class _HttpsConnection(HTTPSConnection):
    def getresponse(self) -> Any:
        with head_within(self, self.timeout):
            return super().getresponse()


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


def bounded_heads(manager: P) -> P:
    """Let the connections of a new pool manager, or proxy manager, end a head that arrives byte by byte."""
    manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
    return manager


def retry_after(
    value: str | None, *, longest: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> float | None:
    """Return the seconds, from 0 to `longest`, that the header `Retry-After` requests as a number or a date.

    Returns `None` if the header is invalid or negative, or missing (a `value` of `None`).
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return min(float(text), longest)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return min(max((date - now()).total_seconds(), 0.0), longest)
