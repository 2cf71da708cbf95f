"""A web service with a configurable delay in a separate process, as the target of HTTP benchmarks.

    python -m benchmarks.http_service --seconds 0.02 --knee 40

Prints its port and serves until its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: service\r\n"
    b"Date: Sat, 21 Nov 2026 12:00:00 GMT\r\nContent-Length: 15\r\n\r\n"
    b'{"status":"ok"}'
)


class Service:
    """Responds to each request after a delay. Above the knee, requests wait for earlier requests."""

    def __init__(self, seconds: float, knee: int) -> None:
        self.seconds = seconds
        self.knee = knee
        self.busy = 0
        self.waiting: deque[asyncio.Transport] = deque()

    def take(self, transport: asyncio.Transport) -> None:
        if self.knee and self.busy >= self.knee:
            self.waiting.append(transport)
            return
        self.busy += 1
        asyncio.get_running_loop().call_later(self.seconds, self.answer, transport)

    def answer(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.write(ANSWER)
        self.busy -= 1
        if self.waiting:
            self.take(self.waiting.popleft())


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, rest = self.data.partition(b"\r\n\r\n")
        if end:
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            if len(rest) >= length:
                self.data = rest[length:]
                self.service.take(self.transport)


async def serve(seconds: float, knee: int) -> None:
    service = Service(seconds, knee)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(service), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def http_service(seconds: float, knee: int = 0) -> Iterator[str]:
    """Run a service, and yield its URL."""
    command = [sys.executable, "-m", "benchmarks.http_service", "--seconds", str(seconds), "--knee", str(knee)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/events"
        process.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--knee", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(serve(given.seconds, given.knee))


if __name__ == "__main__":
    main()
