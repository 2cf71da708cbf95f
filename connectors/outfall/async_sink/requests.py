"""What a partition has under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from outfall.async_sink.buffer import Batch, Held
from outfall.async_sink.event_queue import Mailbox
from outfall.async_sink.limiting import InFlight
from outfall.async_sink.result import Outcome, Request, RequestResult
from outfall.errors import CapabilityError

E = TypeVar("E")


@dataclass(slots=True)
class Underway(Generic[E]):
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

    def find(self, entries: Sequence[E]) -> list[Held[E]]:
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


class Requests(Generic[E]):
    """Requests without an answer, oldest first."""

    def __init__(self, mailbox: Mailbox, timeout: float) -> None:
        """Start with none.

        Args:
            mailbox: takes the answers.
            timeout: after how many seconds a request is given up.
        """
        self._mailbox = mailbox
        self._timeout = timeout
        self._open: dict[int, Underway[E]] = {}
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
        answered: Callable[[Underway[E], Outcome[E]], None],
        late: Callable[[], None],
    ) -> Underway[E]:
        """Note a request.

        Args:
            batch: what it holds.
            answered: opened from the mailbox when its answer is there.
            late: the same for one that comes after the timeout.
        """
        number = self._next_id
        self._next_id += 1
        request = Request(number if batch.request_id is None else batch.request_id, batch.items[0].tries)

        def take(_: RequestResult[E], outcome: Outcome[E]) -> None:
            self._mailbox.put(lambda: answered(underway, outcome))

        result = RequestResult(request, take, lambda: self._mailbox.put(late), self._mailbox.now)
        underway = Underway(number, batch, result, self._mailbox.now())
        self._open[number] = underway
        self._entries += len(batch.items)
        return underway

    def end(self, underway: Underway[E]) -> None:
        """Forget a request."""
        del self._open[underway.number]
        self._entries -= len(underway.batch.items)

    def give_up(self, now: float) -> Iterator[Underway[E]]:
        """Forget and return the requests whose time is over; not those whose answer waits in the mailbox."""
        for request in list(takewhile(lambda request: request.started_at + self._timeout <= now, self._open.values())):
            if request.result.give_up():
                self.end(request)
                yield request
