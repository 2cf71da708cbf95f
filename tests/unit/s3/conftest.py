"""What the unit tests of S3 share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store in memory is no better for being waited for."""
    monkeypatch.setattr("outfall.s3.store._LONGEST_PAUSE", 0.005)
