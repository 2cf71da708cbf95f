"""Namenodes that take over from each other in the middle of epochs, observers that lag, and two datanodes."""

from __future__ import annotations

import json
import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hdfs_native import Client

from outfall.errors import FencedError, OutfallError
from outfall.file import FileSink
from outfall.hdfs import Hdfs as Filesystem
from outfall.recovery import CheckpointRecoveryConfig
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import run_all
from tests.integration.support.file_epochs import at
from tests.integration.support.waiting import until
from tests.peers.support.hadoop_ha import NAMESERVICE, HaHdfs, ha_hdfs

pytestmark = [pytest.mark.faults, pytest.mark.long]

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "40"))
SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261124"))
OBSERVERS = "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider"
STEPS = (
    "after BEGIN", "file: claimed", "file: synced", "before PREPARED", "after PREPARED", "file: record advanced",
    "file: publishing", "file: published", "before COMPLETED", "after COMPLETED", "log: newest checked",
    "log: object created", "hdfs: written", "hdfs: renamed",
)  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[HaHdfs]:
    with ha_hdfs() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: HaHdfs, monkeypatch: pytest.MonkeyPatch) -> HaHdfs:
    """Two namenodes, of which the first is active."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(shared.conf))
    shared.restore()
    return shared


class Query:
    """One query; each of its drivers knows only what is recorded."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex

    def driver(self) -> LocalDriver:
        url = f"hdfs://{NAMESERVICE}/{self.name}"
        return LocalDriver(FileSink(f"{url}/out"), CheckpointRecoveryConfig(f"{url}/chk"))

    def ids(self, client: Client) -> Counter[int]:
        files = [s.path for s in client.list_status(f"/{self.name}/out", False) if not s.isdir]
        return Counter(json.loads(line)["id"] for path in files for line in client.read(path).read().splitlines())


def run(query: Query, epoch: int, rows: list[int]) -> None:
    """Run an epoch as Spark does: another driver follows one that failed."""
    for _ in range(10):
        try:
            query.driver().run_epoch(epoch, [[{"id": number}] for number in rows])
        except OutfallError:
            continue
        return
    raise AssertionError(f"epoch {epoch} failed ten times")


@pytest.mark.parametrize("step", ["before PREPARED", "after PREPARED", "file: published"])
def test_a_failover_in_the_middle_of_an_epoch_loses_and_doubles_nothing(cluster: HaHdfs, step: str) -> None:
    query = Query()
    query.driver().run_epoch(0, [[{"id": 0}]])
    with at(step, lambda: cluster.haadmin("-failover", "nn1", "nn2")):
        run(query, 1, [1, 2])
    run(query, 2, [3])
    assert query.ids(cluster.client()) == dict.fromkeys(range(4), 1)


