"""How a request ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from outfall.errors import CapabilityError

E = TypeVar("E")


@dataclass(frozen=True)
class Request:
    """Which request it is."""

    id: int
    """Unique within the partition. The same again when the request was sent again as a whole (`together`)."""
    tries: int
    """How often it, or one of its entries, failed before; 0 at first."""


@dataclass(frozen=True)
class Refusal(Generic[E]):
    """An entry that its destination refuses for good."""

    entry: E
    reason: str
    """In the destination's words. Never a secret."""
    code: str | None = None
    excerpt: str | None = None


@dataclass(frozen=True)
class Outcome(Generic[E]):
    """What became of a request's entries. Those that are not named were accepted.

    Entries are named by the very objects that the request held.
    """

    retry: Sequence[E] = ()
    """To be sent again after a pause, before everything that came later."""
    split: Sequence[E] = ()
    """To be sent again at once in requests of half the size: one of them is at fault, and nobody knows which. An entry
    that is alone becomes a dead letter."""
    dead: Sequence[Refusal[E]] = ()
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


class RequestResult(Generic[E]):
    """Takes the answer to one request: exactly one of its methods is called, once, by any thread."""

    def __init__(
        self,
        request: Request,
        answered: Callable[[RequestResult[E], Outcome[E]], None],
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
        self.finish(Outcome())

    def retry(self, entries: Sequence[E], *, after: float | None = None, reason: str | None = None) -> None:
        """These entries have to be sent again, the others were accepted.

        Args:
            entries: the very objects that the request held.
            after: the seconds that the destination asks to wait.
            reason: why, in its words.
        """
        self.finish(Outcome(retry=entries, after=after, reason=reason))

    def fatal(self, error: BaseException) -> None:
        """Stop the query."""
        self.finish(Outcome(error=error))

    def dead_letter(self, entry: E, reason: str, code: str | None = None, excerpt: str | None = None) -> None:
        """This entry is refused for good, the others were accepted. For several, or with retries, see `finish`."""
        self.finish(Outcome(dead=[Refusal(entry, reason, code, excerpt)]))

    def finish(self, outcome: Outcome[E]) -> None:
        """Answer with any combination.

        An answer to a request that was given up after its timeout is counted, and changes nothing.

        Raises:
            CapabilityError: the request was answered before.
        """
        with self._lock:
            if self._answered:
                raise CapabilityError(
                    f"the request {self.request.id} was answered twice",
                    do="call exactly one method of its result, once; finish(Outcome(…)) takes several kinds of entries",
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
