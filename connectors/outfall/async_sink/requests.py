"""A request from its start to its answer, which may come from any thread, late, or never."""

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
    """Which request it is."""

    id: int
    """Unique within the partition. The same again when the request was sent again as a whole (`together`)."""
    tries: int
    """How often it, or one of its entries, failed before; 0 at first."""


class RequestResult(Generic[E]):
    """Takes the answer to one request: exactly one of its methods is called, once, by any thread."""

    def __init__(
        self,
        request: Request,
        answered: Callable[[RequestResult[E], RequestOutcome[E]], None],
        late: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """Made by the partition.

        Args:
            request: which request it is.
            answered: takes the outcome, in the thread that answers.
            late: called instead when the request was given up before.
            now: the time in seconds.
        """
        self.request = request
        self.ended_at: float | None = None
        """When it was answered."""
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
        """These entries have to be sent again, the others were accepted.

        Args:
            entries: the very objects that the request held.
            after: the seconds that the destination asks to wait.
            reason: why, in its words.
        """
        self.finish(RequestOutcome(retry=entries, after=after, reason=reason))

    def fatal(self, error: BaseException) -> None:
        """Stop the query."""
        self.finish(RequestOutcome(error=error))

    def dead_letter(self, entry: E, reason: str, code: str | None = None, excerpt: str | None = None) -> None:
        """This entry is refused for good, the others were accepted. For several, or with retries, see `finish`."""
        self.finish(RequestOutcome(dead=[RefusedEntry(entry, reason, code, excerpt)]))

    def finish(self, outcome: RequestOutcome[E]) -> None:
        """Answer with any combination.

        An answer to a request that was given up after its timeout is counted, and changes nothing.

        Raises:
            CapabilityError: the request was answered before.
        """
        with self._lock:
            if self._answered:
                raise CapabilityError(
                    f"the request {self.request.id} was answered twice",
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
        """Close it, for the partition. Whether it was still open."""
        with self._lock:
            was_open = self._open
            self._open = False
            return was_open


@dataclass(frozen=True)
class RequestOutcome(Generic[E]):
    """What became of a request's entries. Those that are not named were accepted.

    Entries are named by the very objects that the request held.
    """

    retry: Sequence[E] = ()
    """To be sent again after a pause, before everything that came later."""
    split: Sequence[E] = ()
    """To be sent again at once in requests of half the size: one of them is at fault, and nobody knows which. An entry
    that is alone becomes a dead letter."""
    dead: Sequence[RefusedEntry[E]] = ()
    """Refused for good."""
    error: BaseException | None = None
    """Stops the query."""
    reason: str | None = None
    """Why entries are retried or split, in the destination's words: for the error or dead letter they may end in."""
    code: str | None = None
    """Its code for that."""
    excerpt: str | None = None
    """The beginning of its answer."""
    after: float | None = None
    """The seconds that the destination asks to wait before a retry."""
    hold_host: bool = False
    """Whether the pause is for all requests to this host, as for a `Retry-After`."""
    together: bool = False
    """Whether what is retried stays one request, with the same id and the same entries (`retry` names them all)."""


@dataclass(frozen=True)
class RefusedEntry(Generic[E]):
    """An entry that its destination refuses for good."""

    entry: E
    reason: str
    """In the destination's words. Never a secret."""
    code: str | None = None
    excerpt: str | None = None


class PendingRequests(Generic[E]):
    """Requests without an answer, oldest first."""

    def __init__(self, events: EventQueue, timeout: float) -> None:
        """Start with none.

        Args:
            events: takes the answers.
            timeout: after how many seconds a request is given up.
        """
        self._events = events
        self._timeout = timeout
        self._open: dict[int, PendingRequest[E]] = {}
        self._entries = 0
        self._next_id = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    @property
    def in_flight(self) -> InFlight:
        """How many there are, and how many entries they hold."""
        return InFlight(len(self._open), self._entries)

    @property
    def next_timeout(self) -> float | None:
        """When the oldest is to be given up."""
        return next((request.started_at + self._timeout for request in self._open.values()), None)

    def start(
        self,
        batch: Batch[E],
        answered: Callable[[PendingRequest[E], RequestOutcome[E]], None],
        late: Callable[[], None],
    ) -> PendingRequest[E]:
        """Note a request.

        Args:
            batch: what it holds.
            answered: called from the event queue when its answer is there.
            late: the same for one that comes after the timeout.
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
        """Forget a request."""
        del self._open[pending.number]
        self._entries -= len(pending.batch.items)

    def give_up(self, now: float) -> Iterator[PendingRequest[E]]:
        """Forget and return the requests whose time is over; not those whose answer waits in the event queue."""
        for request in list(takewhile(lambda request: request.started_at + self._timeout <= now, self._open.values())):
            if request.result.give_up():
                self.end(request)
                yield request


@dataclass(slots=True)
class PendingRequest(Generic[E]):
    """One request that has no answer yet."""

    number: int
    batch: Batch[E]
    result: RequestResult[E]
    started_at: float

    @property
    def seconds(self) -> float:
        """From its start to its answer; 0 while there is none."""
        ended_at = self.result.ended_at
        return 0.0 if ended_at is None else ended_at - self.started_at

    def find(self, entries: Sequence[E]) -> list[BufferedEntry[E]]:
        """Return the items of these entries, in the request's order.

        Raises:
            CapabilityError: one is not an object that the request held, or is named more often than it was held.
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
                f"{len(entries) - len(found)} entries in an answer are not of its request",
                do="name the very objects that submit_request_entries got, each as often as it got it",
            )
        return found


Event = Callable[[], None]


class EventQueue:
    """Events from any thread, taken and handled by the partition's (Flink's `MailboxExecutor`); and its clock.

    A test brings another one, in which time passes only while somebody waits
    (`outfall.testing.virtual_time.VirtualEventQueue`).
    """

    def __init__(self) -> None:
        """Start empty."""
        self._queue: SimpleQueue[Event] = SimpleQueue()

    def now(self) -> float:
        """Return seconds since some fixed moment. Any thread may ask."""
        return time.monotonic()

    def utc(self) -> datetime:
        """Return the time, for what is stored: of another process `now` means nothing."""
        return datetime.now(UTC)

    def put(self, event: Event) -> None:
        """Add an event. Any thread may."""
        self._queue.put(event)

    def take(self, seconds: float | None = 0.0) -> Event | None:
        """Take the next event.

        Args:
            seconds: how long to wait for one; `None` for as long as it takes.

        Returns:
            The event, or `None` when none came.
        """
        try:
            if seconds is not None and seconds <= 0:
                return self._queue.get_nowait()
            return self._queue.get(timeout=seconds)
        except Empty:
            return None
