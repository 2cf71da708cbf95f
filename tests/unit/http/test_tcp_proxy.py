"""The proxy loses, delays and cuts what passes, at the byte that it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from outfall.testing import NetworkFault, TcpProxy

SENT = b"0123456789"


class Echo:
    """A server that answers with what it is sent, and remembers it."""

    def __init__(self) -> None:
        self.received = b""
        self.heard = threading.Condition()
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def wait_for(self, count: int) -> bytes:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.received) >= count, timeout=240)
            return self.received

    def close(self) -> None:
        with suppress(OSError):
            # Wakes the thread in accept(), without which the port stays open.
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(100):
                with self.heard:
                    self.received += data
                    self.heard.notify_all()
                connection.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", echo.port) as running:
        yield running


def connected(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=240)


def reply(client: socket.socket, count: int = len(SENT)) -> bytes:
    """What comes back, up to a number of bytes or the end."""
    data = b""
    while len(data) < count and (more := client.recv(count - len(data))):
        data += more
    return data


def exchange(proxy: TcpProxy) -> bytes:
    with connected(proxy) as client:
        client.sendall(SENT)
        return reply(client)


def test_without_a_fault_everything_passes(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client) == SENT
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert proxy.connections == 1


def test_a_large_message_passes_whole(proxy: TcpProxy) -> None:
    data = bytes(range(256)) * 4000
    with connected(proxy) as client:
        threading.Thread(target=client.sendall, args=(data,)).start()
        assert reply(client, len(data)) == data


@pytest.mark.parametrize("after", [0, 4, 9])
def test_a_reply_is_cut_in_the_middle(proxy: TcpProxy, echo: Echo, after: int) -> None:
    proxy.inject(NetworkFault("cut", after=after))
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client) == SENT[:after]
    assert echo.wait_for(len(SENT)) == SENT


def test_a_request_is_cut_in_the_middle(proxy: TcpProxy, echo: Echo) -> None:
    proxy.inject(NetworkFault("cut", "request", after=4))
    with connected(proxy) as client:
        client.sendall(SENT)
        assert echo.wait_for(4) == SENT[:4]
        assert reply(client)[4:] == b""


def test_a_connection_is_reset(proxy: TcpProxy) -> None:
    proxy.inject(NetworkFault("reset", "request", after=4))
    with connected(proxy) as client:
        client.sendall(SENT)
        with pytest.raises(ConnectionResetError):
            reply(client)


def test_a_lost_reply_leaves_the_work_done_and_the_client_waiting(proxy: TcpProxy, echo: Echo) -> None:
    proxy.inject(NetworkFault("drop"))
    with connected(proxy) as client:
        client.sendall(SENT)
        assert echo.wait_for(len(SENT)) == SENT
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_a_lost_request_never_arrives(proxy: TcpProxy, echo: Echo) -> None:
    proxy.inject(NetworkFault("drop", "request", after=3))
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client, 3) == SENT[:3]
        client.sendall(SENT)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert echo.received == SENT[:3]


def test_bytes_are_counted_from_a_word_that_comes_in_two_pieces(proxy: TcpProxy, echo: Echo) -> None:
    proxy.inject(NetworkFault("drop", "request", after=2, contains=b"COMMIT"))
    with connected(proxy) as client:
        client.sendall(b"BEGIN COM")
        assert reply(client, 9) == b"BEGIN COM"
        client.sendall(b"MIT12345")
        assert reply(client, 5) == b"MIT12"
    assert echo.received == b"BEGIN COMMIT12"


def test_a_stalled_reply_comes_when_the_fault_is_lifted(proxy: TcpProxy, echo: Echo) -> None:
    lift = proxy.inject(NetworkFault("stall", after=4))
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client, 4) == SENT[:4]
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)
        lift()
        client.settimeout(240)
        assert reply(client, 6) == SENT[4:]


def test_a_fault_of_one_connection_spares_the_next(proxy: TcpProxy) -> None:
    proxy.inject(NetworkFault("cut", connections=1))
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client) == b""
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client) == SENT


def test_a_lifted_fault_befalls_nobody(proxy: TcpProxy) -> None:
    proxy.inject(NetworkFault("cut"))()
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client) == SENT


def test_bytes_are_late(proxy: TcpProxy) -> None:
    proxy.delay = 0.03
    with connected(proxy) as client:
        started = time.monotonic()
        client.sendall(SENT)
        assert reply(client) == SENT
    assert time.monotonic() - started >= 0.06


def test_open_connections_are_dropped_and_new_ones_pass(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        client.sendall(SENT)
        reply(client)
        proxy.drop_connections()
        with pytest.raises(ConnectionResetError):
            reply(client)
    with connected(proxy) as client:
        client.sendall(SENT)
        assert reply(client) == SENT


def test_a_target_that_is_down_resets_the_client(echo: Echo) -> None:
    nobody = echo.port
    echo.close()
    with TcpProxy("127.0.0.1", nobody) as proxy, pytest.raises(ConnectionResetError):
        exchange(proxy)


def test_closing_ends_every_thread(echo: Echo) -> None:
    before = threading.active_count()
    with TcpProxy("127.0.0.1", echo.port) as proxy, connected(proxy) as client:
        client.sendall(SENT)
        reply(client)
    assert not [thread for thread in threading.enumerate() if thread.name == "tcp proxy"]
    assert threading.active_count() <= before + 1


def test_requests_that_are_sent_together_are_one_round_trip(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        for _ in range(3):
            client.sendall(2 * SENT)
            assert len(client.recv(2 * len(SENT), socket.MSG_WAITALL)) == 2 * len(SENT)
    assert proxy.round_trips == 3
