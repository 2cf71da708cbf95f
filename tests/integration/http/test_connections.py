"""Connections that end, stall, carry too much or say what nobody asked for: no answer is taken for another one's."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.http import HttpSink
from outfall.http.client import close_idle_connections
from outfall.testing import LocalDriver
from tests.integration.http.trial import QUICK, WAYS, Trial, options_of
from tests.integration.support.http_receiver import Received, Reply
from tests.integration.support.servers import free_port
from tests.one_each import one_each


@pytest.mark.parametrize(("manner", "way"), one_each(["close", "chunked", "until_close"], WAYS))
def test_answers_of_every_kind_and_connections_that_end_after_them(
    trial: Trial, manner: str, way: dict[str, Any]
) -> None:
    def behave(request: Received) -> Reply:
        return Reply(body=b"x" * 1000, manner=manner)

    trial.run(behave, rows=50, max_batch_size=1, keeps_keys=True, **options_of(way))
    assert sorted(trial.ids) == list(range(50))


def test_connections_are_kept_between_requests_and_epochs(trial: Trial) -> None:
    before = trial.receiver.connections
    for _ in range(3):
        trial.run(lambda request: Reply(), rows=20, max_batch_size=1, max_in_flight_requests=1)
    assert trial.receiver.connections - before == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("manner", "way"), one_each(["dribble", "silent"], WAYS))
def test_a_server_that_answers_too_slowly_is_left_in_time(
    trial: Trial, silence: Callable[[Received], Reply], manner: str, way: dict[str, Any]
) -> None:
    slow = silence if manner == "silent" else lambda request: Reply(accepts=False, manner=manner)
    started = time.monotonic()
    trial.run(
        lambda request: slow(request) if request.number == 1 else Reply(),
        max_batch_size=5, max_in_flight_requests=1, request_timeout=0.2, **options_of(way),
    )  # fmt: skip
    assert sorted(set(trial.ids)) == list(range(10))
    assert time.monotonic() - started < 60


@pytest.fixture
def silence() -> Iterator[Callable[[Received], Reply]]:
    """A behaviour that says nothing until the test is over."""
    over = threading.Event()

    def behave(request: Received) -> Reply:
        # In the server's lock, so that nobody else is served: only until the client has given up.
        over.wait(0.4)
        return Reply(accepts=False, manner="reset")

    yield behave
    over.set()


@pytest.mark.parametrize("way", WAYS)
def test_of_an_endless_answer_only_the_beginning_is_read(trial: Trial, way: dict[str, Any]) -> None:
    trial.run(
        lambda request: Reply(manner="endless"), max_batch_size=5, max_in_flight_requests=1,
        max_response_bytes=10_000, **options_of(way),
    )  # fmt: skip
    assert trial.ids == list(range(10))


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A bare socket, for what no HTTP server would do."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        done = threading.Event()

        def run() -> None:
            while not done.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            done.set()
            with socket.create_connection(server.getsockname()):
                pass
            thread.join()


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("http://no-such-host.invalid/x", TargetError, "cannot be resolved"),
        ("http://127.0.0.1:1/x", TransientError, "cannot be reached"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_where_nobody_is(
    url: str,
    error: type[OutfallError],
    message: str,
    way: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "no-such-host.invalid":  # a name server may be away, and say so
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    sink = HttpSink(url, **(QUICK | {"max_retries": 1} | options_of(way)))
    with pytest.raises(error, match=message):
        LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])


@pytest.mark.parametrize("way", WAYS)
def test_a_server_without_tls_is_a_mistake_and_not_an_outage(way: dict[str, Any], tmp_path: Path) -> None:
    with listener(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        sink = HttpSink(f"https://127.0.0.1:{port}/x", **(QUICK | options_of(way)))
        with pytest.raises(TargetError, match="does not support a common TLS"):
            LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])


def _request(connection: socket.socket) -> bytes:
    """Read one request: its body. Empty when there is none."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1 << 16)
        if not piece:
            return b""
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return body


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seconds", [None, 0.05])
def test_a_second_response_that_nobody_asked_for_accepts_no_other_request(
    way: dict[str, Any], seconds: float | None, tmp_path: Path
) -> None:
    """It comes right behind the first one, or while the connection is idle."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    accepted: list[bytes] = []
    said = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            while body := _request(connection):
                if accepted:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")
                    continue
                accepted.append(body)
                connection.sendall(ok if seconds else ok + ok)
                if seconds:
                    time.sleep(seconds)
                    connection.sendall(ok)
                said.set()

    with listener(serve) as port:
        options = options_of(way)
        driver = LocalDriver(HttpSink(f"http://127.0.0.1:{port}/x", **(QUICK | options)), str(tmp_path))
        driver.run_epoch(0, [[{"id": 0}]])
        assert said.wait(60)
        time.sleep(0.05)
        with pytest.raises(ValueRefusedError, match=r"is rejected \(400\)"):
            driver.run_epoch(1, [[{"id": 1}]])
        if "session" in options:
            options["session"].close()
        close_idle_connections()
    assert len(accepted) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS[:2])
def test_a_head_that_comes_byte_by_byte_has_the_bound_of_the_exchange(way: dict[str, Any], tmp_path: Path) -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            while _request(connection):
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2000:
                    connection.sendall(bytes([byte]))
                    if over.wait(0.02):
                        return

    with listener(serve) as port:
        sink = HttpSink(f"http://127.0.0.1:{port}/x", **(QUICK | {"max_retries": 1, "request_timeout": 0.4} | way))
        started = time.monotonic()
        with pytest.raises(TransientError, match="the server was silent, or too slow"):
            LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])
        assert time.monotonic() - started < 20
        over.set()
