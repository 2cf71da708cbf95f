"""The file sink is exactly once with recovery data in SQLite too, in both of its ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.recovery import RecoveryConfig, SqliteRecoveryConfig
from tests.unit import test_file_conformance as files


class OnSqlite(files.Files):
    schedules = 20

    @pytest.fixture(autouse=True)
    def no_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is durable is tested elsewhere."""
        monkeypatch.setattr("outfall.recovery.sqlite_database.SYNCHRONOUS", "OFF")

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return SqliteRecoveryConfig(str(directory), deadline=5)


class TestGrowingFilesOnSqlite(OnSqlite):
    def file_options(self) -> dict[str, Any]:
        return {"parts": 3}


@pytest.mark.long
class TestWholeFilesOnSqlite(OnSqlite, files.TestWholeFiles):
    pass
