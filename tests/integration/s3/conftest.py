"""SeaweedFS, which a test may kill, and tests that run on each server in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.s3.support import Target
from tests.integration.support.s3 import S3, SeaweedFS, seaweedfs


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on this machine is back as soon as it listens."""
    monkeypatch.setattr("outfall.s3.store._LONGEST_PAUSE", 0.2)


@pytest.fixture(scope="session")
def own_seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture
def seaweed(own_seaweed: SeaweedFS) -> Iterator[SeaweedFS]:
    """A server that a test may kill; the next test finds it running."""
    yield own_seaweed
    if not own_seaweed.running:
        own_seaweed.start()


@pytest.fixture(params=["moto", pytest.param("seaweed", marks=pytest.mark.thorough)])
def any_s3(request: pytest.FixtureRequest) -> S3:
    """Each server in turn, the second one where there is time."""
    return server_named(request)


@pytest.fixture(params=["moto", "seaweed"])
def each_s3(request: pytest.FixtureRequest) -> S3:
    """Each server in turn, for tests that are long anyway."""
    return server_named(request)


def server_named(request: pytest.FixtureRequest) -> S3:
    if request.param == "moto":
        server: S3 = request.getfixturevalue("s3")
        return server
    own: SeaweedFS = request.getfixturevalue("seaweed")
    return own.s3


@pytest.fixture
def target(s3: S3) -> Target:
    """A bucket of the shared server."""
    return Target(s3)


@pytest.fixture
def any_target(any_s3: S3) -> Target:
    return Target(any_s3)
