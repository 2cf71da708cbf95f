"""One task: what it closes, counts and refuses, with rows in Python and with Spark's own writer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from outfall.capabilities import SupportsSparkWriter
from outfall.errors import SerializationError
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sinks import StatelessSinkPartition
from outfall.testing import crash_at
from tests.unit.support.setups import Staging
from tests.unit.support.warehouse import Staged, StagingPartition, StagingSink, Warehouse


class Partition(StagingPartition):
    """Fails as it is told."""

    fails: Sequence[str] = ()
    committable: Any = None

    def write_frame(self, frame: Any) -> int:
        self.write_batch(frame)
        return len(frame)

    def write_batch(self, values: list[Any]) -> None:
        super().write_batch(values)
        self._fail("write")

    def prepare_commit(self) -> Sequence[Staged]:
        return super().prepare_commit() if self.committable is None else [self.committable]

    def close(self) -> None:
        super().close()
        self._fail("close")

    def _fail(self, name: str) -> None:
        if name in self.fails:
            raise OSError(f"{name} failed")


class Sink(StagingSink):
    def __init__(self, warehouse: Warehouse, *fails: str, committable: Any = None) -> None:
        super().__init__(warehouse)
        self.fails, self.committable = fails, committable

    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return super().committable_serializer() if self.committable is None else JsonSerializer()

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        assert self._context is not None
        part = Partition(self.warehouse, f"w{worker_index}-g{self._context.generation}")
        part.fails, part.committable = self.fails, self.committable
        return part


class SparkSink(Sink, SupportsSparkWriter):
    def by_spark(self) -> bool:
        return True


def task(sink: Sink) -> EpochTask:
    setup = Staging()
    setup.warehouse = sink.warehouse
    ticket = setup.driver().coordinator().begin(0)
    return EpochTask(sink, ticket, TaskIdentity(0, 0, 0))


def test_a_part_is_closed_once_and_an_error_of_that_is_not_lost() -> None:
    sink = Sink(Warehouse(), "close")
    with pytest.raises(OSError, match="close failed"):
        task(sink).run([(None, [1, 2])])
    assert sink.warehouse.closed == 1


def test_an_error_of_closing_does_not_hide_the_first(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(Warehouse(), "write", "close")
    with pytest.raises(OSError, match="write failed"):
        task(sink).run([(None, [1, 2])])
    (warning,) = caplog.records
    assert (warning.levelno, warning.getMessage()) == (logging.WARNING, "closing writer 0 failed, too")
    assert warning.exc_info is not None
    assert "close failed" in str(warning.exc_info[1])


def test_a_committable_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(SerializationError, match="a committable of writer 0 cannot be serialized") as caught:
        task(Sink(Warehouse(), committable=object())).run([(None, [1])])
    assert (caught.value.step, caught.value.epoch) == ("sink", 0)


def test_rows_are_counted_by_who_has_written_them() -> None:
    python = task(Sink(Warehouse())).run([(None, [1, 2]), (None, []), (None, [3])])
    assert python.counts["rows"] == 3
    assert "rows_by_spark" not in python.counts
    with crash_at(None) as seen:
        spark = task(SparkSink(Warehouse())).run_by_spark([1, 2])
    assert (spark.counts["rows"], spark.counts["rows_by_spark"]) == (2, 2)
    assert "task: after write" in seen


def test_spark_writes_while_the_log_is_open_and_a_heartbeat_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, sink = Staging(), SparkSink(Warehouse())
    coordinator = setup.driver().coordinator()
    found = EpochTask(sink, coordinator.begin(0), TaskIdentity(0, 0, 0))
    log, closed = found._log, []
    assert log is not None
    monkeypatch.setattr(log, "close", lambda: closed.append(True))
    entered: list[str] = []
    monkeypatch.setattr(found, "_heartbeat", lambda: closing(_Beat(entered)))
    found.run_by_spark([1])
    assert closed == [True]
    assert entered == ["ended"]


class _Beat:
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def close(self) -> None:
        self._seen.append("ended")
