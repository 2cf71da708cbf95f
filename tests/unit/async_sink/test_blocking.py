"""A blocking call in threads: what a light shim is made of."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from outfall.async_sink import (
    AsyncSink,
    AsyncSinkOptions,
    BlockingSinkPartition,
    EventQueue,
    FixedLimiter,
    HostState,
    Request,
    RequestOutcome,
)
from outfall.async_sink.blocking import Workers
from outfall.async_sink.requests import Event
from outfall.errors import CapabilityError, TargetError, TransientError, ValueRefusedError
from tests.unit.support.async_destination import Letters


class Lines(BlockingSinkPartition[str]):
    def __init__(self, sink: LinesSink, **arguments: Any) -> None:
        super().__init__(sink, **arguments)
        self.target = sink.target

    def convert(self, batch: pa.RecordBatch) -> Sequence[str]:
        return [str(value) for value in batch.column(0).to_pylist()]

    def size_in_bytes(self, entry: str) -> int:
        return len(entry)

    def send(self, entries: Sequence[str]) -> RequestOutcome[str] | None:
        return self.target(entries)  # type: ignore[no-any-return]


class LinesSink(AsyncSink[str]):
    def __init__(self, target: Any, **settings: Any) -> None:
        small: dict[str, Any] = {"max_batch_size": 4, "retry_backoff": 0.001, "max_retry_backoff": 0.001}
        super().__init__(AsyncSinkOptions(**(small | settings)))
        self.target = target

    def open(self) -> Lines:
        return Lines(self)


def write(target: Any, rows: int = 20, **settings: Any) -> Lines:
    partition = LinesSink(target, **settings).open()
    try:
        partition.write_record_batch(pa.RecordBatch.from_pydict({"text": [str(number) for number in range(rows)]}))
        partition.flush(True)
    finally:
        partition.close()
    return partition


def test_requests_run_side_by_side_and_no_more_than_allowed() -> None:
    together = threading.Barrier(3)  # breaks unless three requests are under way at once

    def target(entries: Sequence[str]) -> None:
        together.wait(60)

    partition = write(target, rows=24, max_in_flight_requests=3)
    assert partition.metrics.counts["max_in_flight"] == 3
    assert partition.metrics.counts["sent"] == 24


def test_rows_come_as_values_too() -> None:
    seen: list[str] = []
    partition = LinesSink(seen.extend).open()
    partition.write_batch([{"text": "a"}, {"text": "b"}])
    partition.flush(True)
    partition.close()
    assert seen == ["a", "b"]


def test_an_error_that_may_pass_is_tried_again() -> None:
    failures = [ConnectionResetError("reset"), TransientError("busy"), TimeoutError()]
    seen: list[str] = []

    def target(entries: Sequence[str]) -> None:
        if failures:
            raise failures.pop()
        seen.extend(entries)

    write(target, max_in_flight_requests=1)
    assert seen == [str(number) for number in range(20)]


def test_an_unknown_error_stops_the_query_with_its_own_text() -> None:
    def target(entries: Sequence[str]) -> None:
        raise KeyError("no such topic")

    with pytest.raises(TargetError, match="KeyError: 'no such topic'") as raised:
        write(target)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_refused_value_is_found_and_the_others_are_sent_once() -> None:
    seen: list[str] = []

    def target(entries: Sequence[str]) -> None:
        if "7" in entries:
            raise ValueRefusedError("seven is not a number here")
        seen.extend(entries)

    dead = Letters()
    partition = LinesSink(target, max_in_flight_requests=1).open()
    partition.dead_letters_to(dead)
    partition.write_batch([{"text": str(number)} for number in range(20)])
    partition.flush(True)
    partition.close()
    assert seen == [str(number) for number in range(20) if number != 7]
    assert dead.rows == ["7"]
    assert "seven is not a number here" in dead.all[0].reason


def test_a_shim_may_ask_which_request_it_is() -> None:
    seen: list[tuple[int, int]] = []

    class Asking(Lines):
        def send_request(self, entries: Sequence[str], request: Request) -> RequestOutcome[str] | None:
            seen.append((request.id, request.tries))
            return RequestOutcome(retry=entries, together=True) if len(seen) < 3 else None

    partition = Asking(LinesSink(None, max_in_flight_requests=1))
    partition.write_batch([{"text": "a"}])
    partition.flush(True)
    partition.close()
    assert seen == [(0, 0), (0, 1), (0, 2)]


def test_a_shim_that_converts_nothing_says_so() -> None:
    class Empty(Lines):
        convert = BlockingSinkPartition.convert

    with pytest.raises(CapabilityError, match="override convert or convert_row"):
        Empty(LinesSink(None)).write_batch([{"text": "a"}])


class Skipping(EventQueue):
    """The first wait for an answer is over at once, after as many seconds as it takes, once its call hangs."""

    def __init__(self, hangs: threading.Event) -> None:
        super().__init__()
        self.hangs = hangs
        self.skipped = 0.0

    def now(self) -> float:
        return super().now() + self.skipped

    def take(self, seconds: float | None = 0.0) -> Event | None:
        if seconds and not self.skipped:
            assert self.hangs.wait(60)
            self.skipped = seconds
            return None
        return super().take(seconds)


class AloneSink(LinesSink):
    """Leaves nothing behind in the process: its clock is another one."""

    def host_state(self) -> HostState:
        return HostState(FixedLimiter(1))


def test_a_hanging_call_holds_up_neither_others_nor_the_end() -> None:
    hangs, over = threading.Event(), threading.Event()
    seen: list[str] = []

    def target(entries: Sequence[str]) -> None:
        if not hangs.is_set():
            hangs.set()
            over.wait(60)
            return
        seen.extend(entries)

    sink = AloneSink(target, max_in_flight_requests=1, request_timeout=200)
    partition = Lines(sink, events=Skipping(hangs))
    partition.write_record_batch(pa.RecordBatch.from_pydict({"text": [str(number) for number in range(20)]}))
    partition.flush(True)
    partition.close()
    over.set()
    assert seen == [str(number) for number in range(20)]
    assert partition.metrics.counts["timeouts"] == 1


def test_a_closed_pool_starts_nothing_that_waits() -> None:
    running, release, done = threading.Event(), threading.Event(), []

    def first() -> None:
        running.set()
        release.wait(60)

    workers = Workers(1)
    workers.run(first)
    workers.run(first)
    assert running.wait(60)
    workers.run(lambda: done.append("never"))
    workers.close()
    threads = [thread for thread in threading.enumerate() if thread.name == "outfall-send"]
    release.set()
    for thread in threads:
        thread.join(60)
    assert done == []
