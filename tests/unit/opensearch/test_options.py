"""What `OpenSearchSink` takes, the lines that it sends, the meaning of what comes back; the documentation says so."""

from __future__ import annotations

import base64
import io
import json
import re
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr
from urllib3 import HTTPResponse

from outfall.async_sink import ErrorAction
from outfall.capabilities import Guarantee
from outfall.errors import ConfigurationError, TargetError, TransientError, ValueRefusedError
from outfall.formats.strings import TEXT
from outfall.opensearch import OpenSearchSink
from outfall.opensearch.bulk import action_on, actions, if_unchanged, reason_of
from outfall.opensearch.client import ClusterResponse, OpenSearchClient, OpenSearchConnection
from outfall.opensearch.options import OpenSearchOptions
from outfall.opensearch.sink import OpenSearchPartition, OpenSearchRequestSink, _places
from outfall.options import make_options
from outfall.source_options import make_sink
from outfall.versioned import KeyedBatch, Version
from outfall.versioned.draws import GAP

URL = "https://search.example:9200"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "search:9200"}, "must be an http or https URL"),
        ({"url": "https://user:hunter2-word@search"}, "must contain no credentials"),
        ({"index": None}, "set either index or index_column"),
        ({"index_column": "day"}, "set either index or index_column"),
        ({"index": "Flights"}, "is not the lower-case name"),
        ({"index": "a,b"}, "is not the lower-case name"),
        ({"index": "_all"}, "is not the lower-case name"),
        ({"index": "outfall-records"}, "contains Outfall's own records"),
        ({"key_columns": ()}, "key_columns are required"),
        ({"data_stream": True}, "a data stream has an index, and no key_columns"),
        ({"deletes": "remove"}, "requires delete_marker"),
        ({"deletes": "remove", "delete_marker": "gone", "sequence_column": "n"}, "excludes sequence_column"),
        ({"username": "u", "api_key": "hunter2-word"}, "set only one of"),
        ({"url": "http://search", "password": "hunter2-word"}, "url must be https"),
        ({"delete_marker": "id"}, "delete_marker cannot be in the key"),
    ],
)
def test_wrong_options_are_named_without_secrets(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as failed:
        OpenSearchSink(**({"url": URL, "index": "flights", "key_columns": "id"} | options))
    assert "hunter2-word" not in str(failed.value)


def test_a_sink_by_options_is_the_same_and_says_its_guarantee() -> None:
    made = make_sink("opensearch", {"url": URL, "index": "flights", "keyColumns": "id", "orderColumn": "n"})
    assert repr(made) == "OpenSearchSink('https://search.example:9200', 'flights')"
    assert made.guarantee() is Guarantee.EFFECTIVELY_ONCE
    removing = OpenSearchSink(URL, index="flights", key_columns="id", delete_marker="gone", deletes="remove")
    assert (removing.guarantee(), removing.requires()) == (Guarantee.AT_LEAST_ONCE, ())
    assert OpenSearchSink(URL, index="logs", data_stream=True).guarantee() is Guarantee.AT_LEAST_ONCE


@pytest.mark.parametrize(
    ("item", "action"),
    [
        ({"status": 201}, None),
        ({"status": 404, "result": "not_found"}, None),
        ({"status": 409, "error": {"type": "version_conflict_engine_exception"}}, ErrorAction.RETRY),
        ({"status": 429, "error": {"type": "rejected_execution_exception"}}, ErrorAction.RETRY),
        ({"status": 503, "error": {"type": "unavailable_shards_exception"}}, ErrorAction.RETRY),
        ({"status": 403, "error": {"type": "cluster_block_exception"}}, ErrorAction.RETRY),
        ({"status": 400, "error": {"type": "mapper_parsing_exception"}}, ErrorAction.DEAD_LETTER),
        ({"status": 404, "error": {"type": "index_not_found_exception"}}, ErrorAction.FATAL),
        ({"status": 403, "error": {"type": "security_exception"}}, ErrorAction.FATAL),
    ],
    ids=lambda value: str(value["status"]) if isinstance(value, dict) else value.value if value else "done",
)
def test_items_of_a_response_are_told_apart(item: dict[str, Any], action: ErrorAction | None) -> None:
    assert action_on(item) is action


@pytest.mark.parametrize(
    "name", ["_id", "_source", "_primary_term", "_ignored_source", "", " ", ".a", "a..b", "a. .b", "."]
)
def test_columns_that_no_document_has_are_refused(name: str) -> None:
    sink = OpenSearchSink(URL, index="flights", key_columns="id").delegate
    with pytest.raises(ConfigurationError, match="come from key_columns and index_column"):
        sink.check_schema(pa.schema([("id", pa.int64()), (name, pa.string())]))


def test_other_columns_are_fields() -> None:
    sink = OpenSearchSink(URL, index_column="_index", key_columns="id", delete_marker="_version").delegate
    sink.check_schema(
        pa.schema([(name, pa.string()) for name in ("id", "_index", "_x", "a.b", "a.")] + [("_version", pa.bool_())])
    )


@pytest.mark.parametrize("index", ["outfall-records", "<outfall-records>", "_all", "a*", "Big", "", None, "x" * 256])
def test_rows_choose_no_index_that_is_not_theirs(index: str | None) -> None:
    options = make_options(OpenSearchOptions, {"url": URL, "index_column": "i", "key_columns": "id"})
    with pytest.raises(ValueRefusedError, match="the index of a row"):
        _places(pa.record_batch({"id": ["1", "2"], "i": pa.array(["good", index])}), options)


def answering(monkeypatch: pytest.MonkeyPatch, order: str = "order_column", **answers: Any) -> OpenSearchPartition:
    """A partition whose cluster answers requests to these paths."""
    sink = OpenSearchRequestSink(
        make_options(OpenSearchOptions, {"url": URL, "index": "i", "key_columns": "id", order: "n"})
    )
    monkeypatch.setattr(sink, "version", lambda: Version(GAP, "token"))
    partition = OpenSearchPartition(sink)

    def send(method: str, path: str, *_: Any, **__: Any) -> ClusterResponse:
        return ClusterResponse(200, next(answer for part, answer in answers.items() if part in path), None)

    monkeypatch.setattr(partition._client, "send", send)
    return partition


ROWS = pa.record_batch({"id": ["1", "2"], "n": [1, 2]})


@pytest.mark.parametrize("body", [{}, {"items": []}, {"items": [{"index": {"status": 201}}]}])
def test_a_response_that_does_not_match_the_documents_may_pass(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    partition = answering(monkeypatch, _bulk=body, _settings={"i": {"settings": {}}})
    with pytest.raises(TransientError, match="has not one status for each"):
        partition.send(partition.convert(ROWS))


@pytest.mark.parametrize(
    ("kind", "passes"), [("no_shard_available_action_exception", True), ("illegal_argument_exception", False)]
)
def test_a_document_that_cannot_be_read_is_not_stale(monkeypatch: pytest.MonkeyPatch, kind: str, passes: bool) -> None:
    conflict = {"index": {"_index": "i", "status": 409, "error": {"type": "version_conflict_engine_exception"}}}
    unread = {"_index": "i", "_id": "2", "error": {"type": kind, "reason": "why"}}
    partition = answering(
        monkeypatch,
        _bulk={"items": [{"index": {"_index": "i", "status": 201}}, conflict]},
        _mget={"docs": [unread]},
        _settings={"i": {"settings": {}}},
    )
    entries = list(partition.convert(ROWS))
    outcome = partition.send(entries)
    assert outcome.retry == (entries[1:] if passes else ())
    assert (outcome.error is None) == passes
    assert passes or "why" in str(outcome.error)


@pytest.mark.parametrize("order", ["order_column", "sequence_column"])
def test_a_row_with_a_sequence_waits_until_the_version_of_a_removed_tombstone_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    conflict = {"index": {"_index": "i", "status": 409, "error": {"type": "version_conflict_engine_exception"}}}
    partition = answering(
        monkeypatch,
        order,
        _bulk={"items": [{"index": {"_index": "i", "status": 201}}, conflict]},
        _mget={"docs": [{"_index": "i", "_id": "2", "found": False}]},
        _settings={"i": {"settings": {}}},
    )
    entries = list(partition.convert(ROWS))
    outcome = partition.send(entries)
    waits = order == "sequence_column"
    assert outcome.retry == (entries[1:] if waits else ())
    assert (outcome.error is None) == waits


def test_an_index_that_cannot_be_created_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = OpenSearchRequestSink(make_options(OpenSearchOptions, {"url": URL, "index": "i", "key_columns": "id"}))
    refused = {"error": {"type": "illegal_argument_exception", "reason": "too many shards"}}
    answers = iter([ClusterResponse(404, {}, None), ClusterResponse(400, refused, None)])
    client = sink.access().client()
    monkeypatch.setattr(client, "send", lambda *_, **__: next(answers))
    with pytest.raises(TargetError, match="too many shards"):
        sink._map_fields(client)


@pytest.mark.parametrize(
    ("status", "kind", "passes"),
    [
        (200, "none", False),
        (503, "no_shard_available_action_exception", True),
        (403, "index_create_block_exception", True),  # a disk that is almost full
        (403, "security_exception", False),
    ],
)
def test_responses_that_may_pass(status: int, kind: str, passes: bool) -> None:
    assert ClusterResponse(status, {"error": {"type": kind}}, None).passes is passes


def test_the_reason_names_the_cause() -> None:
    error = {"type": "mapper_parsing_exception", "reason": "failed to parse", "caused_by": {"reason": "For input: x"}}
    assert reason_of({"status": 400, "error": error}) == "mapper_parsing_exception: failed to parse (For input: x)"


def test_the_lines_of_actions() -> None:
    deleted = pa.array([False, True])
    changes = KeyedBatch(pa.record_batch({"id": [1, 2], "text": ["ä", None]}), deleted, pa.array(["01ff", "02"], TEXT))
    places = {"_index": pa.array(["i", "i"]), "_id": pa.array(['"1"', "2"]), "routing": pa.array([None, "r"])}
    upsert, delete = actions(places, changes, Version(4096, "token"), creates=False, removes=False).to_pylist()
    head, body = map(json.loads, upsert.splitlines())
    version = {"version": 4096, "version_type": "external"}
    assert head == {"index": {"_index": "i", "_id": '"1"'} | version}
    assert body == {"outfall_version": "token 01ff", "id": 1, "text": "ä"}
    head, body = map(json.loads, delete.splitlines())
    assert head == {"index": {"_index": "i", "_id": "2", "routing": "r"} | version}
    assert (body.keys(), body["outfall_version"]) == ({"outfall_version", "outfall_deleted"}, "token 02")
    again = if_unchanged(upsert, {"_seq_no": 7, "_primary_term": 2}).splitlines()
    assert json.loads(again[0]) == {"index": {"_index": "i", "_id": '"1"', "if_seq_no": 7, "if_primary_term": 2}}
    assert again[1] == upsert.splitlines()[1]
    removed = actions(places, changes, Version(4096, "token"), creates=False, removes=True)[1].as_py()
    assert json.loads(removed) == {"delete": {"_index": "i", "_id": "2", "routing": "r"} | version}
    plain = actions(places, changes, None, creates=True, removes=False).to_pylist()
    assert plain[0] == '{"create":{"_index":"i","_id":"\\"1\\""}}\n{"id":1,"text":"ä"}\n'.encode()
    assert plain[1] == b'{"delete":{"_index":"i","_id":"2","routing":"r"}}\n'


def access(**given: Any) -> OpenSearchConnection:
    known = {"url": URL, "connect_timeout": 1.0, "read_timeout": 1.0, "max_in_flight_requests": 1}
    return make_options(OpenSearchConnection, known | given)


def test_requests_carry_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2-word")
    client = OpenSearchClient(access(username="u", password=SecretStr("env:PASSWORD")))
    assert client._headers["Authorization"] == f"Basic {base64.b64encode(b'u:hunter2-word').decode()}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-word")
    signing = OpenSearchClient(access(aws_region="eu-central-1"))
    signed = signing._signed("POST", f"{URL}/_bulk", b"x", {"Content-Type": "application/json"})
    assert "Credential=key/" in signed["Authorization"]
    assert "/eu-central-1/es/aws4_request" in signed["Authorization"]


@pytest.mark.parametrize("auth", ["password", "api_key", "aws"])
@pytest.mark.parametrize("status", [200, 400, 403, 500])
def test_what_a_cluster_repeats_of_its_request_is_hidden(
    monkeypatch: pytest.MonkeyPatch, status: int, auth: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-word")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter2-token")
    secret = SecretStr("hunter2-word")
    given: dict[str, dict[str, Any]] = {
        "password": {"username": "u", "password": secret}, "api_key": {"api_key": secret}, "aws": {"aws_region": "r"},
    }  # fmt: skip
    client = OpenSearchClient(access(**given[auth]))

    def request(method: str, url: str, *, headers: dict[str, str], **_: Any) -> HTTPResponse:
        echo = " ".join(f"{name}: {value}" for name, value in headers.items())
        error = {"error": {"type": "t", "reason": echo, "caused_by": [echo]}}
        body = {"items": [{"index": {"status": 400} | error}], "docs": [error]} if status == 200 else error
        return HTTPResponse(io.BytesIO(json.dumps(body).encode()), status=status, preload_content=False)

    monkeypatch.setattr(client._pool, "request", request)
    shown = str(client.send("POST", "/_bulk", b"x"))
    assert "***" in shown
    pair = base64.b64encode(b"u:hunter2-word").decode()
    assert not [text for text in ("hunter2", pair, "Signature=") if text in shown]
