"""Batch jobs of the Python API that fail, without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest

from outfall.errors import TargetNotEmptyError
from outfall.file import FileSink
from outfall.spark import batch, write
from outfall.spark.epoch_writer import EpochWriter


def test_mode_ignore_hides_no_rows_that_a_failed_job_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Never:
        raise TargetNotEmptyError("a file of another writer exists")

    left: str | None = None
    monkeypatch.setattr(EpochWriter, "write", fail)
    monkeypatch.setattr(batch, "end_failed", lambda *_: left)
    no_rows: Any = SimpleNamespace(isStreaming=False)
    assert write(no_rows, FileSink(tmp_path / "out"), mode="ignore").skipped
    left = "The data of the failed job could not be rolled back."
    with pytest.raises(TargetNotEmptyError) as caught:
        write(no_rows, FileSink(tmp_path / "out"), mode="ignore")
    assert left in caught.value.__notes__
