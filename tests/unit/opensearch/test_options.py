"""What `OpenSearchSink` takes, the lines that it sends, the meaning of what comes back; the documentation says so."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from pydantic import SecretStr

from outfall.capabilities import Guarantee
from outfall.errors import ConfigurationError
from outfall.opensearch import OpenSearchSink
from outfall.opensearch.bulk import ItemKind, Place, action, kind_of, reason_of, with_version
from outfall.opensearch.client import OpenSearchAccess, OpenSearchClient
from outfall.opensearch.options import OpenSearchOptions
from outfall.options import options_table
from outfall.source_options import make_sink
from outfall.versioned import Version
from tests.documents import ROOT

URL = "https://search.example:9200"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "search:9200"}, "must be an http or https URL"),
        ({"url": "https://user:hunter2-word@search"}, "must contain no credentials"),
        ({"index": None}, "set either index or index_column"),
        ({"index_column": "day"}, "set either index or index_column"),
        ({"index": "Flights"}, "must be the lower-case name"),
        ({"index": "a,b"}, "must be the lower-case name"),
        ({"key_columns": ()}, "key_columns are required"),
        ({"data_stream": True}, "a data stream has an index, and no key_columns"),
        ({"deletes": "remove"}, "requires delete_marker"),
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
    ("item", "kind"),
    [
        ({"status": 201}, ItemKind.DONE),
        ({"status": 404, "result": "not_found"}, ItemKind.DONE),
        ({"status": 409, "error": {"type": "version_conflict_engine_exception"}}, ItemKind.CONFLICT),
        ({"status": 429, "error": {"type": "rejected_execution_exception"}}, ItemKind.PASSING),
        ({"status": 503, "error": {"type": "unavailable_shards_exception"}}, ItemKind.PASSING),
        ({"status": 403, "error": {"type": "cluster_block_exception"}}, ItemKind.PASSING),
        ({"status": 400, "error": {"type": "mapper_parsing_exception"}}, ItemKind.AT_FAULT),
        ({"status": 404, "error": {"type": "index_not_found_exception"}}, ItemKind.FATAL),
        ({"status": 403, "error": {"type": "security_exception"}}, ItemKind.FATAL),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.name,
)
def test_items_of_a_response_are_told_apart(item: dict[str, Any], kind: ItemKind) -> None:
    assert kind_of(item) is kind


def test_the_reason_names_the_cause() -> None:
    error = {"type": "mapper_parsing_exception", "reason": "failed to parse", "caused_by": {"reason": "For input: x"}}
    assert reason_of({"status": 400, "error": error}) == "mapper_parsing_exception: failed to parse (For input: x)"


def test_the_lines_of_an_action() -> None:
    document = with_version(b'{"id":1}', Version(4096, "token"), b"\x01\xff")
    lines = action("index", Place("i", "1", "r"), document, {"version": 4096, "version_type": "external"})
    head, body = map(json.loads, lines.splitlines())
    place = {"_index": "i", "_id": "1", "routing": "r", "version": 4096, "version_type": "external"}
    assert (head, body) == ({"index": place}, {"outfall_version": "token 01ff", "id": 1})
    assert json.loads(with_version(b"{}", Version(1, "t"), b"\x01")) == {"outfall_version": "t 01"}
    assert action("delete", Place("i", "1"), None, {}) == b'{"delete": {"_index": "i", "_id": "1"}}\n'


def access(**given: Any) -> OpenSearchAccess:
    known: dict[str, Any] = {
        "url": URL, "username": None, "password": None, "api_key": None, "aws_region": None, "aws_service": "es",
        "ca_bundle": None, "compress": True, "connect_timeout": 1.0, "read_timeout": 1.0, "connections": 1,
    }  # fmt: skip
    return OpenSearchAccess(**(known | given))


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


def test_the_page_has_the_options() -> None:
    assert options_table(OpenSearchOptions) in (ROOT / "docs" / "opensearch.md").read_text()
