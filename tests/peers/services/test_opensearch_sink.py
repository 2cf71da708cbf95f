"""`OpenSearchSink` on nodes: the trials that the model passes too, kills, and a restored snapshot."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch as Client
from opensearchpy.helpers import scan

from outfall.errors import TargetLostError
from outfall.opensearch import OpenSearchSink
from outfall.testing import MemoryRecoveryConfig, SinkConformance
from tests.integration.opensearch.harness import Documents
from tests.integration.opensearch.model import Cluster
from tests.integration.support.keyed_lives import KeyedLives
from tests.integration.support.opensearch_trials import TRIALS, sink_to, write
from tests.peers.support.faulty_bulk import BulkFaults, faulty_bulk
from tests.peers.support.opensearch import Node, OpenSearch, own_node


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_what_the_model_does_too(trial: Callable[[Any, str], None], opensearch: OpenSearch) -> None:
    trial(Cluster(opensearch.url), f"t-{secrets.token_hex(6)}")


@pytest.mark.long
class TestDocuments(Documents, SinkConformance):
    """The whole conformance suite, with fewer cases of each check: an epoch takes a node some fifty milliseconds."""

    most_cases = 12
    schedules = 15

    @pytest.fixture(autouse=True)
    def services(self, opensearch: OpenSearch, product: str) -> None:
        self.cluster = Cluster(opensearch.url)
        if product in ("elasticsearch-8.19", "elasticsearch-9.1"):
            rootless = "the module that answers at / is in no jar of Maven"
            self.not_claimed = Documents.not_claimed | {"connection_check": rootless}


def rows_of(node: OpenSearch, index: str) -> dict[int, dict[str, Any]]:
    """Every row by its id, read by the vendor's client, without tombstones and versions."""
    client = Client(node.url)
    client.indices.refresh(index=index)
    hits = [hit["_source"] for hit in scan(client, index=index, query={"query": {"match_all": {}}})]
    return {
        source["id"]: {name: value for name, value in source.items() if name != "outfall_version"}
        for source in hits
        if "outfall_deleted" not in source
    }


def lives_of(url: str, name: str, root: Path, **settings: Any) -> KeyedLives:
    def make_sink() -> OpenSearchSink:
        return OpenSearchSink(
            url, index=name, key_columns="id", order_column="n", delete_marker="gone", max_batch_size=10,
            retry_backoff=0.01, max_retry_backoff=0.1, retry_budget=1.0,
        )  # fmt: skip

    return KeyedLives(make_sink, root, **settings)


@pytest.mark.long
@pytest.mark.faults
def test_forty_kills_and_twenty_zombies_with_lost_responses_and_partial_failures(product: str, tmp_path: Path) -> None:
    name, faults = f"t-{secrets.token_hex(6)}", BulkFaults(lost=0.2, items=0.2)
    with (
        own_node(product) as node,
        faulty_bulk(node.url, faults) as url,
        lives_of(url, name, tmp_path, epochs=90, rows=20, keys=15, longest_life=0.6) as lives,
    ):
        lives.disturb(kills=46, zombies=21)
        lives.finish()
        assert rows_of(node, name) == lives.ideal()
        print(f"{lives.kills} kills, {lives.refused} refused of 21 stopped drivers, {faults.failed} faults")
        assert lives.kills >= 40


@pytest.mark.long
@pytest.mark.faults
def test_a_node_that_is_killed_and_started_again(product: str, tmp_path: Path) -> None:
    name = f"t-{secrets.token_hex(6)}"
    with own_node(product) as node, lives_of(node.url, name, tmp_path, epochs=60, rows=30) as lives:
        for _ in range(3):
            before = lives.reached
            child = lives.start()
            lives.zombies.append(child)
            lives.wait_reached(before + 3)
            node.server.kill()
            node.server.start()
            lives.zombies.remove(child)
            lives.resume(child)
        lives.finish()
        assert rows_of(node, name) == lives.ideal()


@pytest.mark.faults
def test_a_snapshot_that_is_restored_is_told_apart(product: str) -> None:
    """One that was taken after the newest BEGIN is not, as the page says."""
    name, recovery = f"t-{secrets.token_hex(6)}", MemoryRecoveryConfig()
    with own_node(product) as node:
        sink = sink_to(Cluster(node.url), name)
        write(sink, [{"id": 1}], recovery=recovery)
        snapshot(node)
        write(sink, [{"id": 2}], epoch=1, recovery=recovery)
        restore(node, name, "outfall-records")
        assert list(rows_of(node, name)) == [1]
        with pytest.raises(TargetLostError, match="is behind the recovery data"):
            write(sink, [{"id": 3}], epoch=2, recovery=recovery)
        assert list(rows_of(node, name)) == [1]
        write(sink, [{"id": 1}, {"id": 2}, {"id": 3}])  # a new checkpoint, over all its input
        assert sorted(rows_of(node, name)) == [1, 2, 3]


def snapshot(node: Node) -> None:
    status, answer = node.ask("PUT", "/_snapshot/r", {"type": "fs", "settings": {"location": str(node.snapshots)}})
    assert status == 200, answer
    status, answer = node.ask("PUT", "/_snapshot/r/s", {}, wait_for_completion="true")
    assert status == 200, answer


def restore(node: Node, *indices: str) -> None:
    for index in indices:
        node.ask("DELETE", f"/{index}")
    body = {"indices": ",".join(indices)}
    status, answer = node.ask("POST", "/_snapshot/r/s/_restore", body, wait_for_completion="true")
    assert status == 200, answer
