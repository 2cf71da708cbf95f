"""What one try of a request carries, and where a redirect may take it."""

from __future__ import annotations

import pytest

from outfall.errors import TargetError
from tests.unit.support.http_script import RECORDS, URL, Server, options, reader, redirect, sender


def test_a_request_carries_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "k/ä")
    given = options(
        headers={"X-Api-Key": "plain"}, query={"key": "env:API_KEY"}, bearer_token="t", compression="gzip",
        request_timeout=5, url=f"{URL}?a=1",
    )  # fmt: skip
    server = Server(200)
    sender(server, given).send(given.url, b"body", 'a"b')
    (call,) = server.calls
    assert call.url == f"{URL}?a=1&key=k%2F%C3%A4"
    headers = dict(call.headers)
    assert headers["X-Api-Key"] == "plain"
    assert headers["Authorization"] == "Bearer t"
    assert headers["Content-Encoding"] == "gzip"
    assert headers["User-Agent"] == "outfall"
    assert call.key == (("Idempotency-Key", '"a\\"b"'),)
    assert (call.body, call.deadline, call.repeatable) == (b"body", 105.0, True)


def test_without_a_key_only_idempotent_methods_may_be_repeated_at_once() -> None:
    server = Server(200, 200)
    sender(server, options()).send(URL, b"", None)
    sender(server, options(method="PUT")).send(URL, b"", None)
    assert [(call.key, call.repeatable) for call in server.calls] == [((), False), ((), True)]


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_keeps_method_body_and_key(status: int) -> None:
    server = Server(redirect(status, "/v2?x=1#y"), 200)
    assert sender(server, options(bearer_token="t")).send(URL, b"body", "k").status == 200
    first, second = server.calls
    assert second == first._replace(url="https://api.example/v2?x=1")


@pytest.mark.parametrize(
    "location",
    ["https://other.example/v2", "//other.example/v2", "https://api.example:8443/v2", "https://API.example./"],
)
def test_a_redirect_to_another_origin_carries_neither_auth_nor_headers(location: str) -> None:
    given = options(bearer_token="hunter2", headers={"X-Api-Key": "hunter2"}, query={"token": "hunter2"})
    server = Server(redirect(307, location), redirect(307, "https://api.example/back"), 200)
    sender(server, given).send(URL, b"body", "k")
    for call in server.calls[1:]:
        assert not call.trusted
        assert "hunter2" not in repr(call)
        assert call.body == b"body"
        assert call.key


def test_the_same_host_by_tls_may_have_the_credentials() -> None:
    given = options(url="http://api.example/events", bearer_token="t", allow_unencrypted=True)
    server = Server(redirect(308, "https://api.example/events"), 200)
    sender(server, given).send(given.url, b"", None)
    assert dict(server.calls[1].headers)["Authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://api.example/v2", "from https to 'http://api.example/***'"),
        ("ftp://api.example/v2", "Its Location is"),
        ("https://me:hunter2@api.example/", "Its Location is"),
        ("", "Its Location is ''"),
        ("https://[", "not a valid URL"),
    ],
)
def test_a_redirect_that_leads_nowhere_stops_the_query(location: str, why: str) -> None:
    with pytest.raises(TargetError) as caught:
        sender(Server(redirect(307, location)), options()).send(URL, b"", None)
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_redirects_in_a_circle_end() -> None:
    server = Server(*[redirect(307, "/round")] * 6)
    with pytest.raises(TargetError, match="redirects, and the redirect cannot be followed"):
        sender(server, options()).send(URL, b"", None)
    assert len(server.calls) == 6


@pytest.mark.parametrize("status", [300, 301, 302, 303])
def test_redirects_after_which_clients_drop_the_body_are_not_followed(status: int) -> None:
    server = Server(redirect(status, "/login"))
    answer = sender(server, options()).send(URL, b"", None)
    outcome = reader().read(answer, RECORDS)
    assert isinstance(outcome.error, TargetError)
    assert "correct the url, if it is now 'https://api.example/***'" in str(outcome.error)
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/reset/hunter2", "https://api.example/***"),
        ("https://other.example:444/t/hunter2?x=hunter2#hunter2", "https://other.example:444/***"),
        ("https://me:hunter2@api.example/events/", "https://api.example/events/"),
        ("http://api.example/events", "http://api.example/events"),
        ("//other.example", "https://other.example"),
        ("https://[hunter2", "***"),
        ("mailto:hunter2", "***"),
    ],
)
def test_of_a_location_only_what_is_no_secret_is_shown(location: str, shown: str) -> None:
    error = reader().read(redirect(301, location), RECORDS).error
    assert f"if it is now {shown!r}" in str(error)
    assert "hunter2" not in str(error)


def test_a_redirect_from_a_secret_path_does_not_show_it() -> None:
    server = Server(redirect(307, "/t/hunter2"), redirect(307, "ftp://x/"))
    with pytest.raises(TargetError, match=r"https://api.example/\*\*\* redirects") as caught:
        sender(server, options()).send(URL, b"", None)
    assert "hunter2" not in str(caught.value)
