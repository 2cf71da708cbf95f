"""A request from its start to its response, which may come from any thread, late, or never."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

from outfall.async_sink.buffer import Batch, BufferedEntry
from outfall.async_sink.limiting import InFlight
from outfall.errors import CapabilityError

E = TypeVar("E")


@dataclass(frozen=True)
class Request:
    """Identifies a request."""

    id: int
    """Unique within the partition. The same again if the request is sent again as a whole (`together`)."""
    tries: int
    """How often the request, or one of its entries, failed before; 0 at first."""


class RequestResult(Generic[E]):
    """Takes the outcome of one request: any thread calls exactly one of its methods, once."""

    def __init__(
        self,
        request: Request,
        answered: Callable[[RequestResult[E], RequestOutcome[E]], None],
        late: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """Create a result; called by the partition.

        Args:
            request: the request.
            answered: takes the outcome, in the thread that completes the request.
            late: called instead if the request has timed out.
            now: the time in seconds.
        """
        self.request = request
        self.ended_at: float | None = None
        """When it was completed."""
        self._take = answered
        self._late = late
        self._now = now
        self._lock = Lock()
        self._open = True
        self._answered = False

    def complete(self) -> None:
        """All entries were accepted."""
        self.finish(RequestOutcome())

    def retry(self, entries: Sequence[E], *, after: float | None = None, reason: str | None = None) -> None:
        """Send these entries again; the others were accepted.

        Args:
            entries: the same objects that the request contained.
            after: the pause in seconds that the destination requests.
            reason: the reason, in the destination's words.
        """
        self.finish(RequestOutcome(retry=entries, after=after, reason=reason))

    def fatal(self, error: BaseException) -> None:
        """Fail the query."""
        self.finish(RequestOutcome(error=error))

    def dead_letter(self, entry: E, reason: str, code: str | None = None, excerpt: str | None = None) -> None:
        """Reject this entry permanently; the others were accepted.

        For several entries, or with retries, see `finish`.
        """
        self.finish(RequestOutcome(dead=[RefusedEntry(entry, reason, code, excerpt)]))

    def finish(self, outcome: RequestOutcome[E]) -> None:
        """Complete the request with any combination of outcomes.

        The outcome of a timed-out request is counted and has no effect.

        Raises:
            CapabilityError: the request was completed before.
        """
        with self._lock:
            if self._answered:
                raise CapabilityError(
                    f"the request {self.request.id} was completed twice",
                    do="call exactly one method of its result, once; finish(RequestOutcome(…)) takes several kinds of"
                    " entries",
                )
            self._answered = True
            late = not self._open
            self._open = False
        if late:
            self._late()
        else:
            self.ended_at = self._now()
            self._take(self, outcome)

    def give_up(self) -> bool:
        """Close it, for the partition. Returns whether it was still open."""
        with self._lock:
            was_open = self._open
            self._open = False
            return was_open


@dataclass(frozen=True)
class RequestOutcome(Generic[E]):
    """The outcome of a request's entries. Entries that it does not list were accepted.

    It lists the same objects that the request contained.
    """

    retry: Sequence[E] = ()
    """Entries to send again after a pause, before all later ones."""
    split: Sequence[E] = ()
    """Entries to send again at once, in requests of half the size, because one of them is at fault. An entry that is
    alone becomes a dead letter. Only for a destination that stored none of them, or that drops what it has stored.
    """
    dead: Sequence[RefusedEntry[E]] = ()
    """Permanently rejected entries: each was alone in its request, or the destination named it."""
    unprocessed: Sequence[E] = ()
    """Entries that the destination did not look at, because it stopped at another one: sent again at once."""
    error: BaseException | None = None
    """Fails the query."""
    reason: str | None = None
    """Why entries are retried or split, in the destination's words, for the error or dead letter that may follow."""
    code: str | None = None
    """The destination's code for the reason."""
    excerpt: str | None = None
    """The beginning of its response."""
    after: float | None = None
    """The pause in seconds that the destination requests before a retry."""
    hold_host: bool = False
    """Whether the pause applies to all requests to this host, as with `Retry-After`."""
    together: bool = False
    """Whether the retried entries stay one request, with the same id and entries (`retry` lists all)."""


@dataclass(frozen=True)
class RefusedEntry(Generic[E]):
    """An entry that its destination permanently rejects."""

    entry: E
    reason: str
    """In the destination's words. Never a secret."""
    code: str | None = None
    excerpt: str | None = None


