"""The log in MariaDB or MySQL keeps the contract of all stores."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from outfall.mysql import MySQLRecoveryConfig
from outfall.recovery import RecoveryConfig
from outfall.testing.recovery_contract import RecoveryContract
from tests.integration.support.mariadb import MariaDB


@pytest.mark.thorough
class TestMySQL(RecoveryContract):
    parts = 300

    @pytest.fixture(autouse=True)
    def _on(self, server: MariaDB, database: str) -> None:
        self.server, self.database = server, database

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return self.server.location(self.database, prefix=f"log_{uuid.uuid4().hex[:12]}")

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        assert isinstance(recovery, MySQLRecoveryConfig)
        tables = [f"{recovery.prefix}_entries", f"{recovery.prefix}_blobs"]
        query = "; ".join(f"SELECT coalesce(sum(length(data)), 0) FROM {table}" for table in tables)
        return sum(int(size) for (size,) in self.server.run(query, self.database))
