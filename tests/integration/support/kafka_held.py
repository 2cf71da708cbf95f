"""A proxy before a broker that holds chosen requests of clients back, and delivers them later (KIP-890).

The client loses its connection, asks again on another one, and is served. The held request is still on its way, as in a
network or in a broker's queue, and comes to the broker when the test says so.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.integration.support.servers import free_port

Deed = Callable[[], None]


class HoldingProxy:
    """Stands before the only broker of a cluster, and tells clients that it is the broker. A context manager."""

    def __init__(self, address: str) -> None:
        """Listen from now on; `address` is the broker's."""
        host, _, port = address.partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        own = int(self._listener.getsockname()[1])
        self.address = f"{host}:{own}"
        # Metadata and coordinators name the broker by its host and, behind it, its port in four bytes.
        self._renamed = (host.encode() + struct.pack(">i", int(port)), host.encode() + struct.pack(">i", own))
        self._rules: list[_Rule] = []
        self._held: list[_Held] = []
        self._passed: list[bytes] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._start(self._accept)

    @property
    def held(self) -> int:
        """How many requests were held so far."""
        return len(self._held)

    @property
    def delivered(self) -> int:
        """How many of them have come to the broker."""
        return sum(held.answered.is_set() for held in self._held)

    def passed(self, number: int, *contains: str) -> int:
        """How many such requests have come to the broker by themselves."""
        rule = _Rule(number, [text.encode() for text in contains], None)
        with self._lock:
            return sum(map(rule.meets, self._passed))

    def hold(self, number: int, *contains: str) -> None:
        """Hold the next request of this kind that has these texts, and cut its client off."""
        self._rules.append(_Rule(number, [text.encode() for text in contains], None))

    def before(self, number: int, *contains: str, deed: Deed) -> None:
        """Do something before the next such request passes."""
        self._rules.append(_Rule(number, [text.encode() for text in contains], deed))

    def deliver(self) -> None:
        """Let what is held come to the broker; return when the broker has answered. Nobody hears the answers."""
        for held in self._held:
            if not held.sent:
                held.sent = True
                held.server.sendall(_framed(held.request))
                assert held.answered.wait(30), "the broker did not answer a held request"

    def close(self) -> None:
        """End all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _close(each)
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="holding proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                connection: list[_Held] = []
                self._start(self._pass_requests, client, server, connection)
                self._start(self._pass_replies, client, server, connection)

    def _pass_requests(self, client: socket.socket, server: socket.socket, connection: list[_Held]) -> None:
        with suppress(OSError):
            while (request := _frame(client)) is not None:
                with self._lock:
                    met = [rule for rule in self._rules if rule.meets(request)]
                    self._rules = [rule for rule in self._rules if rule not in met]
                if any(rule.deed is None for rule in met):
                    connection.append(_Held(server, request))
                    self._held += connection
                    _close(client)
                    return
                for rule in met:
                    if rule.deed is not None:
                        rule.deed()
                server.sendall(_framed(request))
                self._passed.append(request)
        _close(server)

    def _pass_replies(self, client: socket.socket, server: socket.socket, connection: list[_Held]) -> None:
        with suppress(OSError):
            while (reply := _frame(server)) is not None:
                if connection and reply[:4] == connection[0].correlation:
                    connection[0].answered.set()
                with suppress(OSError):
                    client.sendall(_framed(reply.replace(*self._renamed)))
        _close(client)


class _Rule:
    """What happens to the next request of a kind; without a deed it is held."""

    def __init__(self, number: int, contains: list[bytes], deed: Deed | None) -> None:
        self._number = number
        self._contains = contains
        self.deed = deed

    def meets(self, request: bytes) -> bool:
        kind = struct.unpack_from(">h", request)[0]
        return kind == self._number and all(text in request for text in self._contains)


class _Held:
    """A request that has not come to the broker, on a connection that its client has lost."""

    def __init__(self, server: socket.socket, request: bytes) -> None:
        self.server = server
        self.request = request
        self.correlation = request[4:8]
        self.sent = False
        self.answered = threading.Event()


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _frame(end: socket.socket) -> bytes | None:
    """Receive one request or reply; `None` at the end of the connection."""
    size = _exactly(end, 4)
    return None if size is None else _exactly(end, struct.unpack(">i", size)[0])


def _exactly(end: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        if not (more := end.recv(count - len(data))):
            return None
        data += more
    return data


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
