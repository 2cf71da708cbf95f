"""Redis servers in processes of their own, which tests kill and start again on their data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from outfall.testing import TcpProxy
from tests.integration.support.servers import OwnServer, free_port, listens, open_folder
from tests.programs import program

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class RedisServer(OwnServer):
    """A server with its data in a folder. `client` is an independent one, without Outfall's code."""

    def __init__(self, folder: Path, port: int, *settings: str, extra_port: int | None = None) -> None:
        """Start nothing yet. With TLS, `port` is the one with it, and `extra_port` the one without."""
        self.port = port
        plain = port if extra_port is None else extra_port
        command = [program("redis-server"), "--bind", "127.0.0.1", "--port", str(plain), "--dir", str(folder)]
        super().__init__([*command, "--save", "", *settings], folder / "log", lambda: listens(port))
        self._plain = plain

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **arguments: Any) -> Any:
        return redis.Redis(host="127.0.0.1", port=self._plain, decode_responses=True, **arguments)

    def wait_loaded(self) -> None:
        """Return when it has its data again."""
        self.wait_ready()
        self.client(retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)).ping()


@contextmanager
def redis_server(*settings: str) -> Iterator[RedisServer]:
    """Run a server that keeps what it acknowledges, unless `settings` say otherwise."""
    with open_folder() as folder:
        server = RedisServer(folder, free_port(), *(settings or DURABLE))
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def proxied(server: RedisServer) -> Iterator[tuple[TcpProxy, str]]:
    """Give a proxy before a server, and its URL."""
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy("127.0.0.1", server.port))
        yield proxy, f"redis://127.0.0.1:{proxy.port}"


def rows_of(client: Any, pattern: str = "r:*") -> dict[str, Any]:
    """Return all hashes and strings, by key, read by an independent client."""
    found = {}
    for key in client.scan_iter(match=pattern, count=1000):
        found[key] = client.hgetall(key) if client.type(key) == "hash" else client.get(key)
    return found
