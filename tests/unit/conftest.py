"""What the tests of checkpoint logs share."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest


@pytest.fixture(params=["local", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "chk") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def local(tmp_path: Path) -> str:
    return str(tmp_path / "chk")
