"""What OpenSearch and Elasticsearch do with versions, bulks and crashes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.integration.support.waiting import until
from tests.peers.support.opensearch import OpenSearch, own_node


@pytest.fixture
def index(opensearch: OpenSearch) -> str:
    return opensearch.index(f"facts-{uuid.uuid4().hex[:12]}")


def write(node: OpenSearch, index: str, key: str, version: int, document: dict[str, Any] | None) -> dict[str, Any]:
    """Write a document, or delete it if there is none, by a bulk of one item with a version; return the item."""
    operation = "index" if document is not None else "delete"
    action = {operation: {"_id": key, "version": version, "version_type": "external_gte"}}
    status, answer = node.ask("POST", f"/{index}/_bulk", [action] if document is None else [action, document])
    assert status == 200, answer
    item: dict[str, Any] = answer["items"][0][operation]
    return item


def test_an_older_version_is_refused_and_an_equal_one_is_taken(opensearch: OpenSearch, index: str) -> None:
    assert write(opensearch, index, "k", 5, {"a": 1})["status"] == 201
    refused = write(opensearch, index, "k", 4, {"a": 2})
    assert (refused["status"], refused["error"]["type"]) == (409, "version_conflict_engine_exception")
    assert write(opensearch, index, "k", 5, {"a": 3})["status"] == 200
    assert opensearch.documents(index) == {"k": {"a": 3}}


def test_a_deleted_document_keeps_its_version(opensearch: OpenSearch, index: str) -> None:
    write(opensearch, index, "k", 5, {"a": 1})
    assert write(opensearch, index, "k", 6, None)["status"] == 200
    assert write(opensearch, index, "k", 5, {"a": 2})["status"] == 409


def test_a_version_is_forgotten_some_time_after_a_delete(opensearch: OpenSearch, index: str) -> None:
    """So a sink that must refuse late writes keeps tombstones of its own."""
    opensearch.ask("PUT", f"/{index}/_settings", {"index": {"gc_deletes": "1ms", "refresh_interval": "-1"}})
    write(opensearch, index, "k", 5, {"a": 1})
    write(opensearch, index, "k", 6, None)

    def late_write_is_taken() -> bool:
        opensearch.ask("POST", f"/{index}/_refresh")
        return bool(write(opensearch, index, "k", 5, {"a": 2})["status"] == 201)

    until(late_write_is_taken, "the version of the deleted document being forgotten", 60)


def test_one_bad_document_of_a_bulk_leaves_the_others(opensearch: OpenSearch, index: str) -> None:
    opensearch.ask("PUT", f"/{index}/_mapping", {"properties": {"n": {"type": "integer"}}})
    lines = [line for n in (1, "x", 3) for line in ({"index": {"_id": f"k{n}"}}, {"n": n})]
    status, answer = opensearch.ask("POST", f"/{index}/_bulk", lines)
    statuses = [item["index"]["status"] for item in answer["items"]]
    assert (status, answer["errors"], statuses) == (200, True, [201, 400, 201])
    names = ("mapper_parsing_exception", "document_parsing_exception")  # the second since Elasticsearch 8
    assert answer["items"][1]["index"]["error"]["type"] in names
    assert opensearch.documents(index) == {"k1": {"n": 1}, "k3": {"n": 3}}


# The jars of Elasticsearch have no data streams.
@pytest.mark.parametrize("product", ["opensearch-2.19"], indirect=True)
def test_an_id_is_unique_in_one_backing_index_of_a_data_stream_only(opensearch: OpenSearch) -> None:
    """So a repeated write after a rollover doubles the document."""
    name = f"stream-{uuid.uuid4().hex[:12]}"
    template = {
        "index_patterns": [name],
        "data_stream": {},
        "template": {"settings": {"number_of_replicas": 0}},
    }
    assert opensearch.ask("PUT", f"/_index_template/{name}", template)[0] == 200
    lines = [{"create": {"_id": "k"}}, {"@timestamp": "2026-01-01T00:00:00Z"}]
    statuses = []
    for _ in range(2):
        _, answer = opensearch.ask("POST", f"/{name}/_bulk", lines)
        statuses.append(answer["items"][0]["create"]["status"])
        assert opensearch.ask("POST", f"/{name}/_rollover")[0] == 200
    opensearch.ask("POST", f"/{name}/_refresh")
    assert (statuses, opensearch.ask("GET", f"/{name}/_count")[1]["count"]) == ([201, 201], 2)


@pytest.mark.faults
def test_acknowledged_writes_outlive_the_node(product: str) -> None:
    with own_node(product) as node:
        index = node.index("kept")
        write(node, index, "k", 5, {"a": 1})
        write(node, index, "gone", 5, {"a": 1})
        write(node, index, "gone", 7, None)
        node.server.kill()
        node.server.start()
        assert node.documents(index) == {"k": {"a": 1}}
        # Versions too, those of deleted documents among them.
        assert [write(node, index, key, 4, {"a": 2})["status"] for key in ("k", "gone")] == [409, 409]
