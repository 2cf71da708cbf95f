"""Recovery data in HDFS keeps the contract that the protocol stands on."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from outfall.recovery import CheckpointRecoveryConfig, RecoveryConfig
from outfall.testing.recovery_contract import RecoveryContract
from tests.peers.support.hadoop import Hdfs
from tests.unit.support.killed_log import check_killed_at_each_step


class TestHdfs(RecoveryContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, hdfs: Hdfs) -> None:
        self.hdfs = hdfs

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return CheckpointRecoveryConfig(f"hdfs://{self.hdfs.address}/chk/{uuid.uuid4().hex}")

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        path = recovery.url().removeprefix(f"hdfs://{self.hdfs.address}")
        return int(self.hdfs.client().get_content_summary(path).length)

    # Each step of each write has a log of its own: minutes on HDFS.
    @pytest.mark.long
    def test_a_crash_at_any_step_of_a_write_leaves_it_whole_or_undone(self, tmp_path: Path) -> None:
        super().test_a_crash_at_any_step_of_a_write_leaves_it_whole_or_undone(tmp_path)

    @pytest.mark.long
    def test_a_process_killed_at_any_step_of_a_write_leaves_it_whole_or_undone(self, tmp_path: Path) -> None:
        super().test_a_process_killed_at_any_step_of_a_write_leaves_it_whole_or_undone(tmp_path)

    @pytest.mark.long
    def test_thousands_of_parts_keep_their_states(self, recovery: RecoveryConfig) -> None:
        super().test_thousands_of_parts_keep_their_states(recovery)

    @pytest.mark.long
    def test_what_is_stored_stays_bounded(self, recovery: RecoveryConfig) -> None:
        super().test_what_is_stored_stays_bounded(recovery)


def test_the_namenode_of_the_configuration_is_used_where_the_url_names_none(hdfs: Hdfs) -> None:
    name = uuid.uuid4().hex
    CheckpointRecoveryConfig(f"hdfs:///chk/{name}").open("step").append(b"{}", after=0)
    assert CheckpointRecoveryConfig(f"hdfs://{hdfs.address}/chk/{name}").steps() == ["step"]


@pytest.mark.faults
@pytest.mark.long
def test_what_a_driver_that_is_killed_while_it_probes_leaves_is_removed_by_a_clean_up(hdfs: Hdfs) -> None:
    """Before its first entry; the probe is written under a hidden name, as entries are."""
    refused, written = ["hdfs: written"], ["hdfs: written", "hdfs: renamed"]
    probe = [*written, "log: probe created", *refused]
    steps = ["log: newest checked", *probe, *written, "log: object created"]
    folder = f"hdfs://{hdfs.address}/chk/{uuid.uuid4().hex}"
    killed_in = slice(1, 1 + len(probe))
    check_killed_at_each_step(lambda name: f"{folder}/{name}", 0, "append", steps, there=2, only=killed_in)
