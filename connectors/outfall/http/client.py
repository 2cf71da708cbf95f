"""The HTTP client: concurrent requests on one event loop, with aiohttp.

The loop, its thread and its connections belong to the process. They are created when the process first sends, so never
before a fork, and are kept across epochs.

A response belongs to a request only if it arrived after the request. If a server sends unsolicited data on a
connection, the connection is closed and carries no further request.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from outfall.http.connecting import tls_context, translated, trusted
from outfall.http.options import HttpOptions
from outfall.http.session import SessionTransport
from outfall.http.templates import origin
from outfall.http.transport import Call, ExchangeError, Fault, Headers, Response, Transport

T = TypeVar("T")
Done = Callable[[Response | ExchangeError], None]

_IDLE_SECONDS = 50.0
"""Servers and load balancers close connections after about a minute of silence; the client closes them earlier."""
_LONGEST_LINE = 1 << 16
_SWITCHING_PROTOCOLS = 101
_PIECE = 1 << 16
"""Bytes of a body that are sent at a time. A smaller body is sent with the head."""
_LONGEST_SLEEP = 0.25
"""Maximum delay in seconds before a timeout is noticed."""


class ClientTransport(Transport):
    """Sends over connections that the process keeps across epochs.

    Each exchange has a total timeout and a timeout for the server's silence. A head that arrives byte by byte counts as
    silence. Raises `ConfigurationError` if certificates cannot be read here.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._silence = options.read_timeout.total_seconds()
        self._longest = int(options.max_response_bytes)
        self._network = _network()
        self._session = self._network.session(options)
        self._latin: Transport = SessionTransport(options)
        """For headers that aiohttp would encode differently."""
        self._flights: dict[_Flight, asyncio.Task[None]] = {}
        self._watching = False
        self._closed = False

    def exchange(self, call: Call) -> Response:
        if not _is_plain(call.headers):
            return self._latin.exchange(call)
        ends: SimpleQueue[Response | ExchangeError] = SimpleQueue()
        self.start(call, ends.put)
        end = ends.get()
        if isinstance(end, ExchangeError):
            raise end
        return end

    def start(self, call: Call, done: Done) -> bool:
        if not _is_plain(call.headers):
            return False
        self._network.soon(lambda: self._begin(call, done))
        return True

    def close(self) -> None:
        """Cancel requests in flight: after the return nothing more is sent. The process keeps idle connections."""
        self._network.run(self._end())
        self._latin.close()

    # The methods below run in the thread of the event loop.

    def _begin(self, call: Call, done: Done) -> None:
        flight = _Flight(call, done, self._silence)
        if self._closed:
            flight.end(_closed())
            return
        self._flights[flight] = asyncio.create_task(self._carry(flight))
        self._watch_later()

    def _watch_later(self) -> None:
        if self._flights and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(_LONGEST_SLEEP, self._watch)

    def _watch(self) -> None:
        """Cancel expired requests. One timer serves all: one per request would cost a fifth of the request's time."""
        now = asyncio.get_running_loop().time()
        for flight, task in self._flights.items():
            if flight.is_over(now):
                flight.expired = True
                task.cancel()
            elif flight.transport is not None and flight.transport.is_closing():
                # The server has closed its side, and asyncio waits for it to accept the rest of the request.
                flight.transport.abort()
        self._watching = False
        self._watch_later()

    async def _end(self) -> None:
        self._closed = True
        flights, self._flights = self._flights, {}
        for task in flights.values():
            task.cancel()
        if flights:
            await asyncio.wait(flights.values())
        for flight in flights:
            flight.end(_closed())

    async def _carry(self, flight: _Flight) -> None:
        try:
            flight.end(await self._exchange(flight))
        except ExchangeError as error:
            flight.end(error)
        finally:
            self._flights.pop(flight, None)

    async def _exchange(self, flight: _Flight) -> Response:
        try:
            return await self._try(flight)
        except ExchangeError as error:
            # The server closed the connection while the request was sent. It may or may not have read the request.
            if error.fault is not Fault.LOST or not flight.reused or not flight.call.repeatable:
                raise
        return await self._try(flight)

    async def _try(self, flight: _Flight) -> Response:
        _flight.set(flight)
        flight.begin()
        try:
            return await self._talk(flight)
        except (asyncio.CancelledError, TimeoutError) as error:
            if isinstance(error, asyncio.CancelledError) and not flight.expired:
                raise
            if flight.transport is None:
                raise ExchangeError(Fault.NOT_SENT, "the server does not accept a connection in time") from error
            raise ExchangeError(Fault.LATE, "the server was silent, or too slow") from error
        except aiohttp.ClientConnectorError as error:
            _, host, port = origin(flight.call.url)
            raise ExchangeError(*translated(error.__cause__ or error, f"{host}:{port}")) from error
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise ExchangeError(Fault.CONFIGURATION, "its URL redirects to no host") from error
        except Exception as error:
            raise ExchangeError(Fault.LOST, f"the connection broke ({type(error).__name__})") from error

    async def _talk(self, flight: _Flight) -> Response:
        call = flight.call
        upload = _Upload(call.body, flight) if len(call.body) > _PIECE else None
        headers = _multidict(call.headers)
        if call.key:
            headers = CIMultiDict(headers)
            headers.extend(call.key)
        try:
            response = await self._session.request(
                call.method, _parsed(call.url), data=upload or call.body, headers=headers, allow_redirects=False
            )
        except BaseException:
            if upload is not None:
                upload.goes_on.set_result(False)
            raise
        accepted = 200 <= response.status < 300
        if upload is not None:
            upload.goes_on.set_result(accepted)
        body, whole = await self._body(response, flight)
        if upload is not None and accepted and not await upload.sent:
            raise ExchangeError(Fault.LOST, "the connection broke before the request was sent completely")
        return Response(response.status, _joined(response.headers), body[: self._longest], whole)

    async def _body(self, response: aiohttp.ClientResponse, flight: _Flight) -> tuple[bytes, bool]:
        """Read the body up to the limit; return whether it is complete. Only then does aiohttp keep the connection."""
        body = b""
        try:
            while len(body) <= self._longest and response.status != _SWITCHING_PROTOCOLS:
                flight.touch()
                piece = await response.content.readany()
                if not piece:
                    return body, True
                body = body + piece if body else piece
        except (aiohttp.ClientError, OSError, asyncio.CancelledError) as error:
            # The status has arrived, and it determines the outcome.
            if isinstance(error, asyncio.CancelledError) and not flight.expired:
                raise
        response.close()
        return body, False


