"""Drivers are killed (-9) and stopped at random on Apache Kafka, whose broker stands still or is killed now and then.

The lives, the reader and the checks are those of `tests/integration/protocol/test_random_kills.py`.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka.errors import KafkaTimeoutError

from outfall.kafka import KafkaRecoveryConfig
from tests.integration.conftest import ROOT
from tests.integration.support.hunt import Hunt, Reader
from tests.integration.support.kafka_reader import ends, read
from tests.integration.support.killed_driver import KILLS, SEED, make_job
from tests.integration.support.lives import Row
from tests.integration.support.waiting import until
from tests.integration.support.watched_places import Files, Outage, Place
from tests.integration.support.watched_topics import Topic
from tests.peers.support.apache_kafka import NEWEST, OLDEST, ApacheKafka, own_cluster

pytestmark = [pytest.mark.faults, pytest.mark.long]

COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1",
    "delete.retention.ms": "130000",
}  # fmt: skip
MANY = max(12, KILLS)
STEPS = (
    "after BEGIN", "kafka: opening", "kafka: opened", "kafka: fencing", "kafka: before init", "kafka: after init",
    "kafka: begun", "task: after write", "kafka: before commit", "kafka: after commit", "task: after flush",
    "after collect", "before PREPARED", "after PREPARED", "before COMPLETED",
)  # fmt: skip


class RetryingTopic(Topic):
    """A topic whose reader asks again: its client gives up where a broker stands still."""

    def rows(self) -> list[Row]:
        return until(self._read, "what is in the topic")[0]

    def _read(self) -> list[list[Row]]:
        with suppress(KafkaTimeoutError):
            return [super().rows()]
        return []


@pytest.fixture(scope="module", params=[NEWEST, OLDEST])
def cluster(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    with own_cluster(request.param, log_cleaner_backoff_ms=200) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> None:
    """Start it where it can import what the tests import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
        patch.setenv("OUTFALL_TEST_WARM", "1")
        forkserver.ensure_running()


def outages(cluster: ApacheKafka, counts: Counter[str]) -> Outage:
    """Return what stops the only broker for a while, or kills it and starts it again."""
    (broker,) = cluster.brokers

    @contextmanager
    def outage(chance: random.Random) -> Iterator[None]:
        if chance.random() < 0.7:
            broker.pause()
            yield
            broker.resume()
            counts["the broker stood still"] += 1
        else:
            broker.kill()
            yield
            cluster.restart(broker).result()
            counts["the broker was killed"] += 1

    return outage


def hunt_down(place: Place, root: Path, name: str, chance: random.Random, counts: Counter[str]) -> None:
    """Kill and stop drivers, and read what is there meanwhile and in the end."""
    hunt = Hunt(place, root, name, chance, counts)
    reader = Reader(place, hunt.query)
    with closing(hunt):
        hunt.measure()
        reader.start()
        try:
            hunt.run(MANY, MANY // 2, MANY // 3)
        finally:
            reader.stop()
        hunt.check(not reader.complaints, "\n".join(reader.complaints))
        hunt.check_rows()
        left = place.leftovers()
        hunt.check(not left, f"there is still: {left}")
    print(f"\n{name}, seed {SEED}, {reader.looks} looks: {sorted(counts.items())}")


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_row_is_there_once_whatever_is_killed(cluster: ApacheKafka, partitions: int, tmp_path: Path) -> None:
    chance, counts = random.Random(f"{SEED} {cluster.profile} {partitions}"), Counter[str]()
    outage = outages(cluster, counts)
    with closing(RetryingTopic(cluster.address, outage, partitions, timeout=60)) as place:
        hunt_down(place, tmp_path / "query", f"{cluster.profile}, {partitions} partitions", chance, counts)


def test_each_row_is_in_files_once_whatever_is_killed_with_the_log_in_kafka(
    cluster: ApacheKafka, tmp_path: Path
) -> None:
    """The topics of the log are compacted all the time."""
    chance, counts = random.Random(f"{SEED} {cluster.profile} log"), Counter[str]()
    recovery = KafkaRecoveryConfig(cluster.address, f"log-{uuid.uuid4().hex}", timeout=60)
    client = AdminClient({"bootstrap.servers": cluster.address})
    for name in (f"{recovery.topic_prefix}-progress", f"{recovery.topic_prefix}-state"):
        client.create_topics([NewTopic(name, 1, 1, config=COMPACTED)])[name].result(20)
    with closing(Files(tmp_path / "out")) as place:
        place.log, place.outage = recovery.url(), outages(cluster, counts)
        hunt_down(place, tmp_path / "query", f"{cluster.profile}, the log in Kafka", chance, counts)
    kept = read(cluster.address, f"{recovery.topic_prefix}-progress")
    end = ends(cluster.address, f"{recovery.topic_prefix}-progress")[0]
    print(f"{len(kept)} of {end} records are left in the log")
    assert len(kept) < end


@pytest.mark.spark
def test_each_flight_is_there_once_however_often_the_driver_is_killed(cluster: ApacheKafka, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "brokers": cluster.address, "topic": f"spark-{uuid.uuid4().hex}", "parts": 4, "value_format": "json",
        "create_topic": "if_missing", "partitions": 3, "replication_factor": 1, "delivery_timeout": 30,
    }  # fmt: skip
    job, rows = make_job(tmp_path, "parts", "objects", steps=STEPS)
    job.kafka = json.dumps(given)
    job.run_all()
    found = [json.loads(record.value or b"") for record in read(cluster.address, given["topic"], seconds=120)]
    # JSON leaves out what is NULL.
    wanted = [{name: value for name, value in row.items() if value is not None} for row in rows.to_pylist()]
    assert Counter(row["id"] for row in found) == Counter(row["id"] for row in wanted)
    assert sorted(found, key=lambda row: row["id"]) == wanted
    print(f"\n{cluster.profile}: {job.kills} kills, at steps {sorted(job.obeyed)}, {len(found)} flights")
