"""Checkpoint logs, in memory among others, and the end of what a test has left in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture(params=["local", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "chk") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def local(tmp_path: Path) -> str:
    return str(tmp_path / "chk")


@pytest.fixture(autouse=True)
def _emptied_memory() -> Iterator[None]:
    """fsspec goes through all files of the process at each call, those of other tests too."""
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
