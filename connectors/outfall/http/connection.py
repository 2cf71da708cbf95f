"""One connection: prepared bytes out, an answer back, before a deadline.

Connecting and TLS are urllib3's, reading the answer is `http.client`'s. What `requests` and urllib3 do between them
costs two to eight times as much as these two together, and with 64 requests in flight that bounds what a process
can send.
"""

from __future__ import annotations

import errno
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from outfall.http.sending import PIECE, SWITCHING_PROTOCOLS, Sending
from outfall.http.transport import Answer, ExchangeError, Fault


class Connection:
    """A connection to one origin. Used by one thread at a time.

    Args:
        origin: scheme, host and port.
        tls: used with https.
        connect_timeout: seconds.
        read_timeout: seconds for which the server may be silent.
    """

    def __init__(
        self,
        origin: tuple[str, str, int],
        tls: ssl.SSLContext | None,
        *,
        connect_timeout: float,
        read_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._clock = clock
        self.socket: Any = None
        """`None` until it is connected."""
        self._deadline = 0.0

    def exchange(self, head: bytes, body: bytes, *, method: str, deadline: float, longest: int) -> tuple[Answer, bool]:
        """Send one request and read its answer.

        Args:
            head: request line and headers with the empty line after them.
            body: what follows.
            method: for the rule which answers have no body.
            deadline: when all must be over.
            longest: how much of the body is read.

        Returns:
            The answer, and whether the connection can carry another request.

        Raises:
            ExchangeError: there is no answer; the connection is closed.
        """
        self._deadline = deadline
        try:
            if self.socket is None:
                self._connect()
            return self._exchange(head, body, method, longest)
        except BaseException:
            self.close()
            raise

    def read_on(self, begun: bytes, left: bytes, *, method: str, deadline: float, longest: int) -> tuple[Answer, bool]:
        """Read an answer that has begun before somebody else had sent the whole request. As `exchange`.

        Args:
            begun: what has come of it.
            left: what is to be sent yet. If the answer is a refusal it is not, and the connection ends: the server
                would take the next request for the rest of this one.
            method: see there, as for what follows.
            deadline: see there.
            longest: see there.
        """
        self._deadline = deadline
        try:
            return self._exchange(left, b"", method, longest, begun)
        except BaseException:
            self.close()
            raise

    def stale(self) -> bool:
        """Whether the server has closed the connection, or says something unasked, while it was idle."""
        if self.socket is None:
            return False
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close it. May be called again."""
        if self.socket is not None:
            with suppress(OSError):
                self.socket.close()
            self.socket = None

    def _connect(self) -> None:
        scheme, host, port = self.origin
        timeout = min(self._connect_timeout, self._left())
        made: HTTPConnection
        if scheme == "https":
            context = self._tls
            verify = context is None or context.verify_mode != ssl.CERT_NONE
            made = HTTPSConnection(
                host,
                port,
                timeout=timeout,
                ssl_context=context,
                cert_reqs="CERT_REQUIRED" if verify else "CERT_NONE",
                assert_hostname=None if verify else False,
            )
        else:
            made = HTTPConnection(host, port, timeout=timeout)
        try:
            made.connect()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            made.close()
            raise ExchangeError(*explained(error, f"{host}:{port}")) from error
        self.socket = made.sock

    def _exchange(self, head: bytes, body: bytes, method: str, longest: int, begun: bytes = b"") -> tuple[Answer, bool]:
        sending = Sending(self.socket, lambda: min(self._read_timeout, self._left()), begun)
        together = len(body) <= PIECE
        try:
            sent = sending.send(head + body if together else head) and (together or sending.send(body))
        except TimeoutError as error:
            raise ExchangeError(Fault.LATE, "the server did not take the request") from error
        except OSError as error:
            # A server that refuses a large body answers and closes before it has read all.
            return self._answer(method, longest, bytes(sending.begun), broken=error)
        return self._answer(method, longest, bytes(sending.begun), sent=sent)

    def _answer(
        self, method: str, longest: int, begun: bytes, *, sent: bool = False, broken: OSError | None = None
    ) -> tuple[Answer, bool]:
        response = _Response(_Timed(self, begun), method=method)  # type: ignore[arg-type]
        try:
            response.begin()
        except (OSError, http.client.HTTPException) as error:
            response.close()
            raise self._lost(broken or error) from error
        try:
            content = response.read(longest + 1)
            whole = len(content) <= longest
            again = whole and sent and not response.will_close and response.isclosed()
        except (OSError, http.client.HTTPException) as error:
            content = error.partial if isinstance(error, http.client.IncompleteRead) else b""
            whole = again = False
        response.close()
        if not again:
            self.close()
        return Answer(response.status, _joined(response.headers), content[:longest], whole), again

    def _lost(self, error: Exception) -> ExchangeError:
        if isinstance(error, TimeoutError):
            return ExchangeError(Fault.LATE, "the server was silent, or sent its answer too slowly")
        return ExchangeError(Fault.LOST, f"the connection broke ({type(error).__name__})")

    def _left(self) -> float:
        left = self._deadline - self._clock()
        if left <= 0:
            raise ExchangeError(Fault.LATE, "the time for one request is over")
        return left

    def receive_into(self, buffer: Any) -> int:
        """Read what has come, for at most the time that is left: a server that sends a byte now and then gains none."""
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError("the time for one request is over")
        self.socket.settimeout(min(self._read_timeout, left))
        return int(self.socket.recv_into(buffer))


class _Response(http.client.HTTPResponse):
    """Skips every interim answer (RFC 9110 §15.2), such as 103; `http.client` skips 100 alone.

    Not 101, which is final: after it the server speaks another protocol, which nobody has asked for.
    """

    def begin(self) -> None:
        super().begin()
        while SWITCHING_PROTOCOLS < self.status < 200:
            self.headers = None  # type: ignore[assignment] # so that it begins anew
            super().begin()


class _Timed(io.RawIOBase):
    """What `HTTPResponse` takes for a socket: its reads know the request's deadline."""

    def __init__(self, connection: Connection, begun: bytes) -> None:
        self._connection = connection
        self._begun = begun

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, 16384)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._begun:
            size = min(len(buffer), len(self._begun))
            buffer[:size], self._begun = self._begun[:size], self._begun[size:]
            return size
        return self._connection.receive_into(buffer)


