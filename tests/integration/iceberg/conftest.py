"""An embedded catalogue for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_epochs import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture(scope="session")
def duck() -> Iterator[Duck]:
    reader = Duck()
    yield reader
    reader.close()
