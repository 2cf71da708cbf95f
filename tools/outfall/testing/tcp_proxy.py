"""A TCP proxy between a sink and its target that drops, delays and cuts traffic at a chosen byte.

It is similar to Toxiproxy, but needs no separate server.
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
    """A fault in one direction of a connection, after a given number of bytes.

    `cut` closes the connection in both directions in order; `reset` uses a TCP reset. `drop` discards all further bytes
    in this direction and keeps the connection open: with `direction="reply"`, the target does its work and the response
    is lost. `stall` delays all further bytes until the fault is removed.
    """

    deed: Deed
    direction: Direction = "reply"
    after: int = 0
    """Bytes that still pass."""
    contains: bytes | None = None
    """Start to count `after` at the end of the first occurrence of these bytes, such as `b"COMMIT"`."""
    connections: int | None = None
    """Number of affected connections; `None` for all."""


class TcpProxy:
    """Forwards connections from a port of 127.0.0.1 to `host:port`. Use it as a context manager.

    It listens on a free port, or on `listen`, for example on the port of a closed one, as a server that starts again.
    Faults affect bytes after `inject`, also on open connections. Threads forward the bytes and end with the block.
    """

    def __init__(self, host: str, port: int, *, listen: int = 0) -> None:
        """Listen from now on."""
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", listen))
        self._open: set[_Connection] = set()
        self._threads: list[threading.Thread] = []
        self._faults: list[_Pending] = []
        self._lock = threading.Lock()
        self.delay = 0.0
        """Delay of each chunk in both directions, in seconds."""
        self.connections = 0
        """Number of accepted connections."""
        self.round_trips = 0
        """Number of times that a client has waited for the target: requests sent together count once."""
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
        """Inject a fault into all traffic from now on.

        Returns:
            A function that removes the fault and releases stalled bytes.
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

    def lead_to(self, host: str, port: int) -> None:
        """Forward to another server from now on, as after a failover, and reset all open connections."""
        self._target = (host, port)
        self.drop_connections()

    def drop_connections(self) -> None:
        """Reset all open connections. New connections are accepted."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            connection.reset()

    def close(self) -> None:
        """Stop listening, reset open connections, and wait for the threads."""
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
        """Forward one direction until its end."""
        source, sink = connection.ends(direction)
        streams: dict[_Pending, _Stream] = {}
        try:
            while data := source.recv(CHUNK):
                if connection.turns(direction):
                    with self._lock:
                        self.round_trips += 1
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
        """Apply the faults of this direction, and return the bytes to forward.

        Raises `OSError` if the connection is closed.
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
    """A client connection and its connection to the target."""

    def __init__(self, number: int, client: socket.socket, server: socket.socket) -> None:
        self.number = number
        self._client = client
        self._server = server
        for end in (client, server):
            # A server sends several replies at once; each would wait for the acknowledgment of the one before.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._directions = 2
        self._is_reset = False
        self._replied = True
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        return self._client.fileno() < 0

    def ends(self, direction: Direction) -> tuple[socket.socket, socket.socket]:
        """Return source and destination of a direction."""
        return (self._client, self._server) if direction == "request" else (self._server, self._client)

    def turns(self, direction: Direction) -> bool:
        """Return whether bytes of this direction are the first of a client that has waited for a reply, or connected.

        Called before they are forwarded, so that no reply to them is seen earlier.
        """
        waited, self._replied = self._replied, direction == "reply"
        return waited and direction == "request"

    def direction_ended(self, sink: socket.socket) -> None:
        """Forward an end of stream, and close after the second one."""
        if self._is_reset:
            return
        sink.shutdown(socket.SHUT_WR)
        with self._lock:
            self._directions -= 1
        if not self._directions:
            self.close()

    def close(self) -> None:
        """Close in order, after all sent bytes arrive."""
        if self._is_reset:
            return
        for end in (self._server, self._client):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def reset(self) -> None:
        # Set first, so that the other direction does not see an ordinary end of stream.
        self._is_reset = True
        _reset(self._server)
        _reset(self._client)


@dataclass(eq=False)
class _Pending:
    """A fault and its affected connections."""

    fault: NetworkFault
    lifted: threading.Event = field(default_factory=threading.Event)
    befallen: set[int] = field(default_factory=set)

    def befalls(self, connection: int) -> bool:
        """Whether the fault may affect this connection."""
        most = self.fault.connections
        spared = most is not None and connection not in self.befallen and len(self.befallen) >= most
        if spared or self.lifted.is_set():
            return False
        self.befallen.add(connection)
        return True


class _Stream:
    """Progress of one direction of one connection towards one fault."""

    def __init__(self, fault: NetworkFault) -> None:
        self._left = fault.after
        self._wanted = fault.contains
        self._tail = b""

    def passing(self, data: bytes) -> int:
        """Return the number of bytes that pass."""
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
        # Interrupts recv() on this side; close() alone does not.
        end.shutdown(socket.SHUT_RD)
    end.close()
