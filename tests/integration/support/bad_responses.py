"""A server on a socket that answers each request with given bytes, at once or byte by byte."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.integration.support.servers import free_port

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(body: bytes, *more: str) -> bytes:
    """Return a response with a length."""
    lines = "".join(f"{line}\r\n" for line in (*more, f"Content-Length: {len(body)}"))
    return HEAD + lines.encode() + b"\r\n" + body


def cut(body: bytes) -> bytes:
    """Return a response that ends before its length."""
    return HEAD + f"Content-Length: {2 * len(body)}\r\n\r\n".encode() + body


def bomb(size: int) -> bytes:
    """Return a response that is much larger once it is decoded, made without as much memory."""
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return whole(b"".join([*pieces, packer.flush()]), "Content-Encoding: gzip")


DEEP = whole(b"[" * 200_000)
HTML = whole(b"<html>Maintenance until noon</html>")
ENDLESS = HEAD + b"\r\n"


@contextmanager
def answers(response: bytes, *, slowly_from: int | None = None, then: bytes = b"") -> Iterator[str]:
    """Serve one response to each request, from a position on byte by byte, then more bytes until the client hangs up.

    Yields the URL.
    """
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while b"\r\n\r\n" not in (data := connection.recv(1 << 20)) and data:
                pass
            connection.sendall(response if slowly_from is None else response[:slowly_from])
            for byte in b"" if slowly_from is None else response[slowly_from:]:
                connection.sendall(bytes([byte]))
                if over.wait(0.05):
                    return
            while then and not over.is_set():
                connection.sendall(then)

    with socket.create_server(("127.0.0.1", free_port())) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
