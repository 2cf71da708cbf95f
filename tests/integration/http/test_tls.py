"""`HttpSink` over TLS: whom it trusts, and that nothing is lost on the way."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, TargetError
from outfall.http import HttpSink
from outfall.http.client import ClientTransport, close_idle_connections
from outfall.http.options import HttpOptions
from outfall.http.transport import Call
from outfall.testing import LocalDriver
from tests.integration.http.trial import WAYS, options_of
from tests.integration.support.certificates import self_signed, subject_hash
from tests.integration.support.http_receiver import HttpReceiver
from tests.integration.support.servers import free_port
from tests.one_each import one_each


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this host, signed by itself, with its key."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(self_signed("127.0.0.1"))
    return path


@pytest.fixture(scope="module")
def tls_receiver(certificate: Path) -> Iterator[HttpReceiver]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with HttpReceiver(context).running() as receiver:
        yield receiver
    close_idle_connections()


@pytest.mark.parametrize("way", WAYS)
def test_rows_arrive_through_tls(
    tls_receiver: HttpReceiver, certificate: Path, tmp_path: Path, way: dict[str, Any]
) -> None:
    name = tls_receiver.new_target()
    sink = HttpSink(
        tls_receiver.url(name), ca_bundle=str(certificate), max_batch_size=5, max_in_flight_requests=4, limiter="fixed",
        **options_of(way),
    )  # fmt: skip
    driver = LocalDriver(sink, str(tmp_path))
    # The second epoch finds connections that are open.
    driver.run_epoch(0, [[{"id": number, "text": "x" * 5000} for number in range(100)]])
    driver.run_epoch(1, [[{"id": number, "text": "x" * 5000} for number in range(100, 200)]])
    assert sorted(record["id"] for record in tls_receiver.targets[name].accepted) == list(range(200))


@pytest.mark.parametrize("way", WAYS)
def test_a_certificate_that_nobody_vouches_for_stops_the_query(
    tls_receiver: HttpReceiver, tmp_path: Path, way: dict[str, Any]
) -> None:
    name = tls_receiver.new_target()
    sink = HttpSink(tls_receiver.url(name), **options_of(way))
    with pytest.raises(TargetError, match="is not trusted: self-signed certificate"):
        LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])
    assert tls_receiver.targets[name].requests == []


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize("way", WAYS)
def test_verification_can_be_turned_off_by_name(
    tls_receiver: HttpReceiver, tmp_path: Path, way: dict[str, Any]
) -> None:
    name = tls_receiver.new_target()
    sink = HttpSink(tls_receiver.url(name), verify=False, **options_of(way))
    LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])
    assert tls_receiver.targets[name].accepted == [{"id": 1}]


def test_a_refusal_of_a_large_body_that_nobody_reads_is_heard_through_tls(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    over = threading.Event()

    def refuse(listening: socket.socket) -> None:
        plain, _ = listening.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            over.wait(60)

    with socket.create_server(("127.0.0.1", free_port())) as listening:
        server = threading.Thread(target=refuse, args=(listening,))
        server.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/x"
        transport = ClientTransport(HttpOptions(url=url, ca_bundle=str(certificate)))
        body = b"A" * 20_000_000  # more than the sockets hold
        answer = transport.exchange(Call("POST", url, body, (), (), True, time.monotonic() + 60, False))
        over.set()
        server.join()
    assert (answer.status, answer.body) == (413, b"no")


@pytest.mark.parametrize(("given", "way"), one_each(["ca_bundle", "REQUESTS_CA_BUNDLE"], WAYS))
def test_a_directory_of_certificates_is_trusted(
    tls_receiver: HttpReceiver,
    certificate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    way: dict[str, Any],
) -> None:
    directory = tmp_path / "trusted"
    directory.mkdir()
    directory.joinpath(f"{subject_hash(certificate.read_bytes())}.0").write_bytes(certificate.read_bytes())
    options = dict(options_of(way))
    if given == "ca_bundle":
        options["ca_bundle"] = str(directory)
    else:
        monkeypatch.setenv(given, str(directory))
    name = tls_receiver.new_target()
    sink = HttpSink(tls_receiver.url(name), **options)
    LocalDriver(sink, str(tmp_path / "log")).run_epoch(0, [[{"id": 1}]])
    assert tls_receiver.targets[name].accepted == [{"id": 1}]


def test_a_bundle_that_is_not_there_is_said_before_a_request(tls_receiver: HttpReceiver, tmp_path: Path) -> None:
    sink = HttpSink(tls_receiver.url(tls_receiver.new_target()), ca_bundle=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigurationError, match="TLS certificates cannot be read"):
        LocalDriver(sink, str(tmp_path)).run_epoch(0, [[{"id": 1}]])
