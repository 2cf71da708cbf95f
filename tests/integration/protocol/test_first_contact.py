"""What each sink whose driver connects says of a wrong address before its step has begun once, and how soon.

The driver of HttpSink does not: its tasks classify the same errors (tests/integration/http/test_connections.py).
"""

from __future__ import annotations

import logging
import re
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from outfall import first_contact
from outfall.dynamodb import DynamoDBSink
from outfall.errors import OutfallError, TerminalError, TransientError, reason
from outfall.kafka import KafkaRecoveryConfig, KafkaSink
from outfall.kinesis import FirehoseSink, KinesisSink
from outfall.mysql import MySQLRecoveryConfig, MySQLSink
from outfall.mysql.database import MySQLDatabase
from outfall.mysql.options import MySQLOptions
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresRecoveryConfig, PostgresSink
from outfall.redis import RedisSink
from outfall.s3 import S3Sink
from outfall.testing import LocalDriver
from tests.integration.support.certificates import self_signed
from tests.integration.support.servers import free_port
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.warehouse import Warehouse

HERE = "127.0.0.1"
UNKNOWN = "nosuchhost.invalid"
BRIEF: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 5}

Make = Callable[[str, int, bool], Any]


def of_aws(kind: Any, name: str, host: str, port: int, tls: bool, **options: Any) -> Any:
    return kind(name, region="us-east-1", endpoint_url=f"http{'s' * tls}://{host}:{port}", **options, **BRIEF)


def kafka(host: str, port: int, tls: bool, **options: Any) -> Any:
    protocol: dict[str, Any] = {"client_options": {"security.protocol": "ssl"}} if tls else {}
    return KafkaSink(f"{host}:{port}", "t", **protocol, **options)


SINKS: dict[str, Make] = {
    "postgres": lambda host, port, tls: PostgresSink(
        f"postgresql://u@{host}:{port}/d?sslmode={'require' if tls else 'prefer'}", "t", connect_timeout=5
    ),
    "mysql": lambda host, port, tls: MySQLSink(
        f"mysql://u@{host}:{port}/d?tls={'verify' if tls else 'prefer'}", "t", connect_timeout=5
    ),
    "redis": lambda host, port, tls: RedisSink(f"redis{'s' * tls}://{host}:{port}", "r:{id}", **BRIEF),
    "redis, a cluster": lambda host, port, tls: RedisSink(
        f"redis{'s' * tls}://{host}:{port}", "r:{id}", cluster=True, **BRIEF
    ),
    "redis, a sentinel": lambda host, port, tls: RedisSink(
        f"redis{'s' * tls}://{host}:{port}", "r:{id}", sentinel="main", **BRIEF
    ),
    "opensearch": lambda host, port, tls: OpenSearchSink(
        f"http{'s' * tls}://{host}:{port}", index="t", key_columns="id", **BRIEF
    ),
    "kafka": kafka,
    "kafka, parts": partial(kafka, parts=2),
    "dynamodb": partial(of_aws, DynamoDBSink, "table"),
    "kinesis": partial(of_aws, KinesisSink, "t", partition_key="id"),
    "firehose": partial(of_aws, FirehoseSink, "t"),
    "s3": partial(of_aws, S3Sink, "bucket"),
}


LOGS: dict[str, Callable[[str, int], Any]] = {
    "postgres": lambda host, port: PostgresRecoveryConfig(
        f"postgresql://u@{host}:{port}/d?connect_timeout=5", timeout="2 seconds"
    ),
    "mysql": lambda host, port: MySQLRecoveryConfig(f"mysql://u@{host}:{port}/d?tls=prefer", timeout="2 seconds"),
    "kafka": lambda host, port: KafkaRecoveryConfig(f"{host}:{port}", "p", timeout="2 seconds"),
}
"""They wait for longer than a log is waited for at its first contact."""


