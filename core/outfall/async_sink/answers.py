"""What is done with the answer to a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from outfall.async_sink.buffer import EntryBuffer, Held
from outfall.async_sink.counters import Counters
from outfall.async_sink.letters import LetterBox
from outfall.async_sink.limiting import Answer
from outfall.async_sink.requests import Underway
from outfall.async_sink.result import Outcome, Refusal
from outfall.async_sink.retrying import RetryPolicy
from outfall.async_sink.shared import HostState
from outfall.errors import TransientError

E = TypeVar("E")


class AnswerHandler(Generic[E]):
    """Sees each entry of a request to its end: accepted, refused, or back in the buffer."""

    def __init__(
        self,
        buffer: EntryBuffer[E],
        host: HostState,
        policy: RetryPolicy,
        letters: LetterBox[E],
        counters: Counters,
        jitter: Callable[[], float],
        name: str,
    ) -> None:
        """Work on what the partition works on.

        Args:
            buffer: where failed entries return to.
            host: what is known of the host.
            policy: how often and for how long an entry is tried.
            letters: where refused entries go.
            counters: counts.
            jitter: gives random numbers from 0 to below 1.
            name: the destination, for errors.
        """
        self._buffer = buffer
        self._host = host
        self._policy = policy
        self._letters = letters
        self._counters = counters
        self._jitter = jitter
        self._name = name

    def handle(self, underway: Underway[E], outcome: Outcome[E], now: float, *, timed_out: bool = False) -> None:
        """Take in one answer, or its absence.

        Raises:
            OutfallError: an entry was tried for too long, or refused with nobody to take it.
            BaseException: the answer's own error.
        """
        items = underway.batch.items
        retried = underway.find(outcome.retry)
        split = underway.find(outcome.split)
        dead = underway.find([refusal.entry for refusal in outcome.dead])
        if outcome.error is not None:
            raise outcome.error
        failed = len(items) if timed_out else len(retried)
        seconds = None if failed or split else (underway.result.ended_at or now) - underway.started_at
        self._host.limiter.ended(Answer(now, len(items), failed, seconds))
        back = {id(item) for item in (*retried, *split)}
        for item in items:
            if id(item) not in back:
                self._buffer.done(item)
        if len(back) < len(items):
            self._progressed(items)
        self._letters.put(outcome.dead)
        if len(dead) + len(back) > len(items):
            raise ValueError("an answer names an entry twice")
        self._split(split, outcome)
        if retried:
            self._retry(underway, retried, outcome, now, whole=len(retried) == len(items))

    def _progressed(self, items: list[Held[E]]) -> None:
        """Give back what retries cost: they came to something."""
        if any(item.paid for item in items):
            self._host.budget.refund()
        for item in items:
            item.paid = False

    def _split(self, items: list[Held[E]], outcome: Outcome[E]) -> None:
        if len(items) == 1:
            reason = outcome.reason or "the destination refused it"
            self._letters.put([Refusal(items[0].entry, reason, outcome.code, outcome.excerpt)])
            self._buffer.done(items[0])
        elif items:
            for item in items:
                item.largest_batch = (len(items) + 1) // 2
            self._buffer.give_back(items)

    def _retry(
        self, underway: Underway[E], items: list[Held[E]], outcome: Outcome[E], now: float, *, whole: bool
    ) -> None:
        pause = 0.0
        for item in items:
            item.tries += 1
        # One pause for all of them, that of the entry which has failed most often: they failed together.
        worst = max(items, key=lambda item: item.tries)
        first = min(item.first_sent if item.first_sent is not None else now for item in items)
        asked = self._policy.pause(worst.tries, now - first, self._jitter, at_least=outcome.after or 0.0)
        if asked is None:
            raise self._exhausted(items, worst.tries, now - first, outcome)
        pause = asked
        if outcome.hold_host:
            self._host.not_before.hold(now + pause)
        together = outcome.together and whole
        self._buffer.set_aside(
            items,
            now + pause,
            request_id=underway.result.request.id if together else None,
            charged=whole,
        )

    def _exhausted(self, items: list[Held[E]], tries: int, elapsed: float, outcome: Outcome[E]) -> TransientError:
        return TransientError(
            f"{self._name} did not accept {len(items)} entries in {tries} tries and {elapsed:.0f} s",
            why=f"its last answer was: {outcome.reason}" if outcome.reason else None,
            do="see what the destination lacks; the query may then be started again, and sends the rows of the epoch"
            " again. For longer outages raise retry_deadline or max_retries",
        )
