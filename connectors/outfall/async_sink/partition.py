"""`AsyncSinkPartition`: buffers entries, sends them in concurrent requests, and tracks each to its outcome."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from outfall.async_sink.buffer import BufferedRequests, EntryBuffer
from outfall.async_sink.loop import RequestLoop
from outfall.async_sink.outcomes import Counters, OutcomeHandler, RefusalHandler
from outfall.async_sink.requests import EventQueue, RefusedEntry, RequestResult
from outfall.capabilities import Metrics
from outfall.dead_letter import DeadLetter
from outfall.errors import CapabilityError, OutfallError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.row_logging import RowLog
from outfall.sinks import StatelessSinkPartition
from outfall.values import rows_to_batch, to_values

if TYPE_CHECKING:
    from outfall.async_sink.sink import AsyncSink

E = TypeVar("E")


class AsyncSinkPartition(StatelessSinkPartition[Any], ABC, Generic[E]):
    """One open writer of an `AsyncSink`, after Flink's `AsyncSinkWriter`.

    A shim implements `convert_row` or `convert`, `size_in_bytes` and `submit_request_entries`. For a blocking call
    `BlockingSinkPartition` is easier. All methods run in the task's thread, and only that thread accesses the
    partition's state: responses may come from any thread, and go through the event queue.

    Order: with `max_in_flight_requests=1` requests follow the row order, and a failed entry is sent before all later
    ones. With more, entries in back-off occupy no slot and others pass them. `ordering_key` keeps the order of entries
    with the same key.
    """

    def __init__(
        self,
        sink: AsyncSink[E],
        *,
        events: EventQueue | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Start with an empty buffer.

        Args:
            sink: the sink that opens the partition, bound to its context if there is one.
            events: the queue of responses, and the clock. Default: the system clock.
            jitter: returns random numbers from 0 to below 1.
        """
        self.sink = sink
        self.options = options = sink.options
        self.metrics: Metrics = sink.context.metrics if sink.context else Metrics()
        self._events = events or EventQueue()
        self._counters = Counters(self.metrics)
        self._host = sink.host_state()
        self._refusals: RefusalHandler[E] = RefusalHandler(
            self.text_of, sink.context, self._counters, RowLog(options.log_rows, sink.key_columns())
        )
        self._buffer: EntryBuffer[E] = EntryBuffer(ordered=options.max_in_flight_requests == 1)
        self._loop = RequestLoop(
            options,
            self.submit_request_entries,
            OutcomeHandler(sink, self._buffer, self._host, self._refusals, jitter),
            buffer=self._buffer,
            host=self._host,
            events=self._events,
            counters=self._counters,
        )
        self._has_keys = type(self).ordering_key is not AsyncSinkPartition.ordering_key
        self._restored: list[tuple[Sequence[E], float]] = []
        """Restored entries with their times. Processed in the first call, after `dead_letters_to`."""
        self._failure: BaseException | None = None

    # To be implemented by a shim.

    def convert(self, batch: pa.RecordBatch) -> Sequence[E]:
        """Convert rows to request entries, one each. Override this, or `convert_row` if rows are easier.

        Raises:
            ValueRefusedError: a row cannot be converted. With a dead-letter sink, the method is called again with
                halves of the batch, down to that row, which becomes a dead letter. It must therefore have no side
                effects before it succeeds.
        """
        return [self.convert_row(row) for row in to_values(batch, None)]

    def convert_row(self, row: Any) -> E:
        """Convert one row, a dict of its columns, to a request entry.

        Raises:
            ValueRefusedError: the row cannot be converted; it becomes a dead letter.
            CapabilityError: the class overrides neither `convert` nor this method.
        """
        raise CapabilityError(
            f"{type(self).__name__} converts neither rows nor batches to entries", do="override convert or convert_row"
        )

    @abstractmethod
    def size_in_bytes(self, entry: E) -> int:
        """Return the size of an entry in bytes, as the destination's limits count it."""

    @abstractmethod
    def submit_request_entries(self, entries: Sequence[E], result: RequestResult[E]) -> None:
        """Start one request, and return without waiting for its response.

        Called in the task's thread, for at most `max_in_flight_requests` at a time.

        Args:
            entries: one or more, within the limits.
            result: takes the outcome, once, from any thread.

        Raises:
            Exception: fails the query.
        """

    def ordering_key(self, entry: E) -> Hashable:
        """Return a key whose entries reach the destination in order, one request at a time; `None` for no order."""
        return None

    def text_of(self, entry: E) -> str:
        """Return an entry's record as JSON, for its dead letter. The default suits strings, bytes and JSON values."""
        if isinstance(entry, bytes):
            return entry.decode(errors="backslashreplace")
        return entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False, default=str)

    # Called by the engine.

    def write_batch(self, values: list[Any]) -> None:
        """Buffer rows, and send full requests. Blocks while the buffer is full."""
        if type(self).convert is AsyncSinkPartition.convert:
            self._accept(lambda: self._converted_rows(values))
        else:
            self._accept(lambda: self._converted(rows_to_batch(values)))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Like `write_batch`, for Arrow."""
        self._accept(lambda: self._converted(batch))

    def flush(self, end_of_input: bool) -> None:
        """Send everything, or with `across_epochs` overdue entries only, and wait for the requests in flight.

        Args:
            end_of_input: whether no entry may stay buffered, even with `across_epochs`.

        Raises:
            OutfallError: an entry was rejected, or its retries are exhausted.
        """
        with self._failing():
            self._take_in(())
            if end_of_input or not self.options.across_epochs:
                self._loop.drain()
            else:
                self._loop.await_answers()

    def snapshot_state(self, epoch: int) -> Sequence[BufferedRequests[E]]:
        """Return the buffered entries, if any."""
        entries = [*self._buffer, *self._restored_entries()]
        if not entries:
            return []
        moments = [since for _, since in self._restored]
        oldest = min(moments if self._buffer.oldest is None else [self._buffer.oldest, *moments])
        return [BufferedRequests(entries, self._events.utc() - timedelta(seconds=self._events.now() - oldest))]

    def restore(self, state: BufferedRequests[E]) -> None:
        """Take over the buffered entries of another writer. Called before the first row, once per state."""
        waited = 0.0 if state.oldest is None else (self._events.utc() - state.oldest).total_seconds()
        since = self._events.now() - max(waited, 0.0)  # the clock may have been set back
        if state.entries:
            self._restored.append((state.entries, since))

    def close(self) -> None:
        """Release resources, without waiting for requests in flight."""

    # Called by others.

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Pass rejected entries to `take`, in the task's thread. Without it they fail the query.

        Args:
            take: stores them; if it raises, the query fails.
        """
        self._refusals.take = take

    def stop(self, error: BaseException) -> None:
        """Make the task's thread raise `error` instead of waiting. Any thread may call it."""

        def fail() -> None:
            raise error

        self._events.put(fail)

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self._loop.in_flight

    @property
    def buffered(self) -> int:
        """Number of buffered entries, including those that wait for a retry."""
        return self._buffer.count + len(self._restored_entries())

    @property
    def limit(self) -> int:
        """The current limit of the host, in the limiter's unit."""
        return self._host.limiter.limit

    @property
    def current_send_time(self) -> float | None:
        """Seconds between the last completed request and its response; `None` before the first."""
        return self._counters.current_send_time

    def _accept(self, entries: Callable[[], Iterable[E]]) -> None:
        with self._failing():
            self._take_in(entries())
            self._loop.turn()

    def _converted(self, batch: pa.RecordBatch) -> Iterable[E]:
        try:
            return self.convert(batch)
        except ValueRefusedError as error:
            if self._refusals.take is None or batch.num_rows <= 1:
                self._refusals.put_row("".join(row_texts(batch)), error)
                return ()
        half = batch.num_rows // 2
        return [*self._converted(batch.slice(0, half)), *self._converted(batch.slice(half))]

    def _converted_rows(self, values: Sequence[Any]) -> Iterator[E]:
        for value in values:
            try:
                entry = self.convert_row(value)
            except ValueRefusedError as error:
                self._refusals.put_row(json.dumps(value, ensure_ascii=False, default=str), error)
            else:
                yield entry

    def _take_in(self, entries: Iterable[E]) -> None:
        restored, self._restored = self._restored, []
        for written, since in chain(restored, [(entries, self._events.now())]):
            self._loop.add(self._fitting(written), since)

    def _fitting(self, entries: Iterable[E]) -> Iterator[tuple[E, int, Hashable]]:
        """Return entries with size and key. Those that are too large are rejected."""
        largest = int(self.options.max_record_size_in_bytes)
        size_of, key_of = self.size_in_bytes, self.ordering_key if self._has_keys else None
        for entry in entries:
            size = size_of(entry)
            if size <= largest:
                yield entry, size, None if key_of is None else key_of(entry)
            else:
                reason = f"it has {size} bytes, and max_record_size_in_bytes is {largest}"
                self._refusals.put([RefusedEntry(entry, reason, "too_large")])

    def _restored_entries(self) -> list[E]:
        return [entry for entries, _ in self._restored for entry in entries]

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Store the error that ends this partition, so that no later call succeeds."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            context = self.sink.context
            if isinstance(error, OutfallError) and context is not None:
                error.locate(step=context.step_id, epoch=context.epoch)
            raise
