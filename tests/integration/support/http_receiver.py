"""An HTTP server over real sockets that takes records, keeps idempotency keys, and misbehaves by order.

The first part of a path names a target, and what a target accepted is read with GET. It knows nothing of the sink.

As a program it serves until its input ends: targets whose names begin with `keys-` keep idempotency keys, those that
begin with `items-` tell records apart by their `id`.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from urllib.request import urlopen

import pyarrow as pa

from tests.integration.support.servers import free_port

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Received:
    """One request."""

    target: str
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    """Decompressed."""
    number: int = 0
    """From 0, of the target's requests, as they are taken in."""

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")

    @property
    def records(self) -> list[Any]:
        if self.headers["content-type"] == "application/x-ndjson":
            return [json.loads(line) for line in self.body.splitlines()]
        if self.headers["content-type"] == "application/x-www-form-urlencoded":
            return [dict(parse_qsl(self.body.decode()))]
        value = json.loads(self.body)
        if isinstance(value, dict) and isinstance(value.get("events"), list):
            return list(value["events"])
        return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class Reply:
    """What is answered, and how."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    accepts: bool | Callable[[Any], bool] = True
    """Whether the records are accepted first, or which of them."""
    manner: str = "whole"
    """`whole`, `reset` (no answer), `close` (the connection ends after it, unannounced), `dribble` (a byte now and
    then), `short` (the body ends before its length), `endless` (a body without end), `chunked`, `until_close` (a body
    whose end is the connection's)."""


Behaviour = Callable[[Received], Reply]


def accept(request: Received) -> Reply:
    return Reply()


@dataclass
class Target:
    """What one target was sent and has accepted."""

    behaviour: Behaviour = accept
    keeps_keys: bool = False
    requests: list[Received] = field(default_factory=list)
    accepted: list[Any] = field(default_factory=list)
    seen: dict[str, bytes] = field(default_factory=dict)
    """Idempotency keys, with the body each came with."""
    repeated: int = 0
    """Requests whose key was known."""
    misused: int = 0
    """Requests whose key was known with another body."""
    item_key: str | None = None
    """The field by which items are told apart."""


class _Targets(defaultdict[str, Target]):
    def __missing__(self, name: str) -> Target:
        self[name] = Target(keeps_keys=name.startswith("keys-"), item_key="id" if name.startswith("items-") else None)
        return self[name]


class HttpReceiver:
    """The server and its targets."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.lock = threading.Lock()
        self.targets: dict[str, Target] = _Targets()
        self.ended = threading.Event()
        """Set when the server stops, so that no handler waits on."""
        self.connections = 0
        self._scheme = "https" if tls else "http"
        self._server = _Server(self)
        if tls:
            # The handshake is the handler's thread's, so that one client does not hold up the others.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]

    def url(self, target: str) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/{target}"

    def new_target(self, behaviour: Behaviour = accept, **settings: Any) -> str:
        name = f"t{random.getrandbits(64):016x}"
        self.targets[name] = Target(behaviour, **settings)
        return name

    def receive(self, request: Received) -> Reply:
        """Take a request in and decide on its answer."""
        with self.lock:
            target = self.targets[request.target]
            request = replace(request, number=len(target.requests))
            target.requests.append(request)
            if target.keeps_keys and request.key is not None and request.key in target.seen:
                target.repeated += 1
                if target.seen[request.key] != request.body:
                    target.misused += 1
                    return Reply(422, accepts=False)
                behaviour = target.behaviour(request)
                return behaviour if behaviour.manner == "reset" else Reply()
            reply = target.behaviour(request)
            taken = [record for record in request.records if _takes(reply, record)]
            if taken and target.item_key is not None:
                have = {record[target.item_key] for record in target.accepted}
                taken = [record for record in taken if record[target.item_key] not in have]
            target.accepted += taken
            if taken and request.key is not None:
                target.seen[request.key] = request.body
            return reply

    @contextmanager
    def running(self) -> Iterator[HttpReceiver]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _takes(reply: Reply, record: Any) -> bool:
    return reply.accepts(record) if callable(reply.accepts) else reply.accepts


@contextmanager
def receiver_process() -> Iterator[str]:
    """A server that outlives the processes which write to it; its URL."""
    command = [sys.executable, "-m", "tests.integration.support.http_receiver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


def accepted(url: str) -> list[Any]:
    """Ask a server for what a target has accepted."""
    with urlopen(url) as answer:
        return list(json.loads(answer.read()))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, receiver: HttpReceiver) -> None:
        self.receiver = receiver
        super().__init__(("127.0.0.1", free_port()), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def get_request(self) -> Any:
        self.receiver.connections += 1
        return super().get_request()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        """What a target has accepted."""
        name = self.path.strip("/")
        with self.server.receiver.lock:
            body = json.dumps(self.server.receiver.targets[name].accepted).encode()
        self._answer(Reply(body=body))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        encoding = self.headers.get("Content-Encoding")
        if encoding == "gzip":
            body = gzip.decompress(body)
        elif encoding == "zstd":
            body = pa.input_stream(pa.py_buffer(body), compression="zstd").read()
        receiver = self.server.receiver
        name = self.path.split("/")[1].partition("?")[0]
        headers = {header.lower(): value for header, value in self.headers.items()}
        self._answer(receiver.receive(Received(name, self.command, self.path, headers, body)))

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, reply: Reply) -> None:
        if reply.manner == "reset":
            self._reset()
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        getattr(self, f"_{reply.manner}")(reply)
        self.wfile.flush()

    def _whole(self, reply: Reply) -> None:
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def _close(self, reply: Reply) -> None:
        self._whole(reply)
        self.close_connection = True

    def _short(self, reply: Reply) -> None:
        self.send_header("Content-Length", str(len(reply.body) + 1))
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = True

    def _chunked(self, reply: Reply) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(reply.body), reply.body))

    def _until_close(self, reply: Reply) -> None:
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.body)

    def _dribble(self, reply: Reply) -> None:
        self.wfile.flush()
        with suppress(OSError):
            while not self.server.receiver.ended.wait(0.05):
                self.connection.sendall(b"X")
        self.close_connection = True

    def _endless(self, reply: Reply) -> None:
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        with suppress(OSError):
            while not self.server.receiver.ended.is_set():
                self.wfile.write(b"x" * 65536)
        self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def main() -> None:
    with HttpReceiver().running() as receiver:
        print(receiver.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
