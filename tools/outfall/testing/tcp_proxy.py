"""A TCP proxy between a sink and its target that loses, delays and cuts what passes, at a chosen byte.

Toxiproxy does as much and needs a server of its own to be installed; this one starts with the test.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

CHUNK = 65536
Direction = Literal["request", "reply"]
Deed = Literal["cut", "reset", "drop", "stall"]


@dataclass(frozen=True)
class NetworkFault:
    """What happens to one direction of a connection once this many of its bytes have passed.

    `cut` closes the connection, both ways, in order; `reset` with a TCP reset. `drop` swallows all that follows in this
    direction and keeps the connection open: with `direction="reply"` the target does its work, and nobody hears of it.
    `stall` holds all that follows back until the fault is lifted.
    """

    deed: Deed
    direction: Direction = "reply"
    after: int = 0
    """Bytes that still pass."""
    contains: bytes | None = None
    """Counts `after` from the end of the first occurrence of these bytes, such as `b"COMMIT"`."""
    connections: int | None = None
    """How many connections it befalls; `None` for all."""


class TcpProxy:
    """Forwards connections to `host:port`, from a free port of 127.0.0.1. Use it as a context manager.

    Faults befall bytes that come after `inject`, also on connections that are open already. Threads carry the bytes;
    leaving the block ends them.
    """

    def __init__(self, host: str, port: int) -> None:
        """Listen from now on."""
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[_Connection] = set()
        self._threads: list[threading.Thread] = []
        self._faults: list[_Pending] = []
        self._lock = threading.Lock()
        self.delay = 0.0
        """Seconds by which each chunk of either direction is late."""
        self.connections = 0
        """How many connections were made."""
        self._start(self._accept)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close everything."""
        self.close()

    def inject(self, fault: NetworkFault) -> Callable[[], None]:
        """Have a fault befall what passes from now on.

        Returns:
            A function that lifts it: new connections pass, and so does what was stalled.
        """
        pending = _Pending(fault)
        with self._lock:
            self._faults.append(pending)

        def lift() -> None:
            pending.lifted.set()
            with self._lock:
                if pending in self._faults:
                    self._faults.remove(pending)

        return lift

    def drop_connections(self) -> None:
        """Reset all connections that are open; new ones are accepted."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            connection.reset()

    def close(self) -> None:
        """Stop listening, reset what is open, and wait for the threads."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pending in list(self._faults):
            pending.lifted.set()
        self.drop_connections()
        for thread in list(self._threads):
            thread.join(5)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="tcp proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _reset(client)
                continue
            connection = _Connection(self.connections, client, server)
            with self._lock:
                self._open.add(connection)
            self._start(self._carry, connection, "request")
            self._start(self._carry, connection, "reply")

    def _carry(self, connection: _Connection, direction: Direction) -> None:
        """Carry one direction to its end."""
        source, sink = connection.ends(direction)
        streams: dict[_Pending, _Stream] = {}
        try:
            while data := source.recv(CHUNK):
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(self._befall(data, connection, direction, streams))
            connection.direction_ended(sink)
        except OSError:
            connection.close()
        if connection.closed:
            with self._lock:
                self._open.discard(connection)

    def _befall(
        self, data: bytes, connection: _Connection, direction: Direction, streams: dict[_Pending, _Stream]
    ) -> bytes:
        """Let the faults of this direction do what they do.

        Returns:
            What is still to be forwarded.

        Raises:
            OSError: the connection is no longer.
        """
        _, sink = connection.ends(direction)
        with self._lock:
            faults = [pending for pending in self._faults if pending.fault.direction == direction]
        for pending in faults:
            passes = streams.setdefault(pending, _Stream(pending.fault)).passing(data)
            if passes == len(data) or not pending.befalls(connection.number):
                continue
            if pending.fault.deed == "drop":
                data = data[:passes]
                continue
            sink.sendall(data[:passes])
            if pending.fault.deed == "stall":
                pending.lifted.wait()
                data = data[passes:]
                continue
            if pending.fault.deed == "reset":
                connection.reset()
            raise ConnectionAbortedError
        return data


class _Connection:
    """A client's connection and the one to the target."""

    def __init__(self, number: int, client: socket.socket, server: socket.socket) -> None:
        self.number = number
        self._client = client
        self._server = server
        self._directions = 2
        self._is_reset = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        return self._client.fileno() < 0

    def ends(self, direction: Direction) -> tuple[socket.socket, socket.socket]:
        """Where bytes of a direction come from and go to."""
        return (self._client, self._server) if direction == "request" else (self._server, self._client)

    def direction_ended(self, sink: socket.socket) -> None:
        """Pass an end on, and close when it was the second one."""
        if self._is_reset:
            return
        sink.shutdown(socket.SHUT_WR)
        with self._lock:
            self._directions -= 1
        if not self._directions:
            self.close()

    def close(self) -> None:
        """Close in order: what was sent arrives first."""
        if self._is_reset:
            return
        for end in (self._server, self._client):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def reset(self) -> None:
        # First, so that the other direction does not take it for an end and closes in order.
        self._is_reset = True
        _reset(self._server)
        _reset(self._client)


@dataclass(eq=False)
class _Pending:
    """A fault, and the connections that it has befallen."""

    fault: NetworkFault
    lifted: threading.Event = field(default_factory=threading.Event)
    befallen: set[int] = field(default_factory=set)

    def befalls(self, connection: int) -> bool:
        """Whether this connection is among those that it may befall."""
        most = self.fault.connections
        spared = most is not None and connection not in self.befallen and len(self.befallen) >= most
        if spared or self.lifted.is_set():
            return False
        self.befallen.add(connection)
        return True


class _Stream:
    """How far one direction of one connection has come, as one fault sees it."""

    def __init__(self, fault: NetworkFault) -> None:
        self._left = fault.after
        self._wanted = fault.contains
        self._tail = b""

    def passing(self, data: bytes) -> int:
        """Return how many of these bytes pass."""
        start = 0
        if self._wanted is not None:
            seen = self._tail + data
            at = seen.find(self._wanted)
            if at < 0:
                self._tail = seen[-len(self._wanted) + 1 :] if len(self._wanted) > 1 else b""
                return len(data)
            start = at + len(self._wanted) - len(self._tail)
            self._wanted, self._tail = None, b""
        passes = min(len(data), start + self._left)
        self._left -= passes - start
        return passes


def _reset(end: socket.socket) -> None:
    """Close with a TCP reset."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Wakes whoever is in recv() on this side; close() alone does not.
        end.shutdown(socket.SHUT_RD)
    end.close()
