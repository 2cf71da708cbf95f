"""A database, or a bucket, for each test that asks."""

from __future__ import annotations

import pytest

from tests.integration.s3.support import Target
from tests.integration.support.postgres import Databases
from tests.integration.support.s3 import S3


@pytest.fixture(scope="session")
def conformance_dsn(postgres: Databases) -> str:
    """One database for all targets of the suite."""
    return postgres.new_database()


@pytest.fixture
def dsn(postgres: Databases) -> str:
    """An empty database."""
    return postgres.new_database()


@pytest.fixture
def bucket(s3: S3) -> str:
    return Target(s3).bucket
