"""A proxy before a node of OpenSearch that loses responses of bulk requests, and lets parts of them fail."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

import urllib3

from tests.integration.support.servers import free_port

_REJECTED = {"status": 429, "error": {"type": "rejected_execution_exception", "reason": "asked for by the test"}}


@dataclass
class BulkFaults:
    """What goes wrong, each by its share."""

    lost: float
    """Of bulk requests whose response is lost after the write."""
    items: float
    """Of the items of bulk requests that are rejected."""
    failed: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(3))
    lock: Lock = field(default_factory=Lock)

    def happens(self, share: float) -> bool:
        with self.lock:
            found = self.chance.random() < share
            self.failed += found
            return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def __init__(self, node: str, faults: BulkFaults, pool: urllib3.PoolManager, *arguments: Any) -> None:
        self._node = node
        self._faults = faults
        self._pool = pool
        super().__init__(*arguments)

    def handle_any(self) -> None:
        """Forward a request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        try:
            status, answer = self._bulk(body) if self.path.startswith("/_bulk") else self._forward(body)
        except urllib3.exceptions.HTTPError:  # the node is away
            self.close_connection = True
            return
        if self.path.startswith("/_bulk") and self._faults.happens(self._faults.lost):
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        found = self._pool.request(self.command, self._node + self.path, body=body or None, headers=headers)
        return found.status, found.data

    def _bulk(self, body: bytes) -> tuple[int, bytes]:
        """Forward all items but some, which are answered as rejected."""
        actions = _actions(body)
        kept = [not self._faults.happens(self._faults.items) for _ in actions]
        passed = b"".join(action for action, keep in zip(actions, kept, strict=True) if keep)
        status, answer = self._forward(passed) if passed else (200, b'{"items":[]}')
        if status != 200:
            return status, answer
        written = iter(json.loads(answer)["items"])
        items = [next(written) if keep else {"index": _REJECTED} for keep in kept]
        return 200, json.dumps({"items": items}).encode()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Print nothing: a driver that is killed does not read its response."""


def _actions(body: bytes) -> list[bytes]:
    lines = iter(body.splitlines(keepends=True))
    return [line if line.startswith(b'{"delete"') else line + next(lines) for line in lines]


@contextmanager
def faulty_bulk(node: str, faults: BulkFaults) -> Iterator[str]:
    """Run the proxy in threads, and give its URL. Drivers that tests fork do not use its locks."""
    pool = urllib3.PoolManager(timeout=10, retries=False, maxsize=16)
    server = _Server(("127.0.0.1", free_port()), partial(_Handler, node, faults, pool))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
