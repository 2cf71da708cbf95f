"""`OpenSearchSink` on the model: trials that a node passes too, faults, drivers that are killed, and wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import Guarantee
from outfall.errors import ConfigurationError, TargetError, TransientError
from outfall.file import FileSink
from outfall.opensearch import OpenSearchSink
from outfall.testing import run_conformance
from tests.integration.opensearch.harness import Documents
from tests.integration.opensearch.model import Cluster
from tests.integration.support.keyed_lives import KeyedLives
from tests.integration.support.opensearch_trials import TRIALS, sink_to, write
from tests.one_each import thorough


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_what_a_node_does_too(trial: Callable[[Any, str], None], cluster: Cluster, name: str) -> None:
    trial(cluster, name)


def test_refused_requests_and_items_and_lost_responses_change_nothing(cluster: Cluster, name: str) -> None:
    cluster.faults(refused=0.2, items=0.1, lost=0.2)
    counts = write(sink_to(cluster, name, max_batch_size=10), [{"id": n, "text": "ä" * 40} for n in range(300)])
    assert counts["repeated_writes"] > 10
    assert len(cluster.rows(name)) == 300
    assert any(request.get("content-encoding") == "gzip" for request in cluster.ask("GET", "/_requests"))


def test_what_a_mapping_rejects_is_a_dead_letter(cluster: Cluster, name: str, tmp_path: Path) -> None:
    rows = [{"id": "a", "number": "x"}, {"id": "b" * 600, "number": None}, {"id": "", "number": None}]
    sink = sink_to(cluster, name, dead_letter=FileSink(tmp_path / "dead"))
    write(sink, [*rows, {"id": "good", "number": None}])
    assert list(cluster.rows(name)) == ["good"]
    dead = [json.loads(line) for path in (tmp_path / "dead").glob("*.json*") for line in path.read_text().splitlines()]
    assert sorted(json.loads(letter["row"])["id"] for letter in dead) == ["", "a", "b" * 600]
    assert "failed to parse field [number]" in " ".join(letter["reason"] for letter in dead)


def test_index_routing_and_pipeline_are_those_of_the_row(cluster: Cluster, name: str) -> None:
    sink = sink_to(cluster, name, index=None, index_column="day", routing_column="r", pipeline="p")
    write(sink, [{"id": n, "day": f"{name}-{n % 2}", "r": "x"} for n in range(4)])
    assert cluster.rows(f"{name}-1") == {"1": {"id": 1, "r": "x"}, "3": {"id": 3, "r": "x"}}
    assert cluster.ask("GET", "/_requests")[-1]["path"].endswith("&pipeline=p")


def test_keys_of_several_columns_never_have_one_id(cluster: Cluster, name: str) -> None:
    keys = [("x:y", "z"), ("x", "y:z"), ("x%3Ay", "z"), ("plain", "1")]
    write(sink_to(cluster, name, key_columns=["a", "b"]), [{"a": a, "b": b} for a, b in keys])
    assert sorted((row["a"], row["b"]) for row in cluster.rows(name).values()) == sorted(keys)
    assert "plain:1" in cluster.rows(name)


def test_data_streams_take_new_documents_only(cluster: Cluster, name: str) -> None:
    sink = OpenSearchSink(cluster.url, index=name, data_stream=True)
    assert sink.guarantee() is Guarantee.AT_LEAST_ONCE
    write(sink, [{"text": "a"}, {"text": "a"}])
    assert list(cluster.rows(name).values()) == [{"text": "a"}] * 2


def test_an_index_that_is_blocked_fails_before_the_first_row(cluster: Cluster, name: str) -> None:
    write(sink_to(cluster, name), [{"id": 1}])
    cluster.ask("POST", f"/{name}/_block")
    with pytest.raises(TargetError, match=r"index\.blocks\.write is set"):
        write(sink_to(cluster, name), [{"id": 2}])
    assert list(cluster.rows(name)) == ["1"]


def test_wrong_columns_and_a_wrong_address(cluster: Cluster, name: str) -> None:
    with pytest.raises(ConfigurationError, match="the key requires the column 'id'"):
        sink_to(cluster, name).check_schema(pa.schema([("other", pa.int64())]))
    with pytest.raises(ConfigurationError, match="which has another use"):
        sink_to(cluster, name).check_schema(pa.schema([("id", pa.int64()), ("outfall_version", pa.string())]))
    with pytest.raises(TransientError, match="does not respond"):
        OpenSearchSink("http://127.0.0.1:1", index=name, key_columns="id").check_connection()
    assert sink_to(cluster, name).check_connection()[0] == "opensearch 2.19.1 answers"


def lives_of(cluster: Cluster, name: str, root: Path, **settings: Any) -> KeyedLives:
    def make_sink() -> OpenSearchSink:
        return sink_to(cluster, name, order_column="n", delete_marker="gone", max_batch_size=10)

    return KeyedLives(make_sink, root, **settings)


@pytest.mark.thorough
def test_a_stopped_driver_that_continues_after_a_later_epoch_overwrites_nothing(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    cluster.faults(refused=0.1, items=0.1, lost=0.1)
    with lives_of(cluster, name, tmp_path, epochs=8, rows=30, keys=20, longest_life=0.25) as lives:
        lives.disturb(kills=2, zombies=3)
        lives.finish()
        assert cluster.rows(name) == {str(key): row for key, row in lives.ideal().items()}


@pytest.mark.thorough
def test_forty_kills_and_twenty_zombies_with_lost_responses_and_partial_failures(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    cluster.faults(refused=0.2, items=0.2, lost=0.2)
    # More epochs than the drivers of a fast machine complete before they are killed.
    with lives_of(cluster, name, tmp_path, epochs=120, rows=15, keys=12, longest_life=0.35) as lives:
        lives.disturb(kills=44, zombies=20)
        lives.finish()
        assert cluster.rows(name) == {str(key): row for key, row in lives.ideal().items()}
        print(f"{lives.kills} kills, {lives.refused} refused of 20 stopped drivers, {lives.epochs} epochs")
        assert lives.kills >= 40


SHORT = ["one_epoch", "replay_of_a_lost_epoch"]
MORE = [
    "declared_guarantee",
    "similar_keys",
    "counts_are_facts",
    "replay_of_a_completed_epoch",
    "two_attempts_finish",
    "lost_target",
    "changed_layout",
    "null_in_a_key",
    "in_wrappers",
]


@pytest.mark.parametrize("checks", [SHORT, thorough(MORE)], ids=["short", "more"])
def test_effectively_once_in_short(cluster: Cluster, tmp_path: Path, checks: list[str]) -> None:
    harness = Documents()
    harness.cluster = cluster
    report = run_conformance(harness, tmp_path, checks=checks)
    assert report.passed, report
