"""The log in PostgreSQL keeps the contract of all stores."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from outfall.postgres import PostgresRecoveryConfig
from outfall.recovery import RecoveryConfig
from outfall.testing.recovery_contract import RecoveryContract
from tests.integration.support.postgres import location


@pytest.mark.thorough
class TestPostgres(RecoveryContract):
    parts = 300

    @pytest.fixture(autouse=True)
    def _on(self, database: str) -> None:
        self.dsn = database

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        # A schema is what a directory is for files, and made in a fraction of the time that a database takes.
        return location(self.dsn, schema=f"log_{uuid.uuid4().hex}")

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        assert isinstance(recovery, PostgresRecoveryConfig)
        total = 0
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for table in ("recovery_entries", "recovery_blobs"):
                query = sql.SQL("SELECT coalesce(sum(octet_length(data)), 0) FROM {}")
                found = connection.execute(query.format(sql.Identifier(recovery.schema, table))).fetchone()
                total += int(found[0]) if found else 0
        return total