def _closed() -> ExchangeError:
    return ExchangeError(Fault.LOST, "its writer is closed")


class _Flight:
    """One request in flight."""

    __slots__ = ("_active_at", "_done", "_silence", "call", "expired", "reused", "transport")

    def __init__(self, call: Call, done: Done, silence: float) -> None:
        self.call = call
        self._done: Done | None = done
        self.expired = False
        """Whether it was canceled because it took too long."""
        self._silence = silence
        self.begin()

    def begin(self) -> None:
        """Start an attempt. The connector sets the connection of the flight."""
        self.transport: asyncio.Transport | None = None
        """The transport; `None` until there is a connection."""
        self.reused = False
        """Whether the connection has carried another request before."""
        self.touch()

    def end(self, end: Response | ExchangeError) -> None:
        """Report the result, once. The connection keeps the flight that opened it, and needs no body any more."""
        done, self._done = self._done, None
        self.call = self.call._replace(body=b"")
        if done is not None:
            done(end)

    def touch(self) -> None:
        """Record that the server has sent or accepted data."""
        self._active_at = asyncio.get_running_loop().time()

    def is_over(self, now: float) -> bool:
        """Whether its time is over; returns true only once."""
        return not self.expired and now >= min(self.call.deadline, self._active_at + self._silence)


_flight: ContextVar[_Flight] = ContextVar("_flight")
"""The flight of the running task: aiohttp requests a connection without a reference to the request."""


