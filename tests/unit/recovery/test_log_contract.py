"""Every recovery store keeps the contract that the protocol stands on."""

from __future__ import annotations

import itertools
import os
import uuid
from pathlib import Path

import fsspec
import pytest

from outfall.errors import TransientError
from outfall.recovery import CheckpointRecoveryConfig, RecoveryConfig, RecoveryLog, SqliteRecoveryConfig
from outfall.testing import MemoryRecoveryConfig
from outfall.testing.recovery_contract import RecoveryContract
from tests.unit.support.kafka_partition import MemoryKafka


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable is tested elsewhere, with disks that lose their power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("outfall.recovery.sqlite_database.SYNCHRONOUS", "OFF")


def on_disk(directory: str) -> int:
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(directory) for name in names)


@pytest.mark.usefixtures("no_fsync")
class TestLocal(RecoveryContract):
    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return CheckpointRecoveryConfig(str(directory / "checkpoint"))

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        return on_disk(recovery.url())


class InShort(RecoveryContract):
    """What is large stays out of the default run: one store shows it there."""

    @pytest.mark.thorough
    def test_thousands_of_parts_keep_their_states(self, recovery: RecoveryConfig) -> None:
        super().test_thousands_of_parts_keep_their_states(recovery)

    @pytest.mark.thorough
    def test_what_is_stored_stays_bounded(self, recovery: RecoveryConfig) -> None:
        super().test_what_is_stored_stays_bounded(recovery)


class TestObjectStore(InShort):
    outlives_processes = False  # fsspec's filesystem in memory

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return CheckpointRecoveryConfig(f"memory://{uuid.uuid4().hex}")

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        fs, path = fsspec.core.url_to_fs(recovery.url())
        return int(fs.du(path))


class TestMemory(InShort):
    outlives_processes = False

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return MemoryRecoveryConfig()

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        assert isinstance(recovery, MemoryRecoveryConfig)
        return sum(map(len, recovery.files.values()))


@pytest.mark.usefixtures("no_fsync")
class TestSqlite(InShort):
    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return SqliteRecoveryConfig(str(directory / "db"))

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        assert isinstance(recovery, SqliteRecoveryConfig)
        return on_disk(recovery.db_dir)


class TestKafka(InShort):
    """Over partitions in memory; `tests/integration/kafka` has sockets."""

    outlives_processes = False

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return MemoryKafka()

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        assert isinstance(recovery, MemoryKafka)
        return recovery.compacted_bytes()


class FailsLater(MemoryRecoveryConfig):
    """A store whose third append fails."""

    def open(self, step_id: str) -> RecoveryLog:
        log, appended = super().open(step_id), itertools.count(1)
        append = log.append

        def failing(data: bytes, *, after: int) -> int:
            if next(appended) == 3:
                raise TransientError("the store is gone")
            return append(data, after=after)

        log.append = failing  # type: ignore[method-assign]
        return log


def test_a_writer_that_fails_beside_a_reader_fails_its_test_at_once() -> None:
    with pytest.raises(AssertionError, match="the store is gone"):
        RecoveryContract().test_a_reader_beside_writer_and_cleaner_never_goes_back(FailsLater())
