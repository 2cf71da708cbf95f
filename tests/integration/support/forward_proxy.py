"""A forward proxy (RFC 9110 §7.6): passes requests on, and opens tunnels for CONNECT. It may ask who one is."""

from __future__ import annotations

import base64
import http.client
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.integration.support.servers import free_port


class ForwardProxy:
    """Where a host is that nobody else can resolve, only the proxy knows.

    Args:
        hosts: by `host:port`, where that is; others are where they say.
        password: of the user `me`; `None` where anybody may come.
    """

    def __init__(self, hosts: dict[str, tuple[str, int]] | None = None, password: str | None = None) -> None:
        self.hosts = hosts or {}
        self.password = password
        self.seen: list[str] = []
        """Method and target of each request, those that were refused among them."""
        self._server = _Server(self)

    @property
    def url(self) -> str:
        who = f"me:{self.password}@" if self.password else ""
        return f"http://{who}127.0.0.1:{self._server.server_port}"

    def place(self, authority: str, default: int) -> tuple[str, int]:
        """Return where a host is."""
        host, _, port = authority.partition(":")
        return self.hosts.get(authority, (host, int(port or default)))

    @contextmanager
    def running(self) -> Iterator[ForwardProxy]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, proxy: ForwardProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", free_port()), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if not self._admits():
            return
        url = urlsplit(self.path)
        connection = http.client.HTTPConnection(*self.server.proxy.place(url.netloc, 80), timeout=60)
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        connection.request(self.command, self.path.partition(url.netloc)[2], body, headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name in ("Retry-After", "Location"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self._end(content)
        connection.close()

    def do_GET(self) -> None:
        self.do_POST()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_CONNECT(self) -> None:
        if not self._admits():
            return
        with socket.create_connection(self.server.proxy.place(self.path, 443), timeout=60) as there:
            self.send_response(200)
            self.end_headers()
            self._pipe(self.connection, there)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _admits(self) -> bool:
        proxy = self.server.proxy
        proxy.seen.append(f"{self.command} {self.path}")
        wanted = "Basic " + base64.b64encode(f"me:{proxy.password}".encode()).decode()
        if proxy.password is None or self.headers["Proxy-Authorization"] == wanted:
            return True
        self.send_response(407)
        self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
        self._end(str(self.headers).encode())
        return False

    def _end(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @staticmethod
    def _pipe(here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while True:
                for ready in select.select([here, there], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (there if ready is here else here).sendall(data)
