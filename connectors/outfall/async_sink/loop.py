"""The loop between a partition's buffer and its destination."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from outfall.async_sink.buffer import EntryBuffer
from outfall.async_sink.host_state import HostState
from outfall.async_sink.options import AsyncSinkOptions
from outfall.async_sink.outcomes import Counters, OutcomeHandler
from outfall.async_sink.requests import EventQueue, PendingRequest, PendingRequests, RequestOutcome, RequestResult
from outfall.errors import TransientError

E = TypeVar("E")

Submit = Callable[[Sequence[E], RequestResult[E]], None]


class RequestLoop(Generic[E]):
    """Starts requests within the limits, and waits for responses, timeouts, back-offs and the single timer.

    It runs in the task's thread, inside its own methods only.
    """

    def __init__(
        self,
        options: AsyncSinkOptions,
        submit: Submit[E],
        outcomes: OutcomeHandler[E],
        *,
        buffer: EntryBuffer[E],
        host: HostState,
        events: EventQueue,
        counters: Counters,
    ) -> None:
        """Start with nothing in flight."""
        self._options = options
        self._submit = submit
        self._outcomes = outcomes
        self._buffer = buffer
        self._host = host
        self._events = events
        self._counters = counters
        self._requests: PendingRequests[E] = PendingRequests(events, options.request_timeout.total_seconds())
        self._timer: float | None = None
        """The end of the single timer: `max_time_in_buffer_ms` after the first entry of an empty buffer was written,
        possibly in an earlier epoch.
        """
        self._send_below = 0
        """Entries before this position are sent even if they do not fill a request, because the timer has expired."""

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self._requests.count

    def add(self, entries: Iterable[tuple[E, int, Hashable]], since: float) -> None:
        """Add entries written at `since`, with size and key, and send full requests. Blocks while the buffer is full.

        Entries are added even if a later one raises.
        """
        buffer, most = self._buffer, self._options.max_buffered_requests
        at_once = self._options.max_in_flight_requests
        for entry, size, key in entries:
            while buffer.count >= most:
                self._send(buffer.next_number)
                if buffer.count >= most:
                    self._wait()
            if self._timer is None and not buffer.count:
                self._timer = since + self._options.max_time_in_buffer_ms / 1000
            buffer.add(entry, size, key, since)
            if self._requests.count < at_once and self._is_full():
                self._send(self._send_below)

    def turn(self) -> None:
        """Process available responses and send what is due, without waiting."""
        self._handle_events()
        self._send(self._send_below)

    def await_answers(self) -> None:
        """Wait for the requests in flight. Start only entries that are overdue."""
        self._look_at_the_clock()
        self._send_overdue()
        while self._requests.count:
            self._wait()
            self._send_overdue()

    def drain(self) -> None:
        """Send everything and wait for its outcome."""
        while self._requests.count or self._buffer.count:
            self._send(self._buffer.next_number)
            if self._requests.count or self._buffer.count:
                self._wait()

    def _send(self, below: int) -> None:
        """Start as many requests as the limits admit: full ones, and others while an entry before `below` is ready."""
        self._look_at_the_clock()
        below = max(below, self._send_below)
        while self._may_start() and (self._is_full() or self._is_before(below)) and self._start_next():
            pass

    def _send_overdue(self) -> None:
        """Start only the entries that the timer expired for."""
        while self._may_start() and self._is_before(self._send_below) and self._start_next():
            pass

    def _is_full(self) -> bool:
        return self._buffer.fills(self._batch_limit(), self._options.max_batch_size_in_bytes)

    def _is_before(self, number: int) -> bool:
        first = self._buffer.first_number
        return first is not None and first < number

    def _batch_limit(self) -> int:
        return self._host.limiter.batch_size(self._options.max_batch_size)

    def _may_start(self) -> bool:
        if not self._buffer.ready or self._requests.count >= self._options.max_in_flight_requests:
            return False
        if self._host.retry_gate.wait(self._events.now()) > 0:
            return False
        # A limiter never blocks a partition that has nothing in flight, because nothing would wake it.
        size = min(self._batch_limit(), self._buffer.ready)
        return self._requests.count == 0 or self._host.limiter.admits(self._requests.in_flight, size)

    def _start_next(self) -> bool:
        batch = self._buffer.take(self._batch_limit(), self._options.max_batch_size_in_bytes)
        if batch is None:
            return False
        pending = self._requests.start(batch, self._answered, self._counters.late)
        again = any(item.tries > 0 for item in batch.items)
        for item in batch.items:
            if item.first_sent is None:
                item.first_sent = pending.started_at
        if not again:
            self._host.budget.earn()
        self._counters.started(
            len(batch.items),
            batch.size,
            again=again,
            in_flight=self._requests.count,
            limit=self._host.limiter.limit,
        )
        self._host.limiter.started(self._requests.in_flight)
        self._submit([item.entry for item in batch.items], pending.result)
        return True

    def _wait(self) -> None:
        """Wait for an event or the next due time, and process what is due then."""
        now = self._events.now()
        moments = [self._requests.next_timeout, self._buffer.next_ready_at]
        held_for = self._host.retry_gate.wait(now)
        if self._buffer.ready and held_for > 0:
            moments.append(now + held_for)
        due = [moment for moment in moments if moment is not None]
        if not due:
            if self._buffer.ready:
                return  # a pause has ended since the caller checked, and the caller checks again
            raise RuntimeError("a partition would wait forever: this is a bug in outfall.async_sink")
        event = self._events.take(min(due) - now)
        if event is not None:
            event()
        self._handle_events()
        self._look_at_the_clock()

    def _handle_events(self) -> None:
        while (event := self._events.take()) is not None:
            event()

    def _look_at_the_clock(self) -> None:
        now = self._events.now()
        for pending in self._requests.give_up(now):
            self._timed_out(pending, now)
        self._buffer.release(now, lambda: self._pay(now))
        if self._timer is not None and self._timer <= now:
            self._timer = None
            self._send_below = self._buffer.next_number

    def _pay(self, now: float) -> float:
        return 0.0 if self._host.budget.spend(now) else self._host.budget.wait(now)

    def _answered(self, pending: PendingRequest[E], outcome: RequestOutcome[E]) -> None:
        self._requests.end(pending)
        accepted, size = len(pending.batch.items), pending.batch.size
        named = [*outcome.retry, *outcome.split, *outcome.unprocessed, *(refusal.entry for refusal in outcome.dead)]
        if named:
            accepted -= len(named)
            size -= sum(item.size for item in pending.find(named))
        self._counters.answered(pending.seconds, accepted, size, len(outcome.retry))
        self._outcomes.handle(pending, outcome, self._events.now())

    def _timed_out(self, pending: PendingRequest[E], now: float) -> None:
        entries = [item.entry for item in pending.batch.items]
        self._counters.timed_out(len(entries))
        timeout = f"{self._options.request_timeout.total_seconds():g} s"
        if self._options.fail_on_timeout:
            raise TransientError(
                f"the destination did not respond within {timeout}",
                do="find out why the destination is slow, raise request_timeout, or omit fail_on_timeout to retry",
            )
        reason = f"no response within request_timeout ({timeout})"
        self._outcomes.handle(pending, RequestOutcome(retry=entries, reason=reason, together=True), now)
