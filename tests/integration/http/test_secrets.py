"""No credential comes back in a text, whoever gave it and however a server says it (scenario H10)."""

from __future__ import annotations

import base64
import html
import json
import quopri
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

import pytest
import requests

from outfall.errors import OutfallError, TargetError
from outfall.file import FileSink
from outfall.http import Response
from tests.integration.http.trial import WAYS, Trial, options_of, refused
from tests.integration.support.http_receiver import Behaviour, HttpReceiver, Received, Reply
from tests.one_each import one_each


def test_a_server_that_says_secrets_back_does_not_bring_them_into_errors(trial: Trial) -> None:
    def behave(request: Received) -> Reply:
        return refused(403, body=f"{request.headers} {request.path}".encode())

    with pytest.raises(TargetError, match=r"responded with 403.*Bearer \*\*\*") as caught:
        trial.run(behave, bearer_token="hunter2", headers={"X-Api-Key": "hunter3"}, query={"key": "hunter4"})
    assert "hunter" not in str(caught.value)


SESSION_SECRETS: list[dict[str, Any]] = [
    {"username": "me", "password": "hunter5"},
    {"auth": ("X", "hunter6")},
    {"header": ("X-Api-Key", "hunter7")},
    {"cookie": "hunter8"},
    {},
]


@pytest.mark.parametrize(("secret", "status"), one_each(SESSION_SECRETS, [403, 400, 503]))
def test_no_secret_comes_back_whoever_gave_it_and_however_it_is_written(
    trial: Trial, secret: dict[str, Any], status: int
) -> None:
    def behave(request: Received) -> Reply:
        basic = request.headers.get("authorization", "").removeprefix("Basic ")
        said = {
            "path": request.path, "query": unquote_plus(request.path), "plain": base64.b64decode(basic).decode(),
            "headers": {name: request.headers.get(name) for name in ("authorization", "x-api-key", "cookie")},
        }  # fmt: skip
        return refused(status, body=json.dumps(said).encode())

    options = {name: value for name, value in secret.items() if name in ("username", "password")}
    if secret and not options:
        options["session"] = session = requests.Session()
        session.auth = secret.get("auth")
        session.headers.update([secret["header"]] if "header" in secret else [])
        session.cookies.update({"id": secret["cookie"]} if "cookie" in secret else {})
    with pytest.raises(OutfallError) as caught:
        trial.run(
            behave, rows=1, path="?token=hunter1%2F%C3%A4&n=1", query={"key": "hunter2/ö"}, max_retries=0, **options
        )
    assert "message" in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert "?token=***" in str(caught.value)
    assert trial.target.requests


ECHOES: dict[str, Callable[[str], str]] = {
    "PHP's JSON": lambda text: json.dumps(text).replace("/", "\\/"),
    "HTML": lambda text: html.escape(text).replace("/", "&#x2F;"),
    "percent in lower case": lambda text: quote(text, safe="").lower(),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode(),
    "percent in PHP's JSON": lambda text: json.dumps(quote(text)).replace("/", "\\/"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
}


@pytest.mark.parametrize(
    ("way", "echo"),
    one_each([{"bearer_token": "hunter/2+=&ä"}, {"username": "me", "password": "h/?>~unter2"}], ECHOES),
)
def test_a_server_that_echoes_credentials_brings_them_into_no_error_dead_letter_log_or_traceback(
    trial: Trial, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: dict[str, Any], echo: str
) -> None:
    """Scenario H10: what is sent, and the password in it, in the encodings that servers answer in."""

    def echoing(status: int) -> Behaviour:
        def behave(request: Received) -> Reply:
            sent = request.headers["authorization"]
            plain = base64.b64decode(sent.partition(" ")[2]).decode() if "username" in way else ""
            return refused(status, body=ECHOES[echo](f"your {sent} is {plain}").encode())

        return behave

    def per_item(answer: Response, count: int) -> list[int]:
        raise ValueError(f"cannot read {answer.body.decode()}")

    letters = FileSink(tmp_path / "dead")
    said: list[str] = []
    more: dict[int, dict[str, Any]] = {
        403: {}, 400: {"dead_letter": letters}, 503: {"max_retries": 1}, 207: {"per_item": per_item},
    }  # fmt: skip
    for status in more:
        try:
            trial.run(echoing(status), rows=1, log_rows="full", **(way | more[status]))
        except OutfallError as error:
            said.append("".join(traceback.format_exception(error)))
    said += [path.read_text() for path in (tmp_path / "dead").glob("*.jsonl")] + [caplog.text]
    assert all("***" in text for text in said)
    assert len(said) == 5
    secret = way.get("bearer_token") or way["password"]
    hidden = [secret, f"me:{secret}", base64.b64encode(f"me:{secret}".encode()).decode()]
    for text in said:
        read = unquote(html.unescape(quopri.decodestring(text.encode()).decode("utf-8", "replace")).replace("\\", ""))
        assert not any(form in seen for form in [*hidden, "unter2", "hunter"] for seen in (text, read))


@pytest.mark.parametrize(("status", "way"), one_each([307, 308], WAYS))
def test_a_redirect_keeps_the_body_and_leaves_credentials_behind(
    trial: Trial, tmp_path: Path, status: int, way: dict[str, Any]
) -> None:
    with HttpReceiver().running() as other:
        there = other.new_target()
        location = {"Location": other.url(there)}
        trial.run(
            lambda request: refused(status, headers=location), max_batch_size=5, max_in_flight_requests=1,
            bearer_token="hunter2", headers={"X-Api-Key": "hunter2"}, **options_of(way),
        )  # fmt: skip
        received = other.targets[there].requests
        assert [record["id"] for record in other.targets[there].accepted] == list(range(10))
        assert [request.key for request in received] == trial.keys
        assert "hunter2" not in repr(received)
    assert all("hunter2" in repr(request) for request in trial.target.requests)