class _Connector(aiohttp.TCPConnector):
    """Provides no idle connection that the server has closed, or that has unsolicited data."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._used: WeakSet[Any] = WeakSet()

    async def connect(self, *request: Any, **more: Any) -> Any:
        flight = _flight.get()
        while True:
            connection: Any = await super().connect(*request, **more)
            flight.reused = connection.protocol in self._used
            if flight.reused and (connection.protocol.should_close or _is_busy(connection.transport)):
                connection.close()
                continue
            self._used.add(connection.protocol)
            flight.transport = connection.transport
            return connection


def _is_busy(transport: asyncio.Transport) -> bool:
    """Whether there is unread data, or the previous request was not sent completely.

    In the second case the server has rejected that request. It may accept no more bytes, or read the next request as
    the rest of it.
    """
    if transport.get_write_buffer_size():
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


class _Upload(aiohttp.Payload):
    """A large body, sent in pieces.

    When a response arrives, even a successful one, aiohttp stops the upload. This class stops it only for an error
    response: a server may send one before it has read the body, and accept no more bytes (RFC 9112 §9.5). The
    connection is then closed. After a successful response the upload continues, because otherwise the accepted body
    would be truncated.
    """

    def __init__(self, body: bytes, flight: _Flight) -> None:
        super().__init__(body)
        self._size = len(body)
        self._flight = flight
        loop = asyncio.get_running_loop()
        self.goes_on: asyncio.Future[bool] = loop.create_future()
        """Whether the response, which has arrived, is successful."""
        self.sent: asyncio.Future[bool] = loop.create_future()
        """Whether the body was sent completely."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a body is bytes")

    async def write(self, writer: Any) -> None:
        body = memoryview(self._value)
        whole = False
        try:
            for start in range(0, len(body), _PIECE):
                await self._write(writer, body[start : start + _PIECE])
            whole = True
        finally:
            self.sent.set_result(whole)

    async def _write(self, writer: Any, piece: memoryview) -> None:
        try:
            await writer.write(piece)
            # Before more is sent, the loop checks for a response.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # Once the writer has a piece, the piece is sent, even if the wait is canceled.
            if not await self.goes_on:
                raise
        self._flight.touch()


class _Network:
    """The event loop of one process, in its own thread, and the sessions with their connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._jobs: deque[Callable[[], Any]] = deque()
        self._woken = False

    @classmethod
    def start(cls) -> _Network:
        """Run a loop in a new thread."""
        loop = Context().run(asyncio.new_event_loop)
        threading.Thread(target=loop.run_forever, name="outfall-http", daemon=True).start()
        return cls(loop)

    def soon(self, job: Callable[[], Any]) -> None:
        """Schedule a job in the loop. Waking the loop costs a system call, so many jobs share one.

        It does not run in the caller's context, which a connection would keep, and with it the partition.
        """
        self._jobs.append(job)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._work, context=Context())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a job in the loop, and wait for it."""
        return Context().run(asyncio.run_coroutine_threadsafe, work, self.loop).result()

    def session(self, options: HttpOptions) -> aiohttp.ClientSession:
        """Return the session that sinks with the same trust and authentication share.

        Raises `ConfigurationError` if certificates cannot be read here.
        """
        files = (trusted(options), options.client_certificate, options.client_key)
        identity = repr((options.verify, options.connect_timeout, [_version(file) for file in files]))
        with self._lock:
            found = self._sessions.get(identity)
            if found is None:
                found = self._sessions[identity] = self.run(_open(options))
            return found

    def close_sessions(self) -> None:
        """Close all connections."""
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            self.run(session.close())

    def _work(self) -> None:
        self._woken = False
        while self._jobs:
            self._jobs.popleft()()


async def _open(options: HttpOptions) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(
            limit=0,
            keepalive_timeout=_IDLE_SECONDS,
            ssl=tls_context(options),
            resolver=aiohttp.ThreadedResolver(),  # Python's resolver, even if others are installed
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Content-Type", "User-Agent"),
        timeout=aiohttp.ClientTimeout(total=None, connect=options.connect_timeout.total_seconds()),
        max_line_size=_LONGEST_LINE,
        max_field_size=_LONGEST_LINE,
    )


def _version(file: str | None) -> tuple[str, int] | None:
    """Identify a file and its content: a renewed file creates another client."""
    if file is None:
        return None
    try:
        return file, os.stat(file).st_mtime_ns
    except OSError:
        return file, 0


_networks: dict[int, _Network] = {}
"""By process. After a fork, the copy is ignored: its sockets belong to the parent."""
_lock = threading.Lock()


def _network() -> _Network:
    with _lock:
        return _networks.get(os.getpid()) or _networks.setdefault(os.getpid(), _Network.start())


# A child process must not inherit the lock from a thread that it does not have.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def close_idle_connections() -> None:
    """Close the connections that this process keeps for later requests."""
    if os.getpid() in _networks:
        _network().close_sessions()


atexit.register(close_idle_connections)


@lru_cache(maxsize=256)
def _parsed(url: str) -> URL:
    return URL(url, encoded=True)


@lru_cache(maxsize=64)
def _multidict(headers: Headers) -> CIMultiDict[str]:
    return CIMultiDict(headers)


@lru_cache(maxsize=64)
def _is_plain(headers: Headers) -> bool:
    """Whether all characters are ASCII. Others are Latin-1 in a header, and aiohttp only writes UTF-8."""
    return all(value.isascii() for _, value in headers)


def _joined(headers: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers.items():
        name, value = name.lower(), value.strip()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
