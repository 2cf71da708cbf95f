"""A database, a bucket, or the servers of all sinks that write by key, for each test that asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.s3.support import Target
from tests.integration.support.postgres import Databases
from tests.integration.support.s3 import S3
from tests.integration.wrappers.keyed_targets import Servers


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


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Each starts when a test asks for its target."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "outfall")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "outfall-secret")
        yield Servers(request, tmp_path_factory.mktemp("servers"), stack)
