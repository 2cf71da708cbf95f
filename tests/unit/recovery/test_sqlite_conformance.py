"""The file sink is exactly once with recovery data in SQLite too, in both of its ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.recovery import RecoveryConfig, SqliteRecoveryConfig
from outfall.testing import run_conformance
from tests.unit.file import test_conformance as files


class OnSqlite(files.Files):
    schedules = 20

    @pytest.fixture(autouse=True)
    def no_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is durable is tested elsewhere."""
        monkeypatch.setattr("outfall.recovery.sqlite_database.SYNCHRONOUS", "OFF")

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return SqliteRecoveryConfig(str(directory), deadline=5)


class GrowingFiles(OnSqlite, files.GrowingFiles):
    """Parts that grow."""


CORE = ["replay_of_a_lost_epoch", "late_zombie"]
SHORT = [
    "one_epoch", "replay_of_a_lost_epoch", "two_attempts_finish", "zombie_of_an_older_generation",
    "failing_system_calls",
]  # fmt: skip


@pytest.mark.parametrize("checks", [CORE, pytest.param(SHORT, marks=pytest.mark.thorough)], ids=["core", "short"])
def test_growing_files_in_short(checks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.recovery.sqlite_database.SYNCHRONOUS", "OFF")
    report = run_conformance(GrowingFiles(), tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.long
class TestGrowingFilesOnSqlite(GrowingFiles):
    pass


@pytest.mark.long
class TestWholeFilesOnSqlite(OnSqlite, files.TestWholeFiles):
    pass
