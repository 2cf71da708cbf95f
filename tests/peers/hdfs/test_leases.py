"""Files in HDFS that another client holds open, that died while they were written, and what is left of them."""

from __future__ import annotations

import json
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hdfs_native import WriteOptions

from outfall.file import FileSink
from outfall.hdfs import Hdfs as Filesystem
from outfall.recovery import CheckpointRecoveryConfig
from outfall.storage.names import AttemptName
from outfall.testing import LocalDriver
from tests.integration.support.waiting import until
from tests.peers.support.hadoop import Directory, Hdfs
from tests.peers.support.hadoop import hdfs as running

pytestmark = pytest.mark.faults

MIB = 1 << 20


def attempt(out: Directory, *, generation: int) -> AttemptName:
    """The name of a file that a task of this query would write."""
    (published,) = [name for name in map(AttemptName.parse, out.everything()) if name and name.epoch == 0]
    return AttemptName(1, 0, 0, "", published.incarnation, generation, 7, ".jsonl")


def test_a_task_that_wakes_after_another_driver_has_published_writes_nothing(
    hdfs: Hdfs, driver: LocalDriver, out: Directory
) -> None:
    """It stood in the middle of a file, with its lease and its pipeline to the datanode."""
    driver.run_epoch(0, [[{"id": 0}]])
    name = attempt(out, generation=1)
    stands, wakes = threading.Event(), threading.Event()
    complaints: list[OSError] = []

    def chunks() -> Iterator[bytes]:
        yield b'{"id": 99}\n' * MIB
        stands.set()
        assert wakes.wait(120)
        yield b'{"id": 99}\n'

    def write() -> None:
        try:
            Filesystem.of(hdfs.address)._write(f"{out.path}/_outfall/staging/{name}", chunks)
        except OSError as error:
            complaints.append(error)

    zombie = threading.Thread(target=write)
    zombie.start()
    assert stands.wait(120)
    LocalDriver(FileSink(out.url), driver.recovery).run_epoch(1, [[{"id": 1}]])
    wakes.set()
    zombie.join()
    assert out.ids() == [0, 1]
    assert [path for path in out.everything() if "staging" in path] == []
    assert complaints


def test_a_file_that_is_still_open_is_not_counted_as_its_length(hdfs: Hdfs, out: Directory) -> None:
    """What the namenode tells of it is no length that a driver could have recorded."""
    writer = hdfs.client().create(f"{out.path}/f", WriteOptions())
    writer.write(b"1" * MIB)
    writer.hsync()
    assert Filesystem.of(hdfs.address).info(f"{out.path}/f")["size"] in (0, MIB)
    writer.write(b"2")
    Filesystem.of(hdfs.address).rm_file(f"{out.path}/f")
    with pytest.raises((OSError, RuntimeError)):
        writer.close()


def test_hidden_records_of_drivers_that_died_are_found_and_removed(driver: LocalDriver, out: Directory) -> None:
    driver.run_epoch(0, [[{"id": 0}]])
    ours = attempt(out, generation=1).incarnation
    left = [f"_outfall/.tmp-{ours}{more}-{uuid.uuid4().hex}" for more in ("", "-g1-abc")]
    others = f"_outfall/.tmp-abcdef-{uuid.uuid4().hex}"
    for path in [*left, others]:
        out.put(path, b"{}")
    driver.run_epoch(1, [[{"id": 1}]])
    assert sorted(path for path in out.everything() if "/.tmp-" in path) == [others]
    assert out.ids() == [0, 1]


def test_hidden_states_of_older_generations_are_removed(hdfs: Hdfs, tmp_path: Path) -> None:
    where = Directory(hdfs, f"chk-{uuid.uuid4().hex}")
    log = CheckpointRecoveryConfig(where.url).open("step")
    log.append(b"{}", after=0)
    left, newer = (f"outfall/step/states/.tmp-g{number}-task-3-{uuid.uuid4().hex}" for number in (1, 2))
    for path in (left, newer):
        where.put(path, b"{}")
    log.numbers()
    log.clean_up(keep=[1], states=[], generation=2)
    assert sorted(path for path in where.everything() if "/.tmp-" in path) == [newer]


@pytest.mark.long
def test_each_block_is_synced_when_it_ends() -> None:
    """Without `dfs.datanode.synconclose`. The datanode counts anew every ten seconds."""
    with running() as cluster:
        before = _synced(cluster)
        writer = cluster.client().create("/f", WriteOptions(block_size=MIB))
        for _ in range(20):
            writer.write(b"1" * MIB)
        writer.close()
        until(lambda: _synced(cluster) - before >= 20, "twenty blocks being synced")


def _synced(hdfs: Hdfs) -> int:
    """How often the datanode has called fsync for a writer."""
    query = f"{hdfs.status}/jmx?qry=Hadoop:service=DataNode,name=DataNodeActivity-*"
    with urllib.request.urlopen(query) as answer:
        (bean,) = json.load(answer)["beans"]
    return int(bean["FsyncCount"])
