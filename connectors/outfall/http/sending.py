"""The way out of a request, with an eye on what comes back meanwhile."""

from __future__ import annotations

import re
import select
import ssl
from collections.abc import Callable
from typing import Any

from outfall.http.response import LONGEST_HEAD

PIECE = 1 << 18
"""Bytes that are sent at a time."""
SWITCHING_PROTOCOLS = 101
_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class Sending:
    """Sends one request, and stops where the server refuses it before it has all of it (RFC 9112 §9.5).

    Such a server may take no more bytes: who only sends then waits in vain, and never hears that a body is too large.
    An early answer that accepts does not stop it, or what the server has accepted would be cut off.

    Args:
        socket: connected; non-blocking from here on.
        patience: gives the seconds for which the server may take nothing. It raises when there are none.
        begun: what has come of the answer before.
    """

    def __init__(self, socket: Any, patience: Callable[[], float], begun: bytes = b"") -> None:
        self.begun = bytearray(begun)
        """What has come of the answer."""
        self._socket = socket
        self._patience = patience
        self._refused = False
        self._watching = True
        self._judge()
        socket.setblocking(False)

    def send(self, data: bytes) -> bool:
        """Send bytes, and return whether all of them went out; if not, an answer has begun that refuses.

        Raises:
            TimeoutError: the server takes nothing.
            OSError: the connection broke.
        """
        view = memoryview(data)
        while view and not self._refused:
            try:
                view = view[self._socket.send(view[:PIECE]) :]
                continue
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT | (select.POLLIN if self._watching else 0))
            self._look()
        return not view

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(self._patience() * 1000):
            raise TimeoutError

    def _look(self) -> None:
        while self._watching:
            try:
                data = self._socket.recv(PIECE)
            except _WAIT:
                return
            if not data:
                raise ConnectionResetError
            self.begun += data
            self._judge()

    def _judge(self) -> None:
        status = _final_status(self.begun)
        self._refused = status is not None and not 200 <= status < 300
        self._watching = status is None and len(self.begun) <= LONGEST_HEAD


def _final_status(begun: bytes | bytearray) -> int | None:
    """Return the status behind all interim answers (RFC 9110 §15.2), if it is there."""
    at = 0
    while (found := _STATUS.match(begun, at)) is not None:
        status = int(found[1])
        if status >= 200 or status == SWITCHING_PROTOCOLS:
            return status
        end = begun.find(b"\r\n\r\n", at)
        if end < 0:
            return None
        at = end + 4
    return None
