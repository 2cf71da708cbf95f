"""A primary and a replica, and two nodes that both take writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.support.galera import Galera, galera
from tests.peers.support.mariadb_pair import Pair, mariadb_pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and a replica that a test may kill: what it has promoted follows nobody any more."""
    with mariadb_pair() as found:
        yield found


@pytest.fixture(scope="session")
def cluster() -> Iterator[Galera]:
    """Two nodes that no test stops."""
    with galera() as found:
        yield found


@pytest.fixture
def recovery_path(tmp_path: Path) -> str:
    """Where a query's log is."""
    return str(tmp_path / "recovery")
