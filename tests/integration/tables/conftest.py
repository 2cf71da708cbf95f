"""Real catalogues for one run: SeaweedFS' own for REST, PostgreSQL with files on SeaweedFS, and SQLite on a disk."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import Properties, embedded, in_postgres, rest
from tests.integration.support.postgres import Databases
from tests.integration.support.s3 import SeaweedFS, seaweedfs

KINDS = ["embedded", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("rest", "postgres"))]


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A server that nobody stops."""
    with seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def bucket(seaweed: SeaweedFS) -> str:
    name = f"outfall-{uuid.uuid4().hex}"
    seaweed.s3.client().create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def rest_catalog(seaweed: SeaweedFS) -> Properties:
    return rest(seaweed)


@pytest.fixture(scope="session")
def postgres_catalog(postgres: Databases, seaweed: SeaweedFS, bucket: str) -> Properties:
    return in_postgres(postgres.new_database(), seaweed.s3, bucket)


@pytest.fixture(scope="session")
def embedded_catalog(tmp_path_factory: pytest.TempPathFactory) -> Properties:
    return embedded(tmp_path_factory.mktemp("catalog"))


@pytest.fixture(params=KINDS)
def catalog(request: pytest.FixtureRequest) -> Properties:
    """Each catalogue in turn, those with a server where there is time."""
    properties: Properties = request.getfixturevalue(f"{request.param}_catalog")
    return properties


@pytest.fixture(scope="session")
def duck() -> Iterator[Duck]:
    reader = Duck()
    yield reader
    reader.close()
