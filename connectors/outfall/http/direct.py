"""The fast way: prepared bytes on connections of our own. No proxy, no auth object, no session."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from outfall.http.connection import Connection
from outfall.http.options import HttpOptions
from outfall.http.pool import IdleConnections
from outfall.http.reactor import AVAILABLE, Reactor
from outfall.http.response import Read
from outfall.http.templates import origin
from outfall.http.tls import tls_context, trusted
from outfall.http.transport import Answer, Call, ExchangeError, Fault, Headers

Place = tuple[str, str, int]
"""Scheme, host and port."""
Work = Callable[[], Answer]
"""Something that may block. Raises `ExchangeError`."""

_SMALL = 1 << 16
"""Bytes of a body that a socket mostly takes at once."""
_IDLE_PER_ORIGIN = 256
_idle = IdleConnections(_IDLE_PER_ORIGIN)


class DirectTransport:
    """Sends over connections that the process keeps from one epoch to the next.

    Args:
        options: timeouts, TLS, bounds.

    Raises:
        ConfigurationError: certificates cannot be read here.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._connect_timeout = options.connect_timeout.total_seconds()
        self._read_timeout = options.read_timeout.total_seconds()
        self._longest = int(options.max_response_bytes)
        self._tls = None if options.url.startswith("http:") else tls_context(options)
        self._lock = threading.Lock()
        self._reactor: Reactor | None = None
        # Connections are shared only by sinks that trust and authenticate alike.
        identity = (options.verify, trusted(options), options.client_certificate, options.client_key)
        timeouts = (self._connect_timeout, self._read_timeout)
        self._identity = hashlib.sha256(repr((identity, timeouts)).encode()).digest()

    def exchange(self, call: Call) -> Answer:
        place, target, host = _parsed(call.url)
        head = _head(call, target, host)
        connection = _idle.take((self._identity, place))
        if connection is not None:
            try:
                return self._exchange(connection, place, head, call)
            except ExchangeError as error:
                # The server closed it in the moment in which we sent. Whether it had read the request nobody knows.
                if error.fault is not Fault.LOST or not call.repeatable:
                    raise
        return self._exchange(self._connection(place), place, head, call)

    def start(self, call: Call, done: Callable[[Answer | ExchangeError | Work], None]) -> bool:
        """Send a request without waiting for its answer, if that can be done without blocking.

        Args:
            call: the request.
            done: is told the answer, or why there is none, or what has to be done in a thread that may block to get
                one of these. Called once, by another thread, and must not block.

        Returns:
            Whether it was sent. If not, `exchange` is the way.
        """
        if not AVAILABLE or len(call.body) > _SMALL:
            return False
        place, target, host = _parsed(call.url)
        connection = _idle.take((self._identity, place))
        if connection is None:
            return False
        if self._reactor is None:
            self._reactor = Reactor(self._read_timeout, self._longest)
        ending = _Ending(self, connection, place, call, done)
        self._reactor.start(connection, _head(call, target, host) + call.body, ending, call.deadline)
        return True

    def close(self) -> None:
        """End what is under way. The process keeps idle connections, within bounds, for the next epoch."""
        if self._reactor is not None:
            self._reactor.close()

    def give_back(self, place: Place, connection: Connection) -> None:
        """Keep a connection for the next request."""
        _idle.give_back((self._identity, place), connection)

    def read_on(self, place: Place, connection: Connection, begun: bytes, left: bytes, call: Call) -> Answer:
        """Read an answer on that has begun, and send what is left of the request if the server wants it; may block."""
        answer, again = connection.read_on(
            begun, left, method=call.method, deadline=call.deadline, longest=self._longest
        )
        if again:
            self.give_back(place, connection)
        return answer

    def _exchange(self, connection: Connection, place: Place, head: bytes, call: Call) -> Answer:
        answer, again = connection.exchange(
            head, call.body, method=call.method, deadline=call.deadline, longest=self._longest
        )
        if again:
            self.give_back(place, connection)
        return answer

    def _connection(self, place: Place) -> Connection:
        with self._lock:
            if self._tls is None and place[0] == "https":
                self._tls = tls_context(self._options)
        return Connection(place, self._tls, connect_timeout=self._connect_timeout, read_timeout=self._read_timeout)


class _Ending:
    """What the end of a request in the reactor means for its connection and its caller."""

    def __init__(
        self,
        transport: DirectTransport,
        connection: Connection,
        place: Place,
        call: Call,
        done: Callable[[Answer | ExchangeError | Work], None],
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._place = place
        self._call = call
        self._done = done

    def answered(self, read: Read) -> None:
        if read.again:
            self._transport.give_back(self._place, self._connection)
        else:
            self._connection.close()
        self._done(read.answer)

    def unusual(self, begun: bytes, left: bytes) -> None:
        self._done(lambda: self._transport.read_on(self._place, self._connection, begun, left, self._call))

    def failed(self, error: ExchangeError) -> None:
        # The server may have closed the connection in the moment in which we sent.
        repeats = error.fault is Fault.LOST and self._call.repeatable
        self._done((lambda: self._transport.exchange(self._call)) if repeats else error)


def close_idle_connections() -> None:
    """Close the connections that this process keeps for later requests."""
    _idle.close()


@lru_cache(maxsize=256)
def _parsed(url: str) -> tuple[Place, str, str]:
    """Return origin, request target and the value of `Host` (RFC 9112 §3.2)."""
    split = urlsplit(url)
    place = origin(url)
    target = (split.path or "/") + (f"?{split.query}" if split.query else "")
    host = f"[{place[1]}]" if ":" in place[1] else place[1]
    default = 443 if place[0] == "https" else 80
    return place, target, host if place[2] == default else f"{host}:{place[2]}"


@lru_cache(maxsize=64)
def _lines(headers: Headers) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


def _head(call: Call, target: str, host: str) -> bytes:
    start = f"{call.method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(call.body)}\r\n"
    key = "".join(f"{name}: {value}\r\n" for name, value in call.key)
    return b"%b%b\r\n" % (f"{start}{key}".encode("ascii"), _lines(call.headers))
