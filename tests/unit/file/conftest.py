"""What the tests of files share."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.support.remote_target import Hdfs, Memory, Place, hdfs_on_disk


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(params=["memory", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield Memory(uuid.uuid4().hex)
        return
    with hdfs_on_disk():
        yield Hdfs(tmp_path / "out")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where attempts keep files until they are uploaded."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path
