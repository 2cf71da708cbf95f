"""Responses without bounds: each client ends its read in bytes, depth and time, with a clear error."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from outfall.async_sink import ErrorAction, responses
from outfall.aws import client as aws
from outfall.aws.errors import classify
from outfall.dynamodb.options import DynamoDBConnection
from outfall.dynamodb.table import DynamoDBRecords
from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.http.auth import TokenRequest
from outfall.http.options import HttpOptions
from outfall.http.session import SessionTransport
from outfall.http.transport import Call, ExchangeError
from outfall.opensearch import client as opensearch
from outfall.opensearch.client import OpenSearchConnection
from outfall.options import make_options
from tests.integration.support.bad_responses import DEEP, ENDLESS, HTML, answers, bomb, cut, whole

QUICK = 0.5
"""Seconds that a client reads."""


def ask_opensearch(url: str) -> None:
    given = {"url": url, "connect_timeout": 5, "read_timeout": QUICK, "max_in_flight_requests": 2}
    make_options(OpenSearchConnection, given).make().send("POST", "/_bulk", b"{}")


def ask_dynamodb(url: str) -> None:
    given = {"region": "eu-west-1", "endpoint_url": url, "connect_timeout": 5, "read_timeout": QUICK}
    client = make_options(DynamoDBConnection, given).make()
    try:
        DynamoDBRecords(client, "t", "p").read("x")
    except OutfallError:
        raise
    except Exception as error:
        raise (TransientError if classify(error) is ErrorAction.RETRY else AssertionError)(str(error)) from error


def ask_oauth(url: str) -> None:
    given = {"oauth2_token_url": url, "oauth2_client_id": "me", "oauth2_client_secret": "hunter2"}
    made = make_options(HttpOptions, {"url": "https://x", "read_timeout": QUICK} | given)
    TokenRequest(made)()


def ask_session(url: str) -> None:
    made = make_options(HttpOptions, {"url": url, "read_timeout": QUICK, "max_response_bytes": 1000})
    call = Call("POST", url, b"", (), (), True, time.monotonic() + QUICK, False)
    try:
        answer = SessionTransport(made).exchange(call)
    except ExchangeError as error:
        raise TransientError(str(error)) from error
    assert len(answer.body) <= 1000
    if not answer.whole:
        raise TransientError("incomplete")


CLIENTS: dict[str, Callable[[str], None]] = {
    "opensearch": ask_opensearch,
    "dynamodb": ask_dynamodb,
    "oauth": ask_oauth,
    "session": ask_session,
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    boto3.DEFAULT_SESSION = None


def failure(client: str, url: str) -> OutfallError:
    began = time.monotonic()
    with pytest.raises((TransientError, ConfigurationError)) as caught:
        CLIENTS[client](url)
    assert time.monotonic() - began < 8 * QUICK
    return caught.value


@pytest.mark.parametrize("client", CLIENTS)
def test_a_body_that_arrives_byte_by_byte_ends_in_time(client: str) -> None:
    with answers(whole(b'{"a": "%b"}' % (b"x" * 200)), slowly_from=100) as url:
        failure(client, url)


def test_a_head_that_arrives_byte_by_byte_ends_in_time() -> None:
    with answers(whole(b'{"a": 1}'), slowly_from=5) as url:
        failure("opensearch", url)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_body_without_end_fills_no_memory(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (responses, aws, opensearch):
        monkeypatch.setattr(module, "LARGEST", 1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with answers(ENDLESS, then=b" " * (1 << 16)) as url:
        failure(client, url)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.thorough
@pytest.mark.parametrize("client", ["opensearch", "oauth", "session"])
def test_a_body_that_unfolds_fills_no_memory(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opensearch, "LARGEST", 1 << 20)
    response = bomb(300 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with answers(response) as url:
        failure(client, url)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("client", ["opensearch", "dynamodb", "oauth"])
@pytest.mark.parametrize("response", [DEEP, cut(b'{"Item": {'), whole(b"7" * 5000)], ids=["deep", "cut", "number"])
def test_what_cannot_be_parsed_is_an_error_that_says_so(client: str, response: bytes) -> None:
    with answers(response) as url:
        failure(client, url)


def test_html_with_200_names_what_came() -> None:
    with answers(HTML) as url:
        for client in ("opensearch", "dynamodb"):
            assert "Maintenance until noon" in str(failure(client, url))
        failure("oauth", url)


def test_a_token_server_says_why_it_refuses_without_the_secret() -> None:
    said = b'{"error": "invalid_client", "error_description": "no audience for hunter2", "access_token": "t0ken"}'
    with answers(whole(said).replace(b"200 OK", b"401 No")) as url:
        text = str(failure("oauth", url))
    assert "'invalid_client': 'no audience for ***'" in text
    assert "t0ken" not in text


@pytest.mark.parametrize(
    "body",
    [
        {}, {"items": {}}, {"items": [{"index": {"status": 201}}]},
        {"items": [{"index": {}}, {"index": {"status": 1}}]},
        {"items": [None, {"index": {"status": 201}}]},
    ],
)  # fmt: skip
def test_a_bulk_response_without_a_status_for_each_write_is_unreadable(body: Any) -> None:
    from outfall.opensearch.client import ClusterResponse
    from outfall.opensearch.sink import _items

    with pytest.raises(TransientError, match="has not one status for each"):
        _items(ClusterResponse(200, body, None), 2)
