"""A program that repeats to each client what it has sent, as an error of the client's own protocol.

It serves HTTP, and the protocols of PostgreSQL, MySQL and Redis, on one port for each status of HTTP, until its input
ends. Each text contains what controls a terminal.
"""

from __future__ import annotations

import base64
import itertools
import json
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.integration.support.servers import free_port

ESCAPE = b"\x1b]0;owned\x07\x1b[2J"
NO_ENCRYPTION = (struct.pack(">I", 80877103), struct.pack(">I", 80877104))
"""Requests for TLS and GSSAPI (PostgreSQL manual, "Message Formats")."""
STARTUP = struct.pack(">I", 196608)


class _Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", free_port()), _Handler)
        self.status = status


class _Handler(socketserver.BaseRequestHandler):
    server: _Echo

    def handle(self) -> None:
        with suppress(OSError):
            self.request.settimeout(0.2)
            try:
                request = self.request.recv(65536)
            except TimeoutError:
                self._mysql()
                return
            self.request.settimeout(5)
            while request:
                if request[4:8] in NO_ENCRYPTION:
                    self.request.sendall(b"N")
                elif request[4:8] == STARTUP:
                    self._postgres(request)
                elif request.startswith(b"*"):
                    self.request.sendall(b"-WRONGPASS " + repr(request).encode() + ESCAPE + b"\r\n")
                elif b"HTTP/1.1" in request:
                    self._http(request)
                    return
                else:
                    self.request.sendall(request)
                request = self.request.recv(65536)

    def _http(self, request: bytes) -> None:
        while b"\r\n\r\n" not in request:
            request += self.request.recv(65536)
        words = request.split()
        basic = [base64.b64decode(word) for before, word in itertools.pairwise(words) if before == b"Basic"]
        text = f"{request!r} {basic} {ESCAPE.decode()}"
        body = json.dumps(dict.fromkeys(("error", "message", "error_description"), text)).encode()
        head = (
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Echo: %s\r\nContent-Length: %d\r\nConnection: close"
        )
        echoed = base64.b64encode(request)
        self.request.sendall(head % (self.server.status, words[1], echoed, len(body)) + b"\r\n\r\n" + body)

    def _postgres(self, request: bytes) -> None:
        self.request.sendall(b"R" + struct.pack(">II", 8, 3))  # "send the password in clear"
        request += self.request.recv(65536)
        fields = b"SFATAL\0C28P01\0M" + repr(request).encode() + ESCAPE + b"\0\0"
        self.request.sendall(b"E" + struct.pack(">I", len(fields) + 4) + fields)

    def _mysql(self) -> None:
        """The server speaks first, and is never sent a password that it could repeat."""
        capabilities = struct.pack("<HBHHB", 0xF7DF, 45, 2, 0x81FF, 21)
        greeting = (
            b"\x0a8.0.0\0\1\0\0\0abcdefgh\0" + capabilities + bytes(10) + b"ijklmnopqrst\0mysql_native_password\0"
        )
        self.request.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
        request = self.request.recv(65536)
        error = b"\xff\x15\x04#28000" + repr(request).encode() + ESCAPE
        self.request.sendall(len(error).to_bytes(3, "little") + b"\2" + error)


@contextmanager
def echoing(statuses: Sequence[int]) -> Iterator[dict[int, int]]:
    """Run the program; yield the port of each status."""
    command = [sys.executable, "-m", "tests.integration.support.echo_server", *map(str, statuses)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        yield dict(zip(statuses, json.loads(program.stdout.readline()), strict=True))
        program.communicate()


if __name__ == "__main__":
    servers = [_Echo(int(status)) for status in sys.argv[1:]]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps([server.server_address[1] for server in servers]), flush=True)
    sys.stdin.read()
