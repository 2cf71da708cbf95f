"""`HttpSink` through a forward proxy, which the environment names or a session has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from outfall.errors import OutfallError, TargetError, TransientError
from outfall.http import HttpSink
from outfall.testing import LocalDriver
from tests.integration.http.test_tls import certificate, tls_receiver
from tests.integration.support.forward_proxy import ForwardProxy
from tests.integration.support.http_receiver import HttpReceiver, Reply
from tests.integration.support.servers import free_port

__all__ = ["certificate", "tls_receiver"]

FAR = "http://far.invalid"
"""A host that only the proxy finds."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def proxy(receiver: HttpReceiver) -> Iterator[ForwardProxy]:
    with ForwardProxy({"far.invalid": ("127.0.0.1", receiver.port)}).running() as running:
        yield running


def write(directory: Path, url: str, rows: int = 10, **options: Any) -> None:
    sink = HttpSink(url, **({"max_batch_size": 5, "max_retries": 1, "retry_backoff": 0.001} | options))
    LocalDriver(sink, str(directory)).run_epoch(0, [[{"id": number} for number in range(rows)]])


def ids(receiver: HttpReceiver, name: str) -> list[int]:
    return sorted(record["id"] for record in receiver.targets[name].accepted)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_that_the_environment_names_carries_the_requests(
    receiver: HttpReceiver, proxy: ForwardProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, proxy.url)
    name = receiver.new_target(lambda request: Reply(503 if request.number == 0 else 200, accepts=request.number > 0))
    assert HttpSink(f"{FAR}/{name}").delegate.needs_proxy()
    write(tmp_path, f"{FAR}/{name}", query={"key": "ä"}, max_in_flight_requests=1)
    assert ids(receiver, name) == list(range(10))
    assert proxy.seen == [f"POST {FAR}/{name}?key=%C3%A4"] * 3
    keys = [request.key for request in receiver.targets[name].requests]
    assert keys[0] == keys[1] != keys[2]


def test_tls_goes_through_a_tunnel_and_only_the_proxy_hears_its_password(
    tls_receiver: HttpReceiver, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tls_receiver.new_target()
    with ForwardProxy(password="hunter2").running() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        write(tmp_path, tls_receiver.url(name), ca_bundle=str(certificate), bearer_token="t", max_in_flight_requests=1)
        assert proxy.seen == [f"CONNECT 127.0.0.1:{tls_receiver.port}"]
    assert ids(tls_receiver, name) == list(range(10))
    requests_seen = tls_receiver.targets[name].requests
    assert {request.headers["authorization"] for request in requests_seen} == {"Bearer t"}
    assert not any("proxy-authorization" in request.headers for request in requests_seen)


def test_a_certificate_is_verified_through_a_tunnel_too(
    tls_receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tls_receiver.new_target()
    with ForwardProxy().running() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(TargetError, match="is not trusted"):
            write(tmp_path, tls_receiver.url(name))
    assert not tls_receiver.targets[name].requests


def test_hosts_that_need_no_proxy_are_asked_directly(
    receiver: HttpReceiver, proxy: ForwardProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    name = receiver.new_target()
    assert not HttpSink(receiver.url(name)).delegate.needs_proxy()
    write(tmp_path, receiver.url(name))
    assert (ids(receiver, name), proxy.seen) == (list(range(10)), [])


def test_a_session_brings_a_proxy_of_its_own(receiver: HttpReceiver, proxy: ForwardProxy, tmp_path: Path) -> None:
    session = requests.Session()
    session.proxies = {"http": proxy.url}
    name = receiver.new_target()
    write(tmp_path, f"{FAR}/{name}", session=session)
    assert (ids(receiver, name), len(proxy.seen)) == (list(range(10)), 2)
    assert "not tested" in HttpSink(f"{FAR}/{name}", session=session).check_connection()[0]


@pytest.mark.parametrize("tls", [False, True])
def test_a_proxy_that_refuses_us_is_named_and_its_password_is_not(
    receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    with ForwardProxy(password="right").running() as proxy:
        monkeypatch.setenv("HTTPS_PROXY" if tls else "HTTP_PROXY", proxy.url.replace("right", "hunter2"))
        with pytest.raises(OutfallError) as caught:
            write(tmp_path, f"http{'s' if tls else ''}://far.invalid/x", rows=1)
        assert proxy.seen
    assert "hunter2" not in str(caught.value)
    assert "aHVudGVy" not in str(caught.value)
    assert "bWU6aHVudGVyMg" not in str(caught.value)
    assert "407" in str(caught.value)
    assert not tls or "the proxy on the way to far.invalid:443 cannot be reached" in str(caught.value)


def test_a_proxy_that_is_not_there_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("HTTP_PROXY", f"http://me:hunter2@127.0.0.1:{port}")
    with pytest.raises(
        TransientError, match=r"attempts: 2.*the proxy on the way to far.invalid:80 cannot be reached .ECONNREFUSED"
    ) as caught:
        write(tmp_path, f"{FAR}/x", rows=1)
    assert "hunter2" not in str(caught.value)
