"""Wrappers around `FileSink` keep its guarantee: the conformance suite does not refute it for any of the targets."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outfall.file import FileSink
from outfall.file.stores.locks import Patience
from outfall.testing import SinkConformance
from outfall.testing.conformance import run_check
from outfall.wrappers import BatchingSink, ExactlyOnceSink, FanOutSink
from tests.unit.file.test_conformance import SEALED, visible


def file_sink(path: Path, **options: Any) -> Any:
    sink: Any = FileSink(path, **options)
    # A stalled attempt may hold a lock, and whoever waits for it must not wait for long.
    sink.delegate.patience = Patience(seconds=0.05)
    return sink


def rows_in(path: Path) -> list[Any]:
    return [json.loads(line) for file in visible(path) for line in file.read_text().splitlines()]


def staged(path: Path) -> int:
    """How many files of attempts lie there."""
    return len(list((path / "_outfall" / "staging").glob("*")))


class Wrapped(SinkConformance):
    """One target, `out`."""

    schedules = 30

    def read(self, target: Any) -> Iterable[Any]:
        return rows_in(target / "out")

    def lose_target(self, target: Any) -> None:
        shutil.rmtree(target / "out")

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        os.rename(target / "out", target / "away")
        (target / "out").touch()
        try:
            yield
        finally:
            os.unlink(target / "out")
            os.rename(target / "away", target / "out")

    def leftovers(self, target: Any) -> int:
        return staged(target / "out")


class Fanned(Wrapped):
    """The target that is read is one of two; leftovers are counted in both."""

    def leftovers(self, target: Any) -> int:
        return staged(target / "out") + staged(target / "other")

    def lose(self, target: Any, committable: Any) -> None:
        os.unlink(target / committable.child / "_outfall" / "staging" / committable.value.name)

    def make_sink(self, target: Any) -> Any:
        return FanOutSink(out=file_sink(target / "out"), other=file_sink(target / "other"))


@pytest.mark.long
class TestFanOut(Fanned):
    pass


@pytest.mark.long
class TestOtherSinkOfAFanOut(Fanned):
    """The one that commits first."""

    def make_sink(self, target: Any) -> Any:
        return FanOutSink(other=file_sink(target / "other"), out=file_sink(target / "out"))


@pytest.mark.long
class TestFanOutToGrowingFiles(Wrapped):
    """In place, beside whole files."""

    not_claimed = SEALED | {"nothing_visible_before_commit": "growing files show rows before the whole files commit"}

    def make_sink(self, target: Any) -> Any:
        return FanOutSink(out=file_sink(target / "out", parts=3), other=file_sink(target / "other"))

    def leftovers(self, target: Any) -> int:
        return staged(target / "other")


@pytest.mark.long
class TestBatches(Wrapped):
    def make_sink(self, target: Any) -> Any:
        return BatchingSink(file_sink(target / "out"), batch_size=2)


@pytest.mark.long
class TestBatchesAcrossEpochs(Wrapped):
    not_claimed = SEALED

    def make_sink(self, target: Any) -> Any:
        return BatchingSink(file_sink(target / "out", parts=3), batch_size=2, across_epochs=True)


@pytest.mark.long
class TestExactlyOnce(Wrapped):
    """Offsets are the rows' numbers."""

    not_claimed = {"equal_rows": "rows with one offset are one row of the source"}

    def make_sink(self, target: Any) -> Any:
        return ExactlyOnceSink(file_sink(target / "out"), offset="id", source_partition="source", parts=3)

    def row(self, number: int) -> Any:
        return {**super().row(number), "source": f"{number % 3}"}

    def key(self, number: int) -> str:
        return f"{number % 3}"


@pytest.mark.parametrize("check", ["lost_reply_of_a_commit", "commit_deadline"])
def test_a_fan_out_keeps_its_word_where_every_commit_fails(check: str, tmp_path: Path) -> None:
    run_check(Fanned(), check, tmp_path)


def test_batches_across_epochs_are_stored_as_they_were(tmp_path: Path) -> None:
    run_check(TestBatchesAcrossEpochs(), "stored_values_come_back", tmp_path)


@pytest.mark.parametrize("harness", [TestFanOut, TestOtherSinkOfAFanOut, TestFanOutToGrowingFiles])
def test_what_lost_attempts_leave_is_cleaned_up_from_every_sink(harness: type[Wrapped], tmp_path: Path) -> None:
    run_check(harness(), "leftovers_are_cleaned_up", tmp_path)


@pytest.mark.parametrize("harness", [TestFanOut, TestFanOutToGrowingFiles, TestBatchesAcrossEpochs, TestExactlyOnce])
def test_close_after_an_error_publishes_nothing(harness: type[Wrapped], tmp_path: Path) -> None:
    run_check(harness(), "close_publishes_nothing", tmp_path)