@contextmanager
def server(answer: bytes, certificate: Path | None = None, *, greets: bool = False) -> Iterator[int]:
    """Run a server that responds once to anything, or greets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(certificate)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                plain = certificate is None
                with self.request if plain else context.wrap_socket(self.request, server_side=True) as connection:
                    if greets or connection.recv(65536):
                        connection.sendall(answer)
                    connection.recv(65536)

    with socketserver.ThreadingTCPServer((HERE, free_port()), Handler) as running:
        running.daemon_threads = True
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_address[1]
        running.shutdown()


PROTOCOL, NO_TLS, NO_NAME = "another protocol answers", "TLS is not possible", "name of the host is unknown"
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
OF_HTTP = {"opensearch", "dynamodb", "kinesis", "firehose", "s3"}
SERVERS_SPEAK_FIRST = {"postgres", "mysql"}
"""Their clients begin TLS only after a message in plain text."""


def begun(sink: Any, place: Any, epoch: int = 0) -> tuple[str, str, float]:
    """Begin an epoch, and return the class and the text of the error, with its notes, and the seconds until it."""
    started = time.monotonic()
    try:
        LocalDriver(sink, place).coordinator().begin(epoch)
    except OutfallError as error:
        family = TransientError if isinstance(error, TransientError) else TerminalError
        return family.__name__, reason(error), time.monotonic() - started
    return "begun", "", 0.0


def check(place: Path, host: str, port: int, expected: Mapping[str, str], *, tls: bool = False) -> None:
    """Compare what each sink says with a pattern of `class: text`, and that it takes a few seconds."""
    with ThreadPoolExecutor(len(expected)) as pool:
        found = {name: pool.submit(begun, SINKS[name](host, port, tls), str(place / name)) for name in expected}
    compare({name: future.result() for name, future in found.items()}, expected)


def compare(found: Mapping[str, tuple[str, str, float]], expected: Mapping[str, str]) -> None:
    wrong = {}
    for name, pattern in expected.items():
        kind, text, seconds = found[name]
        if not re.match(f"(?i){pattern}", f"{kind}: {text}") or seconds > 25:
            wrong[name] = f"{kind}: {text} ({seconds:.1f} s)"
    assert wrong == {}


def check_logs(host: str, port: int, expected: Mapping[str, str], *, epoch: int = 0) -> None:
    """Compare what a query says of its log, like `check`."""
    with ThreadPoolExecutor(len(expected)) as pool:
        sink = NamedStagingSink(Warehouse())
        found = {name: pool.submit(begun, sink, LOGS[name](host, port), epoch) for name in expected}
    compare({name: future.result() for name, future in found.items()}, expected)


@pytest.fixture
def closed() -> Iterator[int]:
    with socket.socket() as unused:
        unused.bind((HERE, free_port()))
        yield unused.getsockname()[1]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.pem"
    path.write_bytes(self_signed(HERE))
    return path


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "PATIENCE", 0.3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


pytestmark = pytest.mark.thorough


def test_an_unknown_name_fails_at_once(tmp_path: Path, closed: int) -> None:
    expected = dict.fromkeys(SINKS, f"TerminalError: .*{NO_NAME}.*correct the name of the host")
    check(tmp_path, UNKNOWN, closed, expected)


def test_a_closed_port_is_waited_for_briefly_with_a_warning(
    tmp_path: Path, closed: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check(tmp_path, HERE, closed, dict.fromkeys(SINKS, r"TransientError: .* never begun waits 0\.3 s"))
    assert any("and is retried" in record.getMessage() for record in caplog.records)


def test_a_server_of_http_is_another_protocol(tmp_path: Path) -> None:
    """A MySQL server speaks first, and this one does not."""
    expected = dict.fromkeys(SINKS.keys() - OF_HTTP, f"TerminalError: .*{PROTOCOL}.*correct the host and the port")
    with server(HTTP) as port:
        check(tmp_path, HERE, port, expected | {"mysql": "TransientError: .*timed out"})


def test_a_server_that_greets_is_another_protocol(tmp_path: Path) -> None:
    with server(b"SSH-2.0-OpenSSH_9\r\n", greets=True) as port:
        expected = dict.fromkeys(SINKS, f"TerminalError: .*{PROTOCOL}.*correct the host and the port")
        check(tmp_path, HERE, port, expected)


def test_a_server_without_tls_fails_at_once(tmp_path: Path) -> None:
    expected = dict.fromkeys(SINKS.keys() - SERVERS_SPEAK_FIRST, f"TerminalError: .*{NO_TLS}.*correct the port")
    kafka = "TerminalError: .*wrong version number.*set the protocol"
    with server(HTTP) as port:
        check(tmp_path, HERE, port, expected | {"kafka": kafka, "kafka, parts": kafka}, tls=True)


def test_an_authority_that_is_not_trusted_fails_at_once_with_the_option(tmp_path: Path, certificate: Path) -> None:
    advice = {
        "redis": "ca_bundle", "redis, a cluster": "ca_bundle", "redis, a sentinel": "ca_bundle",
        "opensearch": "ca_bundle", "kafka": "client_options", "kafka, parts": "client_options",
        "dynamodb": "AWS_CA_BUNDLE", "kinesis": "AWS_CA_BUNDLE", "firehose": "AWS_CA_BUNDLE", "s3": "AWS_CA_BUNDLE",
    }  # fmt: skip
    expected = {name: f"TerminalError: .*certificate verify failed.*What to do.*{do}" for name, do in advice.items()}
    with server(HTTP, certificate) as port:
        check(tmp_path, HERE, port, expected, tls=True)


def test_an_authority_of_the_system_is_trusted_without_a_variable(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 has authorities of its own; tests of their own show it for databases."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    paths = ssl.get_default_verify_paths()._replace(cafile=str(certificate))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    expected = dict.fromkeys(SINKS.keys() - OF_HTTP - SERVERS_SPEAK_FIRST, f"TerminalError: .*{PROTOCOL}")
    expected |= {"opensearch": "TerminalError: .*Status 400"}
    with server(HTTP, certificate) as port:
        check(tmp_path, HERE, port, expected | {"s3": "TerminalError: .*AWS_CA_BUNDLE"}, tls=True)
    options = MySQLOptions(dsn=SecretStr("mysql://u@db.example/d"), table="t")
    context = MySQLDatabase(options)._tls()["ssl"]
    assert any(HERE in str(each["subject"]) for each in context.get_ca_certs())


def test_a_log_at_a_wrong_address_fails_at_once_in_the_first_batch(closed: int) -> None:
    expected = f"TerminalError: .*the recovery log cannot be reached.*{NO_NAME}.*correct the name of the host"
    check_logs(UNKNOWN, closed, dict.fromkeys(LOGS, expected))
    protocol = f"TerminalError: .*the recovery log cannot be reached.*{PROTOCOL}.*correct the host and the port"
    with server(b"SSH-2.0-OpenSSH_9\r\n", greets=True) as port:
        check_logs(HERE, port, dict.fromkeys(LOGS, protocol))


def test_a_log_behind_a_closed_port_is_waited_for_briefly_in_the_first_batch_only(closed: int) -> None:
    check_logs(HERE, closed, dict.fromkeys(LOGS, r"TransientError: .*first batch waits 0\.3 s"))
    check_logs(HERE, closed, dict.fromkeys(LOGS, r"TransientError: (?!.*first batch)"), epoch=1)
