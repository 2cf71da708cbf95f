"""One PostgreSQL server and one S3 server for the whole run; each test that asks gets a database, or a bucket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.s3.support import Target
from tests.integration.support.postgres import Databases, postgres_server
from tests.integration.support.s3 import S3, s3_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    with postgres_server() as databases:
        yield databases


@pytest.fixture(scope="session")
def conformance_dsn(postgres: Databases) -> str:
    """One database for all targets of the suite."""
    return postgres.new_database()


@pytest.fixture
def dsn(postgres: Databases) -> str:
    """An empty database."""
    return postgres.new_database()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(s3: S3) -> str:
    return Target(s3).bucket
