"""`AsyncSinkPartition`: buffers entries, sends them in requests side by side, and sees each to its end."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from outfall.async_sink.answers import AnswerHandler
from outfall.async_sink.buffer import Batch, EntryBuffer
from outfall.async_sink.counters import Counters
from outfall.async_sink.letters import LetterBox
from outfall.async_sink.mailbox import Letter, Mailbox
from outfall.async_sink.requests import Requests, Underway
from outfall.async_sink.result import Outcome, Refusal, RequestResult
from outfall.async_sink.state import BufferedRequests
from outfall.capabilities import Metrics
from outfall.dead_letter import DeadLetter
from outfall.encode import rows_to_batch
from outfall.errors import CapabilityError, TransientError
from outfall.sinks import StatelessSinkPartition
from outfall.values import to_values

if TYPE_CHECKING:
    from outfall.async_sink.sink import AsyncSink

E = TypeVar("E")


class AsyncSinkPartition(StatelessSinkPartition[Any], ABC, Generic[E]):
    """One open writer of an `AsyncSink`, after Flink's `AsyncSinkWriter`.

    A shim implements `convert_row` or `convert`, `size_in_bytes` and `submit_request_entries`; a call that blocks is
    easier on `BlockingSinkPartition`. All methods run in the task's thread, and the partition's state is touched by it
    only: answers may come from any thread and are put into the mailbox.

    Order: with `max_in_flight_requests=1` requests follow the order of the rows; a failed entry is sent before all that
    come after it. With more, entries that wait for their back-off are passed by others, and hold no slot.
    `ordering_key` keeps the order of some.
    """

    def __init__(
        self,
        sink: AsyncSink[E],
        *,
        mailbox: Mailbox | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Start with an empty buffer.

        Args:
            sink: what opens it, bound to its context where there is one.
            mailbox: where answers arrive, and the clock. Left out: the machine's.
            jitter: gives random numbers from 0 to below 1.
        """
        self.sink = sink
        self.options = options = sink.options
        self.metrics: Metrics = sink.context.metrics if sink.context else Metrics()
        self._mailbox = mailbox or Mailbox()
        self._counters = Counters(self.metrics)
        self._host = sink.host_state()
        self._buffer: EntryBuffer[E] = EntryBuffer(ordered=options.max_in_flight_requests == 1)
        self._requests: Requests[E] = Requests(self._mailbox, options.request_timeout_ms / 1000)
        self._letters: LetterBox[E] = LetterBox(self.text_of, sink.context, self._counters)
        self._answers: AnswerHandler[E] = AnswerHandler(
            self._buffer, self._host, options.retry_policy(), self._letters, self._counters, jitter, str(sink)
        )
        self._timer: float | None = None
        """When the one timer goes off: `max_time_in_buffer_ms` after the first entry of an empty buffer."""
        self._send_below = 0
        """Entries before this one are sent although they do not fill a request: the timer went off over them."""
        self._restored: list[E] = []
        """Taken in with the first call, when it is known where refused entries go."""
        self._failure: BaseException | None = None

    # What a shim implements.

    def convert(self, batch: pa.RecordBatch) -> Sequence[E]:
        """Turn rows into request entries, one each: override this, or `convert_row` where rows are easier."""
        return [self.convert_row(row) for row in to_values(batch, None)]

    def convert_row(self, row: Any) -> E:
        """Turn one row, a dict of its columns, into a request entry."""
        raise CapabilityError(
            f"{type(self).__name__} turns neither rows nor batches into entries", do="override convert or convert_row"
        )

    @abstractmethod
    def size_in_bytes(self, entry: E) -> int:
        """Return how many bytes an entry takes at the destination, as its limits count them."""

    @abstractmethod
    def submit_request_entries(self, entries: Sequence[E], result: RequestResult[E]) -> None:
        """Start one request, and return without waiting for its answer.

        Called in the task's thread, for at most `max_in_flight_requests` at a time.

        Args:
            entries: one or more, within the limits.
            result: takes the answer, once, from any thread.

        Raises:
            Exception: stops the query.
        """

    def ordering_key(self, entry: E) -> Hashable:
        """Return a key whose entries reach the destination in their order, one request at a time; `None` for none."""
        return None

    def text_of(self, entry: E) -> str:
        """Return an entry's record as JSON text, for its dead letter. The default suits text, bytes and JSON values."""
        if isinstance(entry, bytes):
            return entry.decode(errors="backslashreplace")
        return entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False, default=str)

    # What the engine calls.

    def write_batch(self, values: list[Any]) -> None:
        """Buffer rows, and send what fills a request. Waits while the buffer is full."""
        if type(self).convert is AsyncSinkPartition.convert:
            self._accept(map(self.convert_row, values))
        else:
            self._accept(self.convert(rows_to_batch(values)))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """As `write_batch`, for Arrow."""
        self._accept(self.convert(batch))

    def flush(self, end_of_input: bool) -> None:
        """Send everything and wait for its answers, or with `across_epochs` wait for what is under way.

        Args:
            end_of_input: False to wait for what is under way only, and start nothing.

        Raises:
            OutfallError: an entry was refused for good, or for too long.
        """
        self._accept(())
        with self._failing():
            drain = end_of_input or not self.options.across_epochs
            while self._requests.count or (drain and len(self._buffer)):
                if drain:
                    self._send(self._buffer.next_number)
                self._wait()

    def snapshot_state(self, epoch: int) -> Sequence[BufferedRequests[E]]:
        """Return what is held back, if anything is."""
        entries = [*self._buffer, *self._restored]
        self._counters.held(len(entries))
        return [BufferedRequests(entries)] if entries else []

    def restore(self, state: BufferedRequests[E]) -> None:
        """Take over what another writer held back. Called before the first row, once per state."""
        self._restored.extend(state.entries)

    def close(self) -> None:
        """Release resources. What is under way is not waited for."""

    # What others call.

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Hand refused entries to `take`, in the task's thread. Without it they stop the query.

        Args:
            take: keeps them; when it raises, the query stops.
        """
        self._letters.take = take

    def stop(self, error: BaseException) -> None:
        """Make the task's thread raise `error` instead of waiting any longer. Any thread may call it."""

        def letter() -> None:
            raise error

        self._mailbox.put(letter)

    @property
    def in_flight(self) -> int:
        """How many requests are under way."""
        return self._requests.count

    @property
    def buffered(self) -> int:
        """How many entries are held back, those that wait for a retry among them."""
        return len(self._buffer) + len(self._restored)

    @property
    def limit(self) -> int:
        """The host's present limit, in the limiter's unit."""
        return self._host.limiter.limit

    @property
    def current_send_time(self) -> float | None:
        """Seconds between the last answered request and its answer; `None` before the first."""
        return self._counters.current_send_time

    # The mailbox loop.

    def _accept(self, entries: Iterable[E]) -> None:
        with self._failing():
            restored, self._restored = self._restored, []
            for entry in chain(restored, entries):
                size = self.size_in_bytes(entry)
                if size > self.options.max_record_size_in_bytes:
                    self._letters.put([self._too_large(entry, size)])
                    continue
                while len(self._buffer) >= self.options.max_buffered_requests:
                    self._send(self._buffer.next_number)
                    if len(self._buffer) >= self.options.max_buffered_requests:
                        self._wait()
                if self._timer is None and not len(self._buffer):
                    self._timer = self._mailbox.now() + self.options.max_time_in_buffer_ms / 1000
                self._buffer.add(entry, size, self.ordering_key(entry))
                if self._is_full():
                    self._send(self._send_below)
            self._open_letters()
            self._send(self._send_below)

    def _is_full(self) -> bool:
        return (
            self._buffer.ready >= self._batch_limit()
            or self._buffer.ready_bytes >= self.options.max_batch_size_in_bytes
            or self._buffer.has_whole
        )

    def _batch_limit(self) -> int:
        return self._host.limiter.batch_size(self.options.max_batch_size)

    def _send(self, below: int) -> None:
        """Start as many requests as are admitted: full ones, and others while an entry before `below` is ready."""
        self._look_at_the_clock()
        while self._may_start() and (self._is_full() or self._is_before(max(below, self._send_below))):
            batch = self._buffer.take(self._batch_limit(), self.options.max_batch_size_in_bytes)
            if batch is None:
                return
            self._start(batch)

    def _is_before(self, number: int) -> bool:
        first = self._buffer.first_number if self._buffer.ready else None
        return first is not None and first < number

    def _may_start(self) -> bool:
        if not self._buffer.ready or self._requests.count >= self.options.max_in_flight_requests:
            return False
        if self._host.not_before.wait(self._mailbox.now()) > 0:
            return False
        size = min(self._batch_limit(), self._buffer.ready)
        return self._requests.count == 0 or self._host.limiter.admits(self._requests.in_flight, size)

    def _start(self, batch: Batch[E]) -> None:
        underway = self._requests.start(batch, self._answered, self._counters.late)
        retried = sum(item.tries > 0 for item in batch.items)
        for item in batch.items:
            if item.first_sent is None:
                item.first_sent = underway.started_at
        if not retried:
            self._host.budget.earn()
        self._counters.started(len(batch.items), batch.size, self._requests.count, retried)
        self._host.limiter.started(self._requests.in_flight)
        self.submit_request_entries([item.entry for item in batch.items], underway.result)

    def _wait(self) -> None:
        """Wait for a letter or for the next moment at which something is due, and do what is due then."""
        now = self._mailbox.now()
        due = [self._requests.next_timeout, self._buffer.next_ready_at]
        if self._buffer.ready:
            due.append(now + self._host.not_before.wait(now))
        moments = [moment for moment in due if moment is not None]
        if not moments:
            raise RuntimeError("a partition would wait for nothing; this is a fault in outfall.async_sink")
        self._open(self._mailbox.take(min(moments) - now))
        self._open_letters()
        self._look_at_the_clock()

    def _open_letters(self) -> None:
        while (letter := self._mailbox.take()) is not None:
            self._open(letter)

    def _open(self, letter: Letter | None) -> None:
        if letter is not None:
            letter()

    def _look_at_the_clock(self) -> None:
        now = self._mailbox.now()
        for underway in self._requests.give_up(now):
            self._timed_out(underway, now)
        self._buffer.release(now, lambda: self._pay(now))
        if self._timer is not None and self._timer <= now:
            self._timer = None
            self._send_below = self._buffer.next_number

    def _pay(self, now: float) -> float:
        budget = self._host.budget
        return 0.0 if budget.spend(now) else budget.wait(now)

    def _answered(self, underway: Underway[E], outcome: Outcome[E]) -> None:
        self._requests.end(underway)
        failed = len(outcome.retry)
        accepted = len(underway.batch.items) - failed - len(outcome.split) - len(outcome.dead)
        ended = underway.result.ended_at or underway.started_at
        self._counters.answered(ended - underway.started_at, accepted, failed, self._requests.count)
        self._answers.handle(underway, outcome, self._mailbox.now())

    def _timed_out(self, underway: Underway[E], now: float) -> None:
        entries = [item.entry for item in underway.batch.items]
        self._counters.timed_out(len(entries), self._requests.count)
        reason = f"no answer within request_timeout_ms ({self.options.request_timeout_ms})"
        if self.options.fail_on_timeout:
            raise TransientError(
                f"{self.sink} gave no answer within {self.options.request_timeout_ms} ms",
                do="see why it is slow, raise request_timeout_ms, or leave fail_on_timeout out to have it sent again",
            )
        self._answers.handle(underway, Outcome(retry=entries, reason=reason, together=True), now, timed_out=True)

    def _too_large(self, entry: E, size: int) -> Refusal[E]:
        limit = int(self.options.max_record_size_in_bytes)
        return Refusal(entry, f"it has {size} bytes, and max_record_size_in_bytes is {limit}", "too_large")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Remember the error that ends this partition: after it nothing may look as if it had gone well."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise
