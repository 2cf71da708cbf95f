"""A table for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support.delta_epochs import Shore
from tests.integration.support.duck import Duck


@pytest.fixture
def shore(tmp_path: Path) -> Shore:
    return Shore(tmp_path)


@pytest.fixture(scope="session")
def duck() -> Iterator[Duck]:
    reader = Duck()
    yield reader
    reader.close()
