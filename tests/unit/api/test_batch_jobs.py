"""Batch jobs of the Python API that fail, without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest

from outfall.errors import TargetNotEmptyError, TransientError
from outfall.file import FileSink
from outfall.spark import batch, write
from outfall.spark.epoch_writer import EpochWriter


@pytest.mark.parametrize(("tasks_ran", "what"), [(True, "The data of the failed job"), (False, "No row was written")])
def test_what_cannot_be_rolled_back_is_no_data_before_the_tasks(tasks_ran: bool, what: str) -> None:
    def fail() -> Never:
        raise TransientError("the server is away")

    recovery = batch.make_recovery()
    left = batch.end_failed(recovery, "sink", fail, tasks_ran=tasks_ran)
    batch.remove_recovery(recovery)
    assert left is not None
    assert left.startswith(what)
    assert f"`outfall gc {recovery.url()} sink --take-over --yes`" in left


def test_mode_ignore_hides_no_rows_that_a_failed_job_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Never:
        raise TargetNotEmptyError("a file of another writer exists")

    left: str | None = None
    monkeypatch.setattr(EpochWriter, "write", fail)
    monkeypatch.setattr(batch, "end_failed", lambda *_, **__: left)
    no_rows: Any = SimpleNamespace(isStreaming=False)
    assert write(no_rows, FileSink(tmp_path / "out"), mode="ignore").skipped
    left = "The data of the failed job could not be rolled back."
    with pytest.raises(TargetNotEmptyError) as caught:
        write(no_rows, FileSink(tmp_path / "out"), mode="ignore")
    assert left in caught.value.__notes__
