"""A primary and a standby of each version, and a database on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support.postgres import Server, own_server
from tests.peers.support.postgres_binaries import postgres_programs
from tests.peers.support.postgres_pair import Pair, postgres_pair

VERSIONS = ["14", "18"]


@pytest.fixture(scope="session", params=VERSIONS, ids=[f"postgres {version}" for version in VERSIONS])
def programs(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The programs of each version in turn."""
    with postgres_programs(request.param) as found:
        yield found


@pytest.fixture
def pair(programs: Path) -> Iterator[Pair]:
    """A primary and a standby that a test may kill: what it has promoted follows nobody any more."""
    with postgres_pair(programs) as found:
        yield found


@pytest.fixture(scope="session")
def server(programs: Path) -> Iterator[Server]:
    """A server that no test stops."""
    with own_server(programs=programs) as found:
        yield found


@pytest.fixture
def recovery(tmp_path: Path) -> str:
    """Where a query's log is."""
    return str(tmp_path / "recovery")
