"""Two copies of one log, and a driver on each: both count the same numbers, and the target tells them apart by token.

The target here is a model of a table with a ledger, which keeps its record by the rules of `outfall.target_record`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsCommitter,
    SupportsTarget,
    TargetContext,
)
from outfall.errors import FencedError, OutfallError
from outfall.serde import JsonSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.target_record import TargetRecord, check_opening, check_publishing, check_record
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.trace_points import listen, reached

EPOCHS = (1, 2)


class Ledger:
    """A table and its row in the ledger. Whoever holds the lock reads and writes both at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.record: TargetRecord | None = None
        self.published_under: str | None = None
        """The token under which the rows of the newest epoch were staged."""
        self.rows: list[Any] = []


class TableSink(DynamicSink[Any], SupportsTarget[Any], SupportsCommitter[Any]):
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def target(self) -> str:
        return "table"

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        with self.ledger.lock:
            record = self.ledger.record
        if record is not None:
            check_record("the table", record, context, ahead="restore the recovery data")
        return {}

    def open_target(self, context: TargetContext[Any]) -> None:
        reached("table: opening")
        with self.ledger.lock:
            found = self.ledger.record or TargetRecord(0)
            check_opening("the table", found, context)
            self.ledger.record = TargetRecord(context.generation, context.token, found.epoch)
        reached("table: opened")

    def build(self, step_id: str, worker_index: int, worker_count: int) -> TablePart:
        return TablePart()

    def create_committer(self, context: CommitterInitContext) -> TableCommitter:
        return TableCommitter(self.ledger, context)

    def committable_serializer(self) -> JsonSerializer:
        return JsonSerializer()


class TablePart(StatelessSinkPartition[Any]):
    def __init__(self) -> None:
        self.values: list[Any] = []

    def write_batch(self, items: list[Any]) -> None:
        self.values += items

    def prepare_commit(self) -> list[Any]:
        return self.values


class TableCommitter(Committer[Any]):
    def __init__(self, ledger: Ledger, context: CommitterInitContext) -> None:
        self.ledger = ledger
        self.context = context

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        reached("table: publishing")
        with self.ledger.lock:
            found = self.ledger.record or TargetRecord(0)
            if found.epoch == self.context.epoch:
                return
            check_publishing("the table", found, self.context)
            if found.epoch is not None and found.epoch >= self.context.epoch:
                raise FencedError("another driver has published this epoch")
            self.ledger.rows += [request.committable for request in requests]
            self.ledger.record = replace(found, epoch=self.context.epoch)
            self.ledger.published_under = self.context.token
        reached("table: published")


class Turns:
    """Lets two threads run in turn, from one step to the next, in a given order; then whoever has steps left."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order: Iterator[int] = iter(order)
        self._free = threading.Condition()
        self._turn = 0
        self._running: dict[int, int] = {}

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=self._run, args=(index, work)) for index, work in enumerate(works)]
        stop = listen(self._step)
        try:
            with self._free:
                for index, thread in enumerate(threads):
                    thread.start()
                    self._running[thread.ident or 0] = index
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
        finally:
            stop()

    def _run(self, index: int, work: Callable[[], None]) -> None:
        with self._free:
            self._free.wait_for(lambda: self._turn == index, 60)
        try:
            work()
        finally:
            with self._free:
                del self._running[threading.get_ident()]
                self._pass_on()

    def _step(self, step: str) -> None:
        if threading.get_ident() not in self._running:
            return
        with self._free:
            me = self._running[threading.get_ident()]
            self._turn = me
            self._pass_on()
            self._free.wait_for(lambda: self._turn == me, 60)

    def _pass_on(self) -> None:
        wanted = next(self._order, None)
        running = list(self._running.values())
        if wanted in running:
            self._turn = wanted if wanted is not None else self._turn
        elif running and self._turn not in running:
            self._turn = running[0]
        self._free.notify_all()


def rows_of(epoch: int, name: str) -> list[Any]:
    return [[epoch, name, index] for index in range(2)]


class Copy:
    """One copy of the log, the driver on it, and the epochs whose rows it has reported as written."""

    def __init__(self, name: str, ledger: Ledger, files: Mapping[str, bytes]) -> None:
        self.name = name
        self.recovery = MemoryRecoveryConfig()
        self.recovery.files.update(files)
        self.sink = TableSink(ledger)
        self.reported: list[int] = []

    def run(self) -> None:
        driver = LocalDriver(self.sink, self.recovery)
        for epoch in EPOCHS:
            try:
                result = driver.run_epoch(epoch, [rows_of(epoch, self.name)])
            except OutfallError:
                return
            if not result.skipped:
                self.reported.append(epoch)


def test_the_target_is_opened_after_begin_is_recorded_and_before_a_task_writes() -> None:
    with crash_at(None) as seen:
        LocalDriver(TableSink(Ledger()), MemoryRecoveryConfig()).run_epoch(0, [rows_of(0, "a")])
    wanted = ["after BEGIN", "table: opening", "table: opened", "task: after write"]
    assert [step for step in seen if step in wanted] == wanted


def test_a_target_is_told_which_generation_came_before() -> None:
    contexts: list[TargetContext[Any]] = []

    class Sink(TableSink):
        def open_target(self, context: TargetContext[Any]) -> None:
            contexts.append(context)
            super().open_target(context)

    driver = LocalDriver(Sink(Ledger()), MemoryRecoveryConfig())
    for epoch in range(2):
        driver.run_epoch(epoch, [rows_of(epoch, "a")])
    first, second = contexts
    assert (first.last_generation, second.last_generation) == (0, first.generation)
    assert second.generation > first.generation


@pytest.mark.thorough
@settings(deadline=None, max_examples=150)
@given(
    steps=st.lists(st.one_of(st.integers(1, 6), st.integers(7, 70)), min_size=2, max_size=6),
    left=st.sampled_from(["nothing", "after BEGIN", "table: opened", "after PREPARED", "table: published"]),
    restarts=st.lists(st.integers(0, 1), max_size=3),
)
def test_of_two_copies_of_a_log_no_driver_reports_rows_that_are_not_there(
    steps: list[int], left: str, restarts: list[int]
) -> None:
    ledger, origin = Ledger(), MemoryRecoveryConfig()
    driver = LocalDriver(TableSink(ledger), origin)
    driver.run_epoch(0, [rows_of(0, "origin")])
    if left != "nothing":
        with crash_at(left):
            driver.run_epoch(1, [rows_of(1, "origin")])
    copies = [Copy(name, ledger, origin.files) for name in ("a", "b")]
    Turns([index % 2 for index, count in enumerate(steps) for _ in range(count)]).run([copy.run for copy in copies])
    for which in restarts:
        copies[which].run()
    found = Counter(map(tuple, ledger.rows))
    assert set(found.values()) == {1}
    for epoch in EPOCHS:
        written = {row[1] for row in found if row[0] == epoch}
        assert len(written) <= 1
        for copy in copies:
            # An epoch that the origin had prepared is settled by either, with the origin's rows.
            if epoch in copy.reported:
                assert written == {copy.name}
                assert found.keys() >= set(map(tuple, rows_of(epoch, copy.name)))