def explained(error: BaseException, place: str) -> tuple[Fault, str]:
    """Tell what an error on connecting means: whether it will pass.

    An unknown host name and a certificate that is not trusted will not; a name server that does not answer may.
    """
    causes = causes_of(error)
    if any(isinstance(cause, urllib3.exceptions.ProxyError) for cause in causes):
        place = f"the proxy on the way to {place}"
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Fault.CONFIGURATION, f"the certificate of {place} is not trusted: {cause.verify_message}"
        if isinstance(cause, socket.gaierror):
            unknown = cause.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
            fault = Fault.CONFIGURATION if unknown else Fault.NOT_SENT
            return fault, f"the name of {place} cannot be resolved: {cause.strerror}"
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        reasons = [cause.reason for cause in causes if isinstance(cause, ssl.SSLError)]
        never = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"}
        fault = Fault.CONFIGURATION if never & set(reasons) else Fault.NOT_SENT
        return fault, f"{place} does not speak TLS as we do: {reasons[0] or 'unknown reason'}"
    codes = [cause.errno for cause in causes if isinstance(cause, OSError) and cause.errno is not None]
    if codes:
        return Fault.NOT_SENT, f"{place} cannot be reached ({errno.errorcode.get(codes[0], codes[0])})"
    if any(isinstance(cause, TimeoutError | urllib3.exceptions.ConnectTimeoutError) for cause in causes):
        return Fault.NOT_SENT, f"{place} does not accept a connection in time"
    # `http.client` says so, and in no other way, what a proxy answered that opens no tunnel.
    told = next((str(cause) for cause in causes if type(cause) is OSError), type(error).__name__)
    return Fault.NOT_SENT, f"{place} cannot be reached ({told})"


def causes_of(error: BaseException) -> list[BaseException]:
    """The error and all that lies behind it: urllib3 and requests wrap what happened, each in its own way."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        cause = waiting.pop(0)
        if isinstance(cause, BaseException) and cause not in found:
            found.append(cause)
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
    return found


def _joined(headers: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