def test_what_a_killed_namenode_has_acknowledged_is_known_to_its_successor(cluster: HaHdfs) -> None:
    """Killed (-9) at a step of an epoch, right after it has answered; then the other one takes over."""
    chance, query = random.Random(SEED), Query()
    kills, unanswered, epochs = Counter[str](), 0, max(2, KILLS // 4)
    active, standby = cluster.names

    def kill(step: str) -> None:
        cluster.namenodes[active].kill()
        kills[step] += 1
        cluster.haadmin("-transitionToActive", "--forceactive", standby)

    for epoch in range(epochs):
        step = chance.choice(STEPS)
        with at(step, lambda step=step: kill(step)):  # type: ignore[misc]
            try:
                query.driver().run_epoch(epoch, [[{"id": 2 * epoch}], [{"id": 2 * epoch + 1}]])
            except OutfallError:
                unanswered += 1
                # One that has just taken over may still be in its safe mode.
                until(cluster.writes, "the other namenode taking over")
                run(query, epoch, [2 * epoch, 2 * epoch + 1])
        if not cluster.namenodes[active].running:
            cluster.revive(active)
            active, standby = standby, active
    found = query.ids(cluster.client())
    lost, doubled = len(set(range(2 * epochs)) - set(found)), found.total() - len(found)
    print(f"{2 * epochs} rows, {kills.total()} namenodes killed, lost {lost}, doubled {doubled}, failed {unanswered}")
    assert (lost, doubled, found.total()) == (0, 0, 2 * epochs)


@pytest.mark.parametrize("step", ["before PREPARED", "after PREPARED", "file: publishing"])
def test_a_driver_at_a_deposed_namenode_that_wakes_publishes_nothing(
    cluster: HaHdfs, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The namenode is stopped with its driver's requests, and believes that it is active when it goes on."""
    query = Query()
    query.driver().run_epoch(0, [[{"id": 0}]])
    zombie, other = query.driver(), str(cluster.only("nn2"))

    def succeed() -> None:
        cluster.namenodes["nn1"].pause()
        cluster.haadmin("-transitionToActive", "--forceactive", "nn2")
        with monkeypatch.context() as patch:
            patch.setenv("HADOOP_CONF_DIR", other)
            query.driver().run_epoch(1, [[{"id": 1}]])
            query.driver().run_epoch(2, [[{"id": 2}]])
        cluster.namenodes["nn1"].resume()

    with at(step, succeed), pytest.raises(OutfallError):
        zombie.run_epoch(1, [[{"id": 99}]])
    client = Client(cluster.url, {}, other)
    # What it had recorded, its successor has published.
    first = 1 if step == "before PREPARED" else 99
    assert query.ids(client) == {0: 1, first: 1, 2: 1}


def test_a_new_driver_that_reads_from_a_deposed_namenode_begins_nothing(
    cluster: HaHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()
    query.driver().run_epoch(0, [[{"id": 0}]])
    other = str(cluster.only("nn2"))
    cluster.namenodes["nn1"].pause()
    cluster.haadmin("-transitionToActive", "--forceactive", "nn2")
    with monkeypatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", other)
        query.driver().run_epoch(1, [[{"id": 1}]])
    cluster.namenodes["nn1"].resume()
    # It brings what the log of the deposed one lacks.
    with pytest.raises(OutfallError):
        query.driver().run_epoch(1, [[{"id": 99}]])
    assert query.ids(Client(cluster.url, {}, other)) == {0: 1, 1: 1}
    cluster.restore()
    query.driver().run_epoch(2, [[{"id": 2}]])
    assert query.ids(cluster.client()) == {0: 1, 1: 1, 2: 1}


def test_listings_come_from_the_active_namenode_where_an_observer_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The observer follows once in an hour."""
    with ha_hdfs(3, OBSERVERS, lags="nn3") as cluster:
        cluster.haadmin("-transitionToObserver", "nn3")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        query = Query()
        for epoch in range(2):
            query.driver().run_epoch(epoch, [[{"id": epoch}]])
        with pytest.raises(FileNotFoundError):
            list(cluster.client().list_status(f"/{query.name}/out", False))
        assert len(Filesystem.of(NAMESERVICE).ls(f"/{query.name}/out")) == 3
        with pytest.raises(FencedError):
            _behind(query)


def _behind(query: Query) -> None:
    """Begin an epoch beside a driver that has begun it."""
    slow = query.driver()
    with at("before PREPARED", lambda: query.driver().run_epoch(2, [[{"id": 2}]])):
        slow.run_epoch(2, [[{"id": 99}]])


def test_a_datanode_that_is_killed_in_the_middle_of_a_block_loses_no_row(cluster: HaHdfs) -> None:
    """The other one has its replica, and goes on, also alone when the namenode has noticed."""
    fs, query, half = Filesystem.of(NAMESERVICE), Query(), b"1" * (4 << 20)

    def chunks() -> Iterator[bytes]:
        yield half
        cluster.datanodes[0].kill()
        yield half

    query.driver().run_epoch(0, [[{"id": 0}]])
    fs._write(f"/{query.name}/f", chunks)
    assert fs.cat_file(f"/{query.name}/f") == half * 2
    with suppress(OutfallError):
        query.driver().run_epoch(1, [[{"id": 1}]])
    until(cluster.writes, "the namenode noticing the death", 120)
    query.driver().run_epoch(1, [[{"id": 1}]])
    assert query.ids(cluster.client()) == {0: 1, 1: 1}


def test_a_namenode_that_never_answers_fails_the_epoch_in_time(
    cluster: HaHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()
    query.driver().run_epoch(0, [[{"id": 0}]])
    monkeypatch.setattr("outfall.hdfs._PATIENCE", 3.0)

    def ask() -> None:
        with pytest.raises(OutfallError, match="did not respond"):
            query.driver().run_epoch(1, [[{"id": 1}]])

    cluster.namenodes["nn1"].pause()
    try:
        run_all([ask])
    finally:
        cluster.namenodes["nn1"].resume()
    query.driver().run_epoch(1, [[{"id": 1}]])
    assert query.ids(cluster.client()) == {0: 1, 1: 1}