class PendingRequests(Generic[E]):
    """Requests without a response, oldest first."""

    def __init__(self, events: EventQueue, timeout: float) -> None:
        """Start empty. A request times out after `timeout` seconds."""
        self._events = events
        self._timeout = timeout
        self._open: dict[int, PendingRequest[E]] = {}
        self._entries = 0
        self._next_id = 0

    @property
    def count(self) -> int:
        """Number of requests."""
        return len(self._open)

    @property
    def in_flight(self) -> InFlight:
        """Number of requests and of their entries."""
        return InFlight(len(self._open), self._entries)

    @property
    def next_timeout(self) -> float | None:
        """When the oldest request times out."""
        return next((request.started_at + self._timeout for request in self._open.values()), None)

    def start(
        self,
        batch: Batch[E],
        answered: Callable[[PendingRequest[E], RequestOutcome[E]], None],
        late: Callable[[], None],
    ) -> PendingRequest[E]:
        """Add a request.

        `answered` is called from the event queue with the response, and `late` for a response after the timeout.
        """
        number = self._next_id
        self._next_id += 1
        request = Request(number if batch.request_id is None else batch.request_id, batch.items[0].tries)

        def take(_: RequestResult[E], outcome: RequestOutcome[E]) -> None:
            self._events.put(lambda: answered(pending, outcome))

        result = RequestResult(request, take, lambda: self._events.put(late), self._events.now)
        pending = PendingRequest(number, batch, result, self._events.now())
        self._open[number] = pending
        self._entries += len(batch.items)
        return pending

    def end(self, pending: PendingRequest[E]) -> None:
        """Remove a request."""
        del self._open[pending.number]
        self._entries -= len(pending.batch.items)

    def give_up(self, now: float) -> Iterator[PendingRequest[E]]:
        """Remove and return timed-out requests, except those whose response is in the event queue."""
        for request in list(takewhile(lambda request: request.started_at + self._timeout <= now, self._open.values())):
            if request.result.give_up():
                self.end(request)
                yield request


@dataclass(slots=True)
class PendingRequest(Generic[E]):
    """One request without a response."""

    number: int
    batch: Batch[E]
    result: RequestResult[E]
    started_at: float

    @property
    def seconds(self) -> float:
        """From its start to its response; 0 until then."""
        ended_at = self.result.ended_at
        return 0.0 if ended_at is None else ended_at - self.started_at

    def find(self, entries: Sequence[E]) -> list[BufferedEntry[E]]:
        """Return the items of these entries, in the request's order.

        Raises `CapabilityError` if an entry is not an object of the request, or is listed more often than the request
        contained it.
        """
        if not entries:
            return []
        wanted = Counter(map(id, entries))
        found = []
        for item in self.batch.items:
            if wanted[id(item.entry)]:
                wanted[id(item.entry)] -= 1
                found.append(item)
        if len(found) < len(entries):
            raise CapabilityError(
                f"{len(entries) - len(found)} entries in an outcome do not belong to its request",
                do="list the same objects that submit_request_entries got, each as often as it got it",
            )
        return found


Event = Callable[[], None]


class EventQueue:
    """Events from any thread, processed in the partition's thread (Flink's `MailboxExecutor`), and its clock.

    Tests use another implementation, in which time passes only while the partition waits
    (`outfall.testing.virtual_time.VirtualEventQueue`).
    """

    def __init__(self) -> None:
        """Start empty."""
        self._queue: SimpleQueue[Event] = SimpleQueue()

    def now(self) -> float:
        """Return seconds since a fixed time. Any thread may call it."""
        return time.monotonic()

    def utc(self) -> datetime:
        """Return the time for stored data: `now` is meaningless in another process."""
        return datetime.now(UTC)

    def put(self, event: Event) -> None:
        """Add an event. Any thread may call it."""
        self._queue.put(event)

    def take(self, seconds: float | None = 0.0) -> Event | None:
        """Take the next event.

        Args:
            seconds: maximum time to wait; `None` for no limit.

        Returns:
            The event, or `None` if none arrived.
        """
        try:
            if seconds is not None and seconds <= 0:
                return self._queue.get_nowait()
            return self._queue.get(timeout=seconds)
        except Empty:
            return None
