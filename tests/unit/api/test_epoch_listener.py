"""`EpochListener` beside a log and reports that the test makes; with Spark it is tried in tests/integration/spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.entries import Begin, Completed, Skipped, encode_entry
from outfall.recovery.log import LogEntry, RecoveryConfig, RecoveryLog
from outfall.spark import EpochListener, EpochProgress

QUERY = UUID(int=7)
OTHER = UUID(int=8)


class StepLog:
    """A step's log, written as a driver of `QUERY` would."""

    def __init__(self, directory: Path) -> None:
        self.config = CheckpointRecoveryConfig(str(directory))
        self._log = self.config.open("sink")
        self._drains = 0
        self._next = 0

    def complete(self, epochs: int = 1, *, drain: bool = False) -> None:
        for epoch in range(self._next, self._next + epochs):
            generation = self._append(
                Begin(
                    **self._common(), epoch=epoch, outfall="1", sink="s", target=None, query_id=str(QUERY), driver="d"
                )
            )
            counts = {"rows": 10 * epoch}
            done = Completed(
                **self._common(),
                epoch=epoch,
                generation=generation,
                prepared=generation,
                counts=counts,
                drain=drain,
                drains=self._drains,
            )
            self._append(done)
            self._next, self._drains = epoch + 1, self._drains + drain

    def skip(self) -> None:
        self._append(Skipped(**self._common(), epoch=self._next - 1, drains=self._drains, counts={"skipped": 4}))

    def _common(self) -> dict[str, Any]:
        return {"step": "sink", "incarnation": "i"}

    def _append(self, entry: Any) -> int:
        return self._log.append(encode_entry(entry), after=max(self._log.numbers(), default=0))


@pytest.fixture
def log(tmp_path: Path) -> StepLog:
    return StepLog(tmp_path)


def report(listener: EpochListener, batch: int, query: UUID = QUERY) -> None:
    """Call the listener as Spark does."""
    progress = SimpleNamespace(id=query, name="flights", batchId=batch)
    listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]


def listening(
    log: RecoveryConfig, then: Callable[[EpochProgress], None] = lambda it: None
) -> tuple[EpochListener, list[EpochProgress]]:
    seen: list[EpochProgress] = []

    def take(it: EpochProgress) -> None:
        seen.append(it)
        then(it)

    return EpochListener(log, on_epoch=take), seen


def test_each_epoch_comes_once_with_the_report_of_its_own_batch(log: StepLog) -> None:
    listener, seen = listening(log.config)
    report(listener, 0)
    log.complete(3)
    for batch in (0, 0, 1, 2, 2):
        report(listener, batch)
    assert [(it.epoch.epoch, it.progress.batchId, it.epoch.rows) for it in seen] == [(0, 0, 0), (1, 1, 10), (2, 2, 20)]
    assert {(it.query_id, it.query_name, it.step_id) for it in seen} == {(str(QUERY), "flights", "sink")}


def test_drains_and_skipped_epochs_come_too(log: StepLog) -> None:
    listener, seen = listening(log.config)
    log.complete(1)
    report(listener, 0)
    log.complete(1, drain=True)
    log.skip()
    report(listener, 0)
    log.complete(1)
    report(listener, 1)
    assert [(it.epoch.epoch, it.epoch.batch, it.epoch.skipped) for it in seen] == [
        (0, 0, 0),
        (1, None, 0),
        (1, 0, 4),
        (2, 1, 0),
    ]


def test_a_listener_that_comes_later_begins_with_the_batch_that_is_reported(log: StepLog) -> None:
    listener, seen = listening(log.config)
    log.complete(5)
    log.complete(1, drain=True)
    log.complete(2)
    report(listener, 5)
    assert [it.epoch.batch for it in seen] == [None, 5]


def test_other_queries_are_passed_over(log: StepLog) -> None:
    listener, seen = listening(counting := CountingStore(log.config))
    report(listener, 0, OTHER)
    log.complete(2)
    report(listener, 1, OTHER)
    opened = counting.opened
    report(listener, 1, OTHER)
    assert counting.opened == opened
    assert not seen
    report(listener, 1)
    assert [it.epoch.epoch for it in seen] == [1]


class CountingStore(RecoveryConfig):
    """Counts what is read of a log."""

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self.opened = 0
        self.read = 0

    def open(self, step_id: str) -> RecoveryLog:
        self.opened += 1
        log: Any = self._config.open(step_id)
        read = log.read

        def counted(*, last: int | None = None) -> list[LogEntry]:
            found: list[LogEntry] = read(last=last)
            self.read += len(found)
            return found

        log.read = counted
        return log  # type: ignore[no-any-return]

    def url(self) -> str:
        return self._config.url()


def test_only_new_entries_are_read_however_long_the_log_is(log: StepLog) -> None:
    listener, seen = listening(counting := CountingStore(log.config))
    log.complete(60)
    report(listener, 59)
    counting.read = 0
    log.complete(1)
    report(listener, 60)
    assert counting.read <= 8
    log.complete(20)
    report(listener, 80)
    assert [it.epoch.epoch for it in seen] == list(range(59, 81))


def test_a_log_that_cannot_be_read_is_warned_of_once_and_what_was_missed_comes_later(
    log: StepLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener, seen = listening(log.config)
    log.complete(1)
    report(listener, 0)
    for batch in (1, 2):
        log.complete(1)
        newest = max((path for path in tmp_path.rglob("*") if path.is_file()), key=lambda path: path.name)
        whole = newest.read_bytes()
        newest.write_bytes(whole[:9])
        report(listener, batch)
        report(listener, batch)
        newest.write_bytes(whole)
        report(listener, batch)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "the epochs of step sink cannot be read" in caplog.messages[0]
    assert "is damaged (9 bytes)" in caplog.messages[0]
    assert [it.epoch.epoch for it in seen] == [0, 1, 2]


def test_a_callback_that_raises_is_warned_of_once_and_keeps_nothing_back(
    log: StepLog, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(it: EpochProgress) -> None:
        raise ValueError("sent to postgresql://me:secret@host/db")

    listener, seen = listening(log.config, broken)
    log.complete(3)
    for batch in range(3):
        report(listener, batch)
    assert [it.epoch.epoch for it in seen] == [0, 1, 2]
    assert len(caplog.records) == 1
    assert "step sink, epoch 0: on_epoch failed" in caplog.text
    assert "secret" not in caplog.text


def test_without_a_callback_each_epoch_is_logged(log: StepLog, caplog: pytest.LogCaptureFixture) -> None:
    log.complete(3)
    listener = EpochListener(str(log.config.url()))
    with caplog.at_level(logging.INFO, "outfall.spark.epoch_listener"):
        report(listener, 2)
    (line,) = caplog.messages
    assert line.startswith("query flights, step sink, epoch 2: 20 rows in 0.00 s (0 retries, 0 dead letters,")
