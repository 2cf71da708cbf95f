"""OAuth2 client credentials (RFC 6749 §4.4) against a server: what is asked, and what each answer means."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

from outfall.errors import ConfigurationError, TransientError
from outfall.http import HttpSink
from outfall.http.auth import TokenRequest
from outfall.http.options import HttpOptions
from outfall.testing import LocalDriver
from tests.integration.support.http_receiver import HttpReceiver, Received, Reply
from tests.integration.support.servers import free_port

CLIENT: dict[str, Any] = {"oauth2_client_id": "cli:ent", "oauth2_client_secret": "pa ss/ä&="}


def gives(**answer: Any) -> Reply:
    return Reply(body=json.dumps({"access_token": "hunter2"} | answer).encode())


def asked(receiver: HttpReceiver, reply: Reply, **options: Any) -> tuple[tuple[str, float | None], Received]:
    """Ask for a token; what came of it, and the request."""
    name = receiver.new_target(lambda request: reply)
    given = HttpOptions(url="https://x.example/", oauth2_token_url=receiver.url(name), **(CLIENT | options))
    found = TokenRequest(given)()
    (request,) = receiver.targets[name].requests
    return found, request


def test_the_client_names_itself_by_basic_and_asks_for_its_scopes(receiver: HttpReceiver) -> None:
    found, request = asked(receiver, gives(expires_in=3600, token_type="bearer"), oauth2_scope="read write")
    assert found == ("hunter2", 3600.0)
    assert request.records == [{"grant_type": "client_credentials", "scope": "read write"}]
    assert (request.method, request.headers["accept"]) == ("POST", "application/json")
    kind, _, proof = request.headers["authorization"].partition(" ")
    # RFC 6749 §2.3.1: each is form-encoded first, so that a colon in the name does not part it.
    name, password = base64.b64decode(proof).decode("ascii").split(":")
    assert (kind, unquote_plus(name), unquote_plus(password)) == ("Basic", "cli:ent", "pa ss/ä&=")


def test_without_scopes_none_is_asked_for(receiver: HttpReceiver) -> None:
    _, request = asked(receiver, gives())
    assert request.records == [{"grant_type": "client_credentials"}]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [({}, None), ({"expires_in": None}, None), ({"expires_in": "60"}, 60.0), ({"expires_in": "soon"}, None)],
)
def test_how_long_a_token_is_good(receiver: HttpReceiver, given: dict[str, Any], seconds: float | None) -> None:
    assert asked(receiver, gives(**given))[0] == ("hunter2", seconds)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (
            Reply(
                401, body=b'{"error": "invalid_client", "error_description": "no audience", "access_token": "hunter2"}'
            ),
            "401, 'invalid_client': 'no audience'",
        ),
        (Reply(400, body=b'{"error": "invalid_scope"}'), "400, 'invalid_scope'"),
        (Reply(403, body=b'["hunter2"]'), "responded with 403"),
        (Reply(404, body=b"<html>hunter2"), "responded with 404"),
        (Reply(302, headers={"Location": "/hunter2"}), "responded with 302"),
        (Reply(body=b"hunter2"), "responded with 200"),
        (Reply(body=b'{"token": "hunter2"}'), "responded with 200"),
        (gives(access_token=None), "responded with 200"),
        (gives(token_type="mac"), "responded with 200"),
        (Reply(body=b'{"access_token": "hunter2"', manner="endless"), "responded with 200"),
    ],
)
def test_a_refusal_stops_the_query_and_says_why(receiver: HttpReceiver, reply: Reply, why: str) -> None:
    with pytest.raises(ConfigurationError, match="returned no bearer token") as caught:
        asked(receiver, reply)
    assert why in str(caught.value)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("token", ["hunter2\r\nX-Evil: 1", "hunter2€", ""])
def test_a_token_that_makes_no_header_is_refused_without_its_value(receiver: HttpReceiver, token: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"the token of http://.* contains a character that is not allowed"
    ) as caught:
        asked(receiver, gives(access_token=token))
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(500), Reply(503), Reply(429), Reply(408, body=b'{"error": "invalid_client"}'), Reply(manner="reset"),
        Reply(body=b'{"access_token": "hunter2"}', manner="short"),
        Reply(headers={"Content-Encoding": "gzip"}, body=b"no gzip"),
    ],
)  # fmt: skip
def test_a_server_in_trouble_may_be_asked_again(receiver: HttpReceiver, reply: Reply) -> None:
    with pytest.raises(TransientError, match="returned no token") as caught:
        asked(receiver, reply)
    assert "hunter" not in str(caught.value)


def test_a_server_that_is_not_there_may_come_back() -> None:
    port = free_port()
    with pytest.raises(TransientError, match="ConnectionError"):
        TokenRequest(HttpOptions(url="https://x/", oauth2_token_url=f"http://127.0.0.1:{port}/?a=hunter2", **CLIENT))()


def test_rows_are_sent_with_one_token_and_one_more_after_it_was_refused(receiver: HttpReceiver, tmp_path: Path) -> None:
    tokens = receiver.new_target(lambda request: gives(access_token=f"t{request.number}", expires_in=3600))
    good = {"Bearer t0"}

    def behave(request: Received) -> Reply:
        if request.number == 3:
            good.clear()
            good.add("Bearer t1")
        known = request.headers["authorization"] in good
        return Reply() if known else Reply(401, accepts=False)

    name = receiver.new_target(behave)
    sink = HttpSink(
        receiver.url(name), oauth2_token_url=receiver.url(tokens), max_batch_size=5, max_in_flight_requests=1,
        **CLIENT,
    )  # fmt: skip
    driver = LocalDriver(sink, str(tmp_path))
    for epoch in range(2):
        driver.run_epoch(epoch, [[{"id": 20 * epoch + number} for number in range(20)]])
    assert [record["id"] for record in receiver.targets[name].accepted] == list(range(40))
    assert len(receiver.targets[tokens].requests) == 2
    assert len(receiver.targets[name].requests) == 9
