"""What is done with the answer to a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from outfall.async_sink.buffer import EntryBuffer, Held
from outfall.async_sink.dead_letters import LetterBox, said
from outfall.async_sink.host_state import HostState
from outfall.async_sink.limiting import Answer
from outfall.async_sink.requests import Underway
from outfall.async_sink.result import Outcome, Refusal
from outfall.errors import CapabilityError, OutfallError, TargetError, TransientError

if TYPE_CHECKING:
    from outfall.async_sink.sink import AsyncSink

E = TypeVar("E")


class AnswerHandler(Generic[E]):
    """Sees each entry of a request to its end: accepted, refused, or back in the buffer."""

    def __init__(
        self,
        sink: AsyncSink[E],
        buffer: EntryBuffer[E],
        host: HostState,
        letters: LetterBox[E],
        jitter: Callable[[], float],
    ) -> None:
        """Work on what the partition works on.

        Args:
            sink: says how entries are tried again, and its name for errors.
            buffer: where failed entries return to.
            host: what is known of the host.
            letters: where refused entries go.
            jitter: gives random numbers from 0 to below 1.
        """
        self._sink = sink
        self._policy = sink.options.retry_policy()
        self._buffer = buffer
        self._host = host
        self._letters = letters
        self._jitter = jitter

    def handle(self, underway: Underway[E], outcome: Outcome[E], now: float) -> None:
        """Take in one answer, or the one that is made up after a timeout.

        Raises:
            OutfallError: an entry was tried for too long, or refused with nobody to take it; or the answer says so.
        """
        items = underway.batch.items
        retried, split = underway.find(outcome.retry), underway.find(outcome.split)
        dead = underway.find([refusal.entry for refusal in outcome.dead])
        if len(retried) + len(split) + len(dead) > len(items):
            raise CapabilityError("an answer names an entry twice", do="name each under one kind of outcome only")
        if outcome.error is not None:
            raise self._fatal(outcome.error)
        seconds = None if retried or split else underway.seconds
        self._host.limiter.ended(Answer(now, len(items), len(retried), seconds))
        back = {id(item) for item in (*retried, *split)}
        self._finished([item for item in items if id(item) not in back] if back else items)
        self._letters.put(outcome.dead)
        self._split(split, outcome)
        if retried:
            self._retry(underway, retried, outcome, now)

    def _finished(self, items: list[Held[E]]) -> None:
        if any(item.paid for item in items):
            self._host.budget.refund()
        for item in items:
            self._buffer.done(item)

    def _split(self, items: list[Held[E]], outcome: Outcome[E]) -> None:
        if len(items) == 1:
            self._finished(items)
            reason = outcome.reason or "the destination refused it"
            self._letters.put([Refusal(items[0].entry, reason, outcome.code, outcome.excerpt)])
        elif items:
            for item in items:
                item.largest_batch = (len(items) + 1) // 2
            self._buffer.give_back(items)

    def _retry(self, underway: Underway[E], items: list[Held[E]], outcome: Outcome[E], now: float) -> None:
        for item in items:
            item.tries += 1
            item.paid = False
        # They failed together, so they wait together: as long as the one that has failed most often.
        tries = max(item.tries for item in items)
        elapsed = now - min(now if item.first_sent is None else item.first_sent for item in items)
        pause = self._policy.pause(tries, elapsed, self._jitter, at_least=outcome.after or 0.0)
        if pause is None:
            if outcome.hold_host and outcome.after:
                # For who comes next: the task's next attempt would ask again at once.
                self._host.not_before.hold(now + outcome.after)
            raise self._exhausted(len(items), tries, elapsed, outcome)
        self._warn(len(items), tries, elapsed, outcome, now)
        if outcome.hold_host:
            self._host.not_before.hold(now + pause)
        whole = len(items) == len(underway.batch.items)
        request_id = underway.result.request.id if outcome.together and whole else None
        # What failed in part has come to something, and costs nothing.
        self._buffer.set_aside(items, now + pause, request_id=request_id, charged=whole)

    def _warn(self, entries: int, tries: int, elapsed: float, outcome: Outcome[E], now: float) -> None:
        policy = self._policy
        self._host.retries.retry(
            str(self._sink),
            f"a request of {entries} entries" if entries > 1 else "a request of one entry",
            attempt=tries,
            attempts=None if policy.max_retries is None else policy.max_retries + 1,
            reason=_answer(outcome) or "the destination said nothing",
            left=None if policy.deadline is None else policy.deadline - elapsed,
            now=now,
        )

    def _exhausted(self, entries: int, tries: int, elapsed: float, outcome: Outcome[E]) -> TransientError:
        return TransientError(
            f"{self._sink} did not accept {entries} entries in {tries} tries and {elapsed:.0f} s",
            why=_last_answer(outcome),
            do="see what the destination lacks, and start the query again: it sends the epoch's rows anew. For longer"
            " outages raise retry_deadline or max_retries",
        )

    def _fatal(self, error: BaseException) -> BaseException:
        if isinstance(error, OutfallError) or not isinstance(error, Exception):
            return error
        fatal = TargetError(
            f"{self._sink} refused a request for good",
            why=f"{type(error).__name__}: {error}",
            do="correct the options, the rights or the destination",
        )
        fatal.__cause__ = error
        return fatal


def _last_answer(outcome: Outcome[E]) -> str | None:
    answer = _answer(outcome)
    return f"its last answer was: {answer}" if answer else None


def _answer(outcome: Outcome[E]) -> str | None:
    """Say what a destination said, and for how long it wanted to be left alone."""
    if not outcome.reason:
        return None
    asked = f", and asked to wait {outcome.after:.0f} s" if outcome.after else ""
    return f"{outcome.reason}{asked}{said(outcome.excerpt)}"
