"""No secret of any sink leaves the process when a server is away, refuses, or repeats what it was sent.

Broken URLs are in tests/unit/api/test_urls.py, the encodings of a secret in tests/unit/api/test_redaction.py.
"""

from __future__ import annotations

import base64
import itertools
import logging
import socket
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from outfall import first_contact
from outfall.capabilities import SupportsDeadLetterSink
from outfall.capability_checks import resolve
from outfall.file import FileSink
from outfall.metrics.exporter import Exporter
from outfall.recovery.url import recovery_config
from outfall.testing import LocalDriver
from outfall.testing.conformance.discarding import DiscardingSink
from tests.generated import destinations
from tests.integration.support.certificates import self_signed
from tests.integration.support.echo_server import echoing
from tests.integration.support.servers import free_port
from tests.unit.support.command import done

HERE = "127.0.0.1"
STEM = "Gh31mN1sZw8Kd"
"""In each secret. Escapes of URLs, JSON and HTML leave it as it is."""
FORMS = [STEM, STEM.encode().hex(), *(base64.b64encode(b" " * n + STEM.encode())[4:-4].decode() for n in range(3))]
AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": f"{STEM}a", "AWS_SESSION_TOKEN": f"{STEM}t"}
ROW = {"id": 1, "data": "x", "deleted": False, "partition": 0, "offset": 1}
SHORT = {"connect_timeout": 2, "read_timeout": 2, "request_timeout": 2, "retry_deadline": 0.2, "delivery_timeout": 1}
"""Options that end a wait, of each sink that has them."""
REFUSALS = (400, 403, 500)


@dataclass(frozen=True)
class Place:
    """What a sink is given for its failure."""

    port: int
    folder: Path

    def secret(self, name: str = "secret") -> str:
        """Return a reference to a file that has another secret each time it is read."""
        path = self.folder / f"{name}.txt"
        path.write_text(STEM)
        return f"file:{path}"

    def key(self) -> str:
        """Return the path of a private key."""
        (self.folder / "key.pem").write_bytes(self_signed(HERE))
        return str(self.folder / "key.pem")


def catalog(name: str, value: str, at: Place) -> dict[str, Any]:
    return {"catalog_options": {"type": "rest", "uri": f"http://{HERE}:{at.port}", name: value}}


def broker(protocol: str, **options: str) -> dict[str, Any]:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return {"client_options": {"security.protocol": protocol} | given}


Given = Callable[[Place], dict[str, Any]]

SECRETS: dict[tuple[str, str], list[Given]] = {
    ("PostgresSink", "dsn"): [
        lambda at: {"dsn": f"postgresql://u:{STEM}%2F%40@{HERE}:{at.port}/d?sslmode=prefer"},
        lambda at: {"dsn": f"host={HERE} port={at.port} user=u dbname=d password='{STEM} \\' x'"},
        lambda at: {"dsn": f"postgresql://u@{HERE}:{at.port}/d?sslpassword={STEM}&sslkey={at.key()}"},
    ],
    ("MySQLSink", "dsn"): [lambda at: {"dsn": f"mysql://u:{STEM}%2F%40@{HERE}:{at.port}/d"}],
    ("S3Sink", "sse_customer_key"): [
        lambda at: {"sse_customer_key": base64.b64encode(f"{STEM:x<32}".encode()).decode()},
    ],
    ("KafkaSink", "client_options"): [
        lambda at: broker("sasl_plaintext", sasl_mechanism="PLAIN", sasl_username="u", sasl_password=at.secret()),
        lambda at: broker("ssl", ssl_key_location=at.key(), ssl_key_password=at.secret()),
    ],
    ("IcebergSink", "catalog_options"): [
        lambda at: catalog("token", at.secret(), at),
        lambda at: catalog("credential", at.secret(), at),
        lambda at: catalog("credential", f"client:{STEM}", at),
        lambda at: catalog("header.x-key", at.secret(), at),
        lambda at: {"catalog_options": {"type": "sql", "uri": f"postgresql+psycopg://u:{STEM}@{HERE}:{at.port}/d"}},
    ],
    ("DeltaSink", "storage_options"): [
        lambda at: {
            "path": "s3://bucket/t",
            "storage_options": {
                "AWS_ENDPOINT_URL": f"http://{HERE}:{at.port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": at.secret(),
                "AWS_SESSION_TOKEN": at.secret("token"), "max_retries": "0",
            },
        },
    ],
    ("DeltaSink", "configuration"): [],
    ("HttpSink", "headers"): [lambda at: {"headers": {"X-Api-Key": at.secret()}}],
    ("HttpSink", "query"): [lambda at: {"query": {"key": at.secret()}}],
    ("HttpSink", "bearer_token"): [lambda at: {"bearer_token": at.secret()}],
    ("HttpSink", "password"): [lambda at: {"username": "u", "password": at.secret()}],
    ("HttpSink", "oauth2_client_secret"): [
        lambda at: {
            "oauth2_token_url": f"http://{HERE}:{at.port}/t", "oauth2_client_id": "c",
            "oauth2_client_secret": at.secret(),
        },
    ],
    ("RedisSink", "password"): [lambda at: {"username": "u", "password": at.secret()}],
    ("OpenSearchSink", "password"): [lambda at: {"username": "u", "password": at.secret()}],
    ("OpenSearchSink", "api_key"): [lambda at: {"api_key": at.secret()}],
}  # fmt: skip
"""Ways to give the secret of an option. A sink that is not here fails a test."""
ADDRESSES = {
    "url": {"HttpSink": "http://{}/rows", "OpenSearchSink": "http://{}", "RedisSink": "redis://{}"},
    "brokers": {"KafkaSink": "{}"},
}
NOT_OF_HTTP = ("PostgresSink", "MySQLSink", "RedisSink", "KafkaSink")
OF_BOTO3 = ("S3Sink", "DynamoDBSink", "KinesisSink", "FirehoseSink")
SINKS = [
    sink
    for package in destinations()
    for sink in package.facts.sinks.values()
    if getattr(sink.options, "writer", None) != "spark" and not getattr(sink.options, "across_epochs", False)
]


