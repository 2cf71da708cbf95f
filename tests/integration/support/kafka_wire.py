"""Kafka's protocol over TCP, up to requests that somebody else answers, with the faults that tests order.

https://kafka.apache.org/protocol; the codecs are kafka-python's.
"""

from __future__ import annotations

import asyncio
import io
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from tests.integration.support.servers import free_port

API_VERSIONS = 18
_UNSUPPORTED_VERSION = 35


class Api(NamedTuple):
    """A kind of request."""

    request: Any
    response: Any
    oldest: int
    newest: int
    method: str
    """Of the server: it is given the request and its version, and returns the answer."""


class WireServer:
    """Serves in a thread of its own until it is closed. A subclass has the methods that `apis` names."""

    apis: dict[int, Api] = {API_VERSIONS: Api(ApiVersionsRequest, ApiVersionsResponse, 0, 4, "")}

    def __init__(self) -> None:
        """Begin to serve on a free port."""
        self.lock = threading.RLock()
        self.swallow: list[int] = []
        """Numbers of requests whose work is done and whose answer is lost; taken one by one."""
        self.silent: set[int] = set()
        """Numbers of requests that are never answered, nor their work done."""
        self.held: Callable[[int, Any], bool] = lambda number, request: False
        """Which requests wait, by number and content, with their work undone; asked again until it says no."""
        self.errors: dict[int, list[int]] = {}
        """Errors to answer with instead of working, by the number of the request."""
        self.asked: list[int] = []
        self.away = False
        """Whether all connections are lost, and new ones too."""
        self._broken: list[Exception] = []
        self._answered = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Stop serving.

        Raises:
            Exception: what went wrong in the server itself, which its clients took for lost connections.
        """
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        if self._broken:
            raise self._broken[0]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def next_error(self, number: int) -> int:
        """The next error that a test has ordered for this request, or 0."""
        return self.errors[number].pop(0) if self.errors.get(number) else 0

    def delay(self, number: int, request: Any) -> float:
        """Seconds that an answer may wait for news; called anew until it is 0 or the time is over."""
        return 0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", free_port()))
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                answer = None if self.away else await self._answer(request)
                if answer is None or self.away:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        except Exception as error:
            self._broken.append(error)
        finally:
            writer.close()

    async def _answer(self, data: bytes) -> bytes | None:
        number, version, correlation = struct.unpack(">hhi", data[:8])
        self.asked.append(number)
        while number in self.silent:
            await asyncio.sleep(0.05)
        api = self.apis[number]
        flexible = version <= api.newest and api.request.flexible_version_q(version)
        stream = io.BytesIO(data)
        RequestHeader.decode(stream, flexible=flexible)
        if number == API_VERSIONS:
            known = version <= api.newest
            answer = self._api_versions(version if known else 0, 0 if known else _UNSUPPORTED_VERSION)
        else:
            request = api.request[version].decode(stream.read())
            while self.held(number, request):
                await asyncio.sleep(0.01)
            await self._wait_for_news(number, request)
            with self.lock:
                answer = getattr(self, api.method)(request, version)
            self._answered.set()
            self._answered = asyncio.Event()
            if number in self.swallow:
                self.swallow.remove(number)
                return None
        answer.with_header(correlation_id=correlation)
        return bytes(answer.encode(header=True, framed=True))

    async def _wait_for_news(self, number: int, request: Any) -> None:
        started = self._loop.time()
        while (left := started + self.delay(number, request) - self._loop.time()) > 0:
            # What a test changes by itself is no request, and is seen a little later.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._answered.wait(), min(left, 0.02))

    def _api_versions(self, version: int, error: int) -> Any:
        answer = ApiVersionsResponse[version]
        keys = [
            answer.ApiVersion(api_key=number, min_version=api.oldest, max_version=api.newest, version=version)
            for number, api in self.apis.items()
        ]
        return answer(error_code=error, api_keys=keys, throttle_time_ms=0)
