"""Where the tests of streams read and write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.support.reading import write_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"