def secret_options(sink: Any) -> list[str]:
    return [name for name, found in type(sink.options).model_fields.items() if "SecretStr" in str(found.annotation)]


def cases() -> list[tuple[Any, Given]]:
    """Return each sink with each way to give each of its secrets."""
    given = [
        (sink, way)
        for sink in SINKS
        for option in secret_options(sink)
        for way in SECRETS[type(sink).__name__, option]
    ]  # fmt: skip
    return [*given, *((sink, lambda at: {}) for sink in SINKS if type(sink).__name__ in OF_BOTO3)]


def made(sink: Any, given: Given, place: Place) -> Any:
    """Return a sink of the same kind, with the address and the secret of the case."""
    kind, fields = type(sink), type(sink.options).model_fields
    own = {name: getattr(sink.options, name) for name in sink.options.model_fields_set}
    own = {name: value for name, value in own.items() if value != fields[name].default}
    for option, forms in ADDRESSES.items():
        if kind.__name__ in forms:
            own[option] = forms[kind.__name__].format(f"{HERE}:{place.port}")
    if "endpoint_url" in fields:
        own |= {"endpoint_url": f"http://{HERE}:{place.port}", "region": "us-east-1"}
    if "partition_key" in fields:
        own["partition_key"] = "data"
    if SupportsDeadLetterSink in resolve(sink).capabilities and "parts" not in own:
        own["dead_letter"] = FileSink(place.folder / "dead")
    return kind(**(own | {name: value for name, value in SHORT.items() if name in fields} | given(place)))


def failures(sink: Any, given: Given, place: Place) -> list[str]:
    """Run an epoch, and without its driver one task; return their errors with causes and tracebacks."""
    place.folder.mkdir()
    sink = made(sink, given, place)
    found = []
    for who, run in (("driver", lambda driver: driver.run_epoch(0, rows_of(sink))), ("task", run_task)):
        try:
            run(LocalDriver(sink, str(place.folder / who)))
        except Exception as error:
            found.append(f"{repr(sink)[:80]}: {''.join(traceback.format_exception(error))}")
    return found


def rows_of(sink: Any) -> list[list[Any]]:
    return [[("1", ROW)]] if resolve(sink).fixed else [[ROW]]


def run_task(driver: LocalDriver) -> None:
    if not resolve(driver.sink).fixed:
        with closing(LocalDriver(DiscardingSink(), driver.recovery).coordinator()) as coordinator:
            driver.run_tasks(coordinator.begin(0), 0, [[ROW]])


def shows_a_secret(text: str) -> bool:
    return any(form in text for form in FORMS)


@pytest.fixture(scope="module")
def echo() -> Iterator[dict[int, int]]:
    with echoing(REFUSALS) as ports:
        yield ports


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact, "PATIENCE", 0.2)
    numbers, read = itertools.count(), Path.read_text

    def exchanged(path: Path, *args: Any, **given: Any) -> str:
        text = read(path, *args, **given)
        return f"{STEM}-{next(numbers)}" if text == STEM else text

    monkeypatch.setattr(Path, "read_text", exchanged)
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)


def test_each_secret_of_each_sink_has_a_case() -> None:
    assert {(type(sink).__name__, option) for sink in SINKS for option in secret_options(sink)} == SECRETS.keys()


@pytest.mark.thorough
def test_no_failure_shows_a_secret_or_controls_a_terminal(
    tmp_path: Path, echo: dict[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with socket.socket() as unused, ThreadPoolExecutor(8) as pool:
        unused.bind((HERE, free_port()))
        closed, *refusing = unused.getsockname()[1], *echo.values()
        jobs = [
            pool.submit(failures, *case, Place(port, tmp_path / f"{number}-{port}"))
            for number, case in enumerate(cases())
            for port in (closed, *(refusing[:1] if type(case[0]).__name__ in NOT_OF_HTTP else refusing))
        ]
        errors = [text for job in jobs for text in job.result()]
    logged = [logging.Formatter().format(record) for record in caplog.records if not record.name.startswith("botocore")]
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".txt", ".pem")]
    texts = [path.read_bytes().decode("latin-1") for path in kept]
    commands = [done("status", tmp_path), done("status", tmp_path, "--json"), done("report", tmp_path, "-o", "-")]
    exporter = Exporter.start([recovery_config(str(tmp_path))], host=HERE, port=0, every=60)
    with closing(exporter), urlopen(f"http://{HERE}:{exporter.port}/metrics") as response:
        commands.append(response.read().decode())
    assert len(errors) >= 200
    assert [text for text in [*errors, *logged, *texts, *commands] if shows_a_secret(text)] == []
    assert [text for text in [*errors, *logged, *commands] if "\x1b" in text] == []
