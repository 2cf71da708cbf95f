"""The client over real sockets: credentials, TLS, proxies, several URLs, outages; and no secret in any text."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError
from outfall.schema_registry import SchemaRegistryOptions
from outfall.schema_registry.client import SchemaRegistry
from outfall.schema_registry.schemas import Schema
from tests.integration.support.certificates import self_signed
from tests.integration.support.forward_proxy import ForwardProxy
from tests.integration.support.http_receiver import HttpReceiver, Reply
from tests.integration.support.schema_registry import ModelRegistry, model_registry
from tests.integration.support.servers import free_port

LONG = '"long"'
BASIC = {"username": "me", "password": "hunter2"}
OAUTH = {"oauth2_client_id": "me", "oauth2_client_secret": "hunter2"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def registry() -> Iterator[ModelRegistry]:
    with model_registry() as running:
        running.register("s", LONG)
        yield running


def client(url: str, **options: Any) -> SchemaRegistry:
    given = {"url": url, "request_timeout": 5, "retry_deadline": 0.001} | options
    return SchemaRegistry(SchemaRegistryOptions.parse(given))


def test_basic_and_a_password_that_is_exchanged(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    with model_registry(users={"me": "hunter2"}) as running:
        running.register("s", LONG)
        asked = client(running.url, username="me", password=f"file:{secret}")
        assert asked.version("s").id == 1
        running.users = {"me": "hunter3"}
        secret.write_text("hunter3")
        assert asked.version("s").id == 1


def test_a_token_of_oauth_is_fetched_once_and_again_after_it_is_refused() -> None:
    with model_registry(users={"me": "hunter2"}, token="first") as running:
        running.register("s", LONG)
        asked = client(running.url, oauth2_token_url=f"{running.url}/oauth/token", **OAUTH)
        asked.version("s")
        asked.version("s")
        running.token = "second"
        assert asked.version("s").id == 1
        assert [path for _, path in running.requests].count("/oauth/token") == 2


def test_a_registry_without_tls_is_not_taken_for_one_that_is_not_trusted(registry: ModelRegistry) -> None:
    with pytest.raises(TargetError, match=r"TLS is not possible at this address.*whether TLS is used"):
        client(registry.url.replace("http:", "https:")).version("s")


def test_the_authority_of_the_registry_must_be_trusted(tmp_path: Path) -> None:
    certificate = tmp_path / "server.pem"
    certificate.write_bytes(self_signed("127.0.0.1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with model_registry(tls=context) as running:
        running.register("s", LONG)
        assert client(running.url, ca_bundle=str(certificate)).version("s").id == 1
        with pytest.raises(TargetError, match="no trusted certificate"):
            client(running.url).version("s")


@pytest.mark.parametrize("named", [True, False])
def test_a_proxy_with_a_password(registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    hosts = {"far.invalid": ("127.0.0.1", registry.port)}
    with ForwardProxy(hosts, password="hunter2").running() as proxy:
        if not named:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
        asked = client("http://far.invalid", **({"proxy": proxy.url} if named else {}))
        assert asked.version("s").id == 1
        assert proxy.seen[0] == "GET http://far.invalid/subjects/s/versions/latest"


def test_the_next_url_is_asked_where_one_does_not_respond_and_stays_the_first(registry: ModelRegistry) -> None:
    with model_registry() as failing:
        failing.fail(500)
        asked = client(f"http://127.0.0.1:{free_port()},{failing.url},{registry.url}")
        assert asked.version("s").id == 1
        assert asked.version("s").id == 1
        assert len(failing.requests) == 1


def test_an_outage_is_waited_for_until_the_deadline(registry: ModelRegistry) -> None:
    registry.fail(503, times=3)
    assert client(registry.url, retry_deadline=timedelta(minutes=1)).version("s").id == 1
    registry.stop()
    with pytest.raises(TransientError, match=r"did not return .* \(retry_deadline\)\. \S+ does not respond\. [^_]"):
        client(registry.url).version("s")


def test_a_registry_without_its_data_is_not_mistaken_for_the_former_one(registry: ModelRegistry) -> None:
    asked = client(registry.url)
    assert asked.version("s").id == 1
    registry.forget()
    registry.register("s", '"string"')
    with pytest.raises(TargetError, match="two schemas with the id 1"):
        asked.version("s")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (BASIC, ConfigurationError),
        ({"bearer_token": "hunter2"}, ConfigurationError),
        ({"headers": {"X-Key": "hunter2"}}, ConfigurationError),
    ],
)
def test_what_a_server_repeats_of_secrets_is_masked(options: dict[str, Any], kind: type[OutfallError]) -> None:
    def repeating(request: Any) -> Reply:
        return Reply(403, body=" ".join(request.headers.values()).encode())

    with HttpReceiver().running() as receiver:
        asked = client(receiver.url(receiver.new_target(repeating)), **options)
        with pytest.raises(kind) as caught:
            asked.register("s", Schema(LONG))
    assert "hunter2" not in str(caught.value)
    assert "bWU6aHVudGVyMg" not in str(caught.value)


def test_a_body_without_end_is_not_read_for_ever() -> None:
    with HttpReceiver().running() as receiver:
        name = receiver.new_target(lambda request: Reply(body=b'{"x": "', manner="endless"))
        with pytest.raises(TransientError, match="incomplete"):
            client(receiver.url(name), request_timeout=0.3).register("s", Schema(LONG))
