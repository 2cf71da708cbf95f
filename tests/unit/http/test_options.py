"""Options of the HTTP sink: what is refused before the first row, what it promises, and what is never shown."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
import requests
from requests.auth import HTTPDigestAuth

from outfall.capabilities import Guarantee, SupportsPreWriteTopology, WriterInitContext
from outfall.capability_checks import capabilities_of, check_sink, resolve
from outfall.errors import ConfigurationError
from outfall.http import HttpSink, sink_from_options
from outfall.http.options import HttpOptions
from outfall.source_options import check_for_options

URL = "https://api.example/events"
CONTEXT = WriterInitContext("sink", "i" * 16, generation=1, epoch=0, part=None, attempt=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://x/y"}, "absolute URL"),
        ({"url": "https:///y"}, "absolute URL"),
        ({"url": "https://user:hunter2@x/y"}, "set username and password"),
        ({"url": "https://{host}/y"}, "never in the host"),
        ({"url": "https://x:{port}/y"}, "as a number"),
        ({"url": "https://x/y#z"}, "fragment"),
        ({"url": "https://x/{}", "body": "record"}, "column name"),
        ({"url": "https://x/ä"}, "ASCII"),
        ({"url": "https://x/a/../b"}, "segment"),
        ({"url": "https://x/{id}"}, "set body=record"),
        ({"body": "record", "max_batch_size": 5}, "one record per request"),
        ({"idempotency": "row", "body": "record"}, "requires key_column"),
        ({"key_column": "id"}, "requires key_column"),
        ({"idempotency": "row", "key_column": "id"}, "body=record"),
        ({"idempotency": "content"}, "body=record"),
        ({"idempotency": "content", "body": "record", "across_epochs": True}, "routes rows itself"),
        ({"username": "me"}, "must be set together"),
        ({"bearer_token": "hunter2", "username": "me", "password": "hunter2"}, "exclude each other"),
        ({"bearer_token": "hunter2", "headers": {"authorization": "hunter2"}}, "exclude each other"),
        ({"oauth2_token_url": "https://x/token"}, "OAuth2 needs"),
        ({"oauth2_token_url": "ftp://x/token"}, "must be an http"),
        ({"headers": {"Content-Length": "1"}}, "is set by the sink"),
        ({"headers": {"ACCEPT-encoding": "gzip"}}, "is set by the sink"),
        ({"headers": {"expect": "100-continue"}}, "is set by the sink"),
        ({"headers": {"idempotency-KEY": "hunter2"}}, "carries the key of idempotency request"),
        ({"headers": {"x-id": "hunter2"}, "idempotency_header": "X-Id"}, "X-Id carries the key"),
        ({"headers": {"A b": "1"}}, "not a valid header name"),
        ({"headers": "hunter2"}, "must be a mapping of names"),
        ({"idempotency_header": "Host"}, "is set by the sink"),
        ({"content_type": "a\r\nb"}, "printable"),
        ({"client_key": "k"}, "client_certificate"),
        ({"verify": False, "ca_bundle": "x"}, "set one"),
        ({"wrap_key": "x"}, "wrap_key"),
        ({"statuses": "99=retry"}, "not a status"),
        ({"statuses": "404=ignore"}, "not one of"),
        ({"statuses": 5}, "mapping of statuses"),
        ({"max_record_size_in_bytes": 10, "max_batch_size_in_bytes": 5}, "must not be less"),
        ({"no_such_option": 1}, "unknown"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        HttpSink(**({"url": URL} | options))
    assert "hunter2" not in str(caught.value)


def test_without_a_key_of_the_sinks_own_its_header_is_the_users() -> None:
    HttpSink(URL, idempotency="none", headers={"Idempotency-Key": "abc"})
    HttpSink(URL, idempotency="item", key_column="id", headers={"Idempotency-Key": "abc"})
    HttpSink(URL, idempotency_header="X-Id", headers={"Idempotency-Key": "abc"})


@pytest.mark.parametrize(
    ("options", "guarantee", "required"),
    [
        ({}, Guarantee.AT_LEAST_ONCE, ()),
        ({"idempotency": "none"}, Guarantee.AT_LEAST_ONCE, ()),
        ({"body": "record", "idempotency": "row", "key_column": "id"}, Guarantee.EFFECTIVELY_ONCE, ("keys", "'id'")),
        ({"body": "record", "idempotency": "content"}, Guarantee.EFFECTIVELY_ONCE, ("keys", "same rows")),
        ({"idempotency": "item", "key_column": "id"}, Guarantee.EFFECTIVELY_ONCE, ("drops an item", "'id'")),
    ],
)
def test_only_keys_that_come_back_with_the_same_rows_make_it_effectively_once(
    options: dict[str, Any], guarantee: Guarantee, required: tuple[str, ...]
) -> None:
    sink = HttpSink(URL, **options)
    check_sink(sink)
    assert resolve(sink).guarantee() is guarantee
    assert len(resolve(sink).requirements()) == len(required)
    assert all(word in text for word, text in zip(required, resolve(sink).requirements(), strict=True))
    assert (sink.kind(), sink.target()) == ("http", f"POST {URL}")


def test_routing_by_content_is_refused_where_rows_cannot_be_routed() -> None:
    sink = HttpSink(URL, body="record", idempotency="content")
    assert SupportsPreWriteTopology in capabilities_of(sink)
    with pytest.raises(ConfigurationError, match="write_stream"):
        check_for_options(sink, "http")
    assert SupportsPreWriteTopology not in capabilities_of(HttpSink(URL))
    check_for_options(HttpSink(URL), "http")


def test_routing_by_content_takes_no_number_of_workers() -> None:
    pytest.importorskip("pyspark", reason="the other tests need no pyspark at all")
    from outfall.spark import settings

    sink = HttpSink(URL, body="record", idempotency="content")
    with pytest.raises(ConfigurationError, match="omit workers"):
        settings.StepSettings(workers=4).check(sink)
    settings.StepSettings().check(sink)


def test_a_sink_survives_pickling_and_shows_no_secret() -> None:
    text = {
        "url": f"{URL}?key=hunter2",
        "headers": '{"X-Api-Key": "hunter2"}',
        "query": '{"token": "hunter2"}',
        "bearerToken": "hunter2",
        "maxInFlightRequests": "7",
        "requesttimeout": "5 seconds",
        "statuses": "404=dead_letter, 409=complete",
    }
    sink = pickle.loads(pickle.dumps(sink_from_options(text)))
    assert (sink.delegate.http.max_in_flight_requests, sink.delegate.http.request_timeout.total_seconds()) == (7, 5)
    http = sink.delegate.http
    shown = [repr(sink), str(sink), sink.target(), str(sink.delegate.host()), repr(http.headers), repr(http.query)]
    assert "hunter2" not in "".join(shown)


def test_the_content_sink_survives_pickling() -> None:
    sink = pickle.loads(pickle.dumps(HttpSink(URL, body="record", idempotency="content").bind(CONTEXT)))
    assert sink.delegate.context == CONTEXT
    assert type(sink.delegate).__name__ == "ContentRequestSink"


def test_authentication_is_given_once() -> None:
    session = requests.Session()
    session.auth = ("me", "hunter2")
    HttpSink(URL, session=session)
    with pytest.raises(ConfigurationError, match="two kinds"):
        HttpSink(URL, session=session, auth=HTTPDigestAuth("me", "x"))
    with pytest.raises(ConfigurationError, match="two kinds"):
        HttpSink(URL, bearer_token="x", auth=HTTPDigestAuth("me", "x"))
    with pytest.raises(ConfigurationError, match="AuthBase"):
        HttpSink(URL, auth=("me", "x"))  # type: ignore[arg-type]


def test_columns_that_are_missing_or_have_no_plain_text_are_refused() -> None:
    sink = HttpSink("https://x/{user}", body="record", idempotency="row", key_column="id")
    with pytest.raises(ConfigurationError, match="the url requires the column 'user', and the rows have id"):
        sink.check_schema(pa.schema([("id", pa.int64())]))
    with pytest.raises(ConfigurationError, match="idempotency key cannot use column 'id' of type double"):
        sink.check_schema(pa.schema([("user", pa.string()), ("id", pa.float64())]))
    with pytest.raises(ConfigurationError, match="JSON does not support column 'd'"):
        sink.check_schema(pa.schema([("user", pa.string()), ("id", pa.int64()), ("d", pa.duration("us"))]))
    sink.check_schema(pa.schema([("user", pa.string()), ("id", pa.int64())]))


def test_defaults_are_the_deadline_thirty_seconds_and_powers_of_two() -> None:
    options = HttpOptions(url=URL)
    policy = options.retry_policy()
    assert (options.max_retries, options.request_timeout.total_seconds()) == (None, 30)
    assert [policy.pause(n, 0.0, lambda: 1.0) for n in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]
    assert policy.pause(9, 299.5, lambda: 1.0) is None
    assert options.verify
