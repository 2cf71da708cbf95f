"""Spark's drivers, whose checkpoint, log and target are in HDFS, are killed (-9) and started again."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hdfs_native import Client

from tests.integration.support.killed_driver import FORMAT_API, Job, make_job
from tests.integration.support.reading import rows_of
from tests.peers.support.hadoop import Hdfs

pytestmark = [pytest.mark.spark, pytest.mark.faults]

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "40"))
FILES = 2
"""Input files, and so epochs, of a life: an epoch takes seconds."""

STEPS = (
    "after BEGIN", "file: claimed", "file: opening", "file: writing", "file: syncing", "file: synced", "file: staged",
    "before PREPARED", "after PREPARED", "after COMMITTING", "file: record advanced", "file: publishing",
    "file: published", "before COMPLETED", "after COMPLETED", "after clean-up", "log: newest checked",
    "log: object created", "hdfs: written", "hdfs: renamed", "file: written by spark",
)  # fmt: skip


@dataclass
class HdfsJob(Job):
    """A stream whose folder is in HDFS."""

    folder: str = ""
    client: Client | None = None

    @property
    def checkpoint(self) -> str:
        return f"{self.folder}/checkpoint"

    @property
    def out(self) -> str:
        return f"{self.folder}/out"

    def has_planned(self) -> bool:
        assert self.client is not None
        try:
            return bool(self.client.get_file_info(f"{_path(self.checkpoint)}/offsets/0").length)
        except FileNotFoundError:
            return False

    def visible(self) -> dict[str, bytes]:
        """The files that readers see, by their names."""
        assert self.client is not None
        found = [s for s in self.client.list_status(_path(self.out), False) if not s.isdir]
        return {s.path: self.client.read(s.path).read() for s in found if "/." not in s.path}

    def hidden(self) -> list[str]:
        """What is left of records and files that were never published."""
        assert self.client is not None
        names = [s.path for s in self.client.list_status(f"{_path(self.out)}/_outfall", True) if not s.isdir]
        return [name for name in names if "/staging/" in name or "/.tmp-" in name]


def _path(url: str) -> str:
    return "/" + url.removeprefix("hdfs://").partition("/")[2]


@pytest.mark.parametrize(
    ("mode", "api", "kills"),
    [
        ("whole", "objects", 1),
        ("by spark", "objects", 1),
        pytest.param("whole", "objects", KILLS, marks=pytest.mark.long),
        pytest.param("whole", "options", KILLS, marks=[FORMAT_API, pytest.mark.long]),
        pytest.param("by spark", "objects", KILLS, marks=pytest.mark.long),
    ],
)
def test_each_flight_is_in_hdfs_once_however_often_the_driver_is_killed(
    hdfs: Hdfs, tmp_path: Path, mode: str, api: str, kills: int
) -> None:
    files = FILES * (kills + 1 + kills // 2) if kills > 1 else 4
    local, sent = make_job(tmp_path, mode, api, steps=STEPS, files=files)
    job = HdfsJob(**vars(local), folder=f"hdfs://{hdfs.address}/{tmp_path.name}", client=hdfs.client())
    if kills > 1:
        job.run_all(kills, FILES)
    else:
        job.feed(2)
        for step in ("file: written by spark", "file: published") if mode == "by spark" else ("file: published",):
            job.run_until_killed_at(step)
            job.kills += 1
        job.feed(2)
        job.run_to_the_end()
    found = Counter(row["id"] for name, data in job.visible().items() for row in rows_of(name, data))
    wanted = set(sent.column("id").to_pylist())
    lost, doubled = len(wanted - set(found)), sum(found.values()) - len(found)
    print(f"{mode}, {api}: {len(wanted)} rows, {job.kills} kills, lost {lost}, doubled {doubled}")
    print(f"{len(job.obeyed)} kills at a step: {dict(Counter(job.obeyed))}")
    assert (lost, doubled, set(found)) == (0, 0, wanted)
    assert job.hidden() == []
