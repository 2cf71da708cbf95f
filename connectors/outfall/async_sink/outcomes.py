"""What becomes of the entries of a request: accepted, tried again, or dead letters; each is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outfall.async_sink.buffer import BufferedEntry, EntryBuffer
from outfall.async_sink.host_state import HostState
from outfall.async_sink.limiting import EndedRequest
from outfall.async_sink.requests import PendingRequest, RefusedEntry, RequestOutcome
from outfall.contexts import Metrics, WriterInitContext
from outfall.dead_letter import EXCERPT_CHARACTERS, DeadLetter
from outfall.errors import CapabilityError, OutfallError, TargetError, TransientError, ValueRefusedError

if TYPE_CHECKING:
    from outfall.async_sink.sink import AsyncSink


E = TypeVar("E")


class OutcomeHandler(Generic[E]):
    """Sees each entry of a request to its end: accepted, refused, or back in the buffer."""

    def __init__(
        self,
        sink: AsyncSink[E],
        buffer: EntryBuffer[E],
        host: HostState,
        refusals: RefusalHandler[E],
        jitter: Callable[[], float],
    ) -> None:
        """Work on what the partition works on.

        Args:
            sink: says how entries are tried again, and its name for errors.
            buffer: where failed entries return to.
            host: what is known of the host.
            refusals: sees to refused entries.
            jitter: gives random numbers from 0 to below 1.
        """
        self._sink = sink
        self._policy = sink.options.retry_policy()
        self._buffer = buffer
        self._host = host
        self._refusals = refusals
        self._jitter = jitter

    def handle(self, pending: PendingRequest[E], outcome: RequestOutcome[E], now: float) -> None:
        """Take in one answer, or the one that is made up after a timeout.

        Raises:
            OutfallError: an entry was tried for too long, or refused with nobody to take it; or the answer says so.
        """
        items = pending.batch.items
        retried, split = pending.find(outcome.retry), pending.find(outcome.split)
        dead = pending.find([refusal.entry for refusal in outcome.dead])
        if len(retried) + len(split) + len(dead) > len(items):
            raise CapabilityError("an answer names an entry twice", do="name each under one kind of outcome only")
        if outcome.error is not None:
            raise self._fatal(outcome.error)
        seconds = None if retried or split else pending.seconds
        self._host.limiter.ended(EndedRequest(now, len(items), len(retried), seconds))
        back = {id(item) for item in (*retried, *split)}
        self._finished([item for item in items if id(item) not in back] if back else items)
        self._refusals.put(outcome.dead)
        self._split(split, outcome)
        if retried:
            self._retry(pending, retried, outcome, now)

    def _finished(self, items: list[BufferedEntry[E]]) -> None:
        if any(item.paid for item in items):
            self._host.budget.refund()
        for item in items:
            self._buffer.done(item)

    def _split(self, items: list[BufferedEntry[E]], outcome: RequestOutcome[E]) -> None:
        if len(items) == 1:
            self._finished(items)
            reason = outcome.reason or "the destination refused it"
            self._refusals.put([RefusedEntry(items[0].entry, reason, outcome.code, outcome.excerpt)])
        elif items:
            for item in items:
                item.largest_batch = (len(items) + 1) // 2
            self._buffer.give_back(items)

    def _retry(
        self, pending: PendingRequest[E], items: list[BufferedEntry[E]], outcome: RequestOutcome[E], now: float
    ) -> None:
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
                self._host.retry_gate.hold(now + outcome.after)
            raise self._exhausted(len(items), tries, elapsed, outcome)
        self._warn(len(items), tries, elapsed, outcome, now)
        if outcome.hold_host:
            self._host.retry_gate.hold(now + pause)
        whole = len(items) == len(pending.batch.items)
        request_id = pending.result.request.id if outcome.together and whole else None
        # What failed in part has come to something, and costs nothing.
        self._buffer.set_aside(items, now + pause, request_id=request_id, charged=whole)

    def _warn(self, entries: int, tries: int, elapsed: float, outcome: RequestOutcome[E], now: float) -> None:
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

    def _exhausted(self, entries: int, tries: int, elapsed: float, outcome: RequestOutcome[E]) -> TransientError:
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


class RefusalHandler(Generic[E]):
    """Makes dead letters of refused entries, and hands them over; without a taker a refusal stops the query."""

    def __init__(self, text_of: Callable[[E], str], context: WriterInitContext | None, counters: Counters) -> None:
        """Start without a taker."""
        self.take: Callable[[Sequence[DeadLetter]], None] | None = None
        self._text_of = text_of
        self._context = context
        self._counters = counters

    def put(self, refusals: Sequence[RefusedEntry[E]]) -> None:
        """Hand over refused entries.

        Raises:
            ValueRefusedError: there is nobody to take them.
            Exception: whatever the taker raises.
        """
        if not refusals:
            return
        if self.take is None:
            raise self._refused(refusals[0])
        self.take([self._dead_letter(self._text_of(refusal.entry), refusal) for refusal in refusals])
        self._counters.dead(len(refusals))

    def put_row(self, text: str, error: ValueRefusedError) -> None:
        """Hand over a row that did not become an entry.

        Args:
            text: the row as JSON text.
            error: why not.

        Raises:
            ValueRefusedError: the error, when there is nobody to take the row.
            Exception: whatever the taker raises.
        """
        if self.take is None:
            raise error
        self.take([self._dead_letter(text, RefusedEntry(None, error.what, NOT_CONVERTIBLE))])
        self._counters.dead(1)

    def _dead_letter(self, row: str, refusal: RefusedEntry[Any]) -> DeadLetter:
        context = self._context
        return DeadLetter(
            row=row,
            reason=refusal.reason,
            step=context.step_id if context else "",
            epoch=context.epoch if context else None,
            part=f"writer-{context.worker_index}" if context else None,
            code=refusal.code,
            excerpt=refusal.excerpt,
        )

    def _refused(self, refusal: RefusedEntry[E]) -> ValueRefusedError:
        code = f" ({refusal.code})" if refusal.code else ""
        return ValueRefusedError(
            f"the record {self._text_of(refusal.entry)[:EXCERPT_CHARACTERS]} is refused{code}",
            step=self._context.step_id if self._context else None,
            epoch=self._context.epoch if self._context else None,
            why=refusal.reason + said(refusal.excerpt),
            do="correct or leave out the row, or give the sink a dead_letter sink to keep such rows in",
        )


NOT_CONVERTIBLE = "not_convertible"
"""The code of rows of which no entry could be made."""


def said(excerpt: str | None) -> str:
    """Return what a destination said, for the end of an error's sentence; nothing if it said nothing."""
    text = (excerpt or "")[:_SAID].strip()
    return f", and says {text!r}" if text else ""


_SAID = 300
"""Characters of an answer in an error."""


class Counters:
    """The counters of one partition. Whole numbers that add up over tasks, under Flink's names where it has one.

    `num_records_out` and `num_bytes_out` count what was sent, each try anew; `sent` what was accepted, and `bytes` its
    size, as every sink counts what it has written; `failed` entries whose request failed, `dead_letters`, `timeouts`
    and `late_answers` what they say, `requests` the requests, `retries` those among them with an entry that was sent
    before. `send_time_ms` adds up the time from each request to its answer, so that by `requests` it is the mean.
    Gauges do not add up: `max_in_flight`, `max_limit` and `max_send_time_ms` are the largest that any task saw.
    """

    def __init__(self, metrics: Metrics) -> None:
        """Count into these metrics."""
        self._metrics = metrics
        self.current_send_time: float | None = None
        """Seconds from the last answered request to its answer (Flink's `currentSendTime`)."""

    def started(self, entries: int, size: int, *, again: bool, in_flight: int, limit: int) -> None:
        """Count a request that starts."""
        self._metrics.add("requests")
        self._metrics.add("num_records_out", entries)
        self._metrics.add("num_bytes_out", size)
        if again:
            self._metrics.add("retries")
        self._metrics.peak("max_in_flight", in_flight)
        self._metrics.peak("max_limit", limit)

    def answered(self, seconds: float, accepted: int, size: int, failed: int) -> None:
        """Count an answer: how many entries were accepted, of how many bytes, and how many are sent again."""
        self.current_send_time = seconds
        milliseconds = round(seconds * 1000)
        self._metrics.peak("max_send_time_ms", milliseconds)
        self._metrics.add("send_time_ms", milliseconds)
        self._metrics.add("sent", accepted)
        self._metrics.add("bytes", size)
        if failed:
            self._metrics.add("failed", failed)

    def timed_out(self, failed: int) -> None:
        """Count a request that was given up."""
        self._metrics.add("timeouts")
        self._metrics.add("failed", failed)

    def late(self) -> None:
        """Count an answer that came after its request was given up."""
        self._metrics.add("late_answers")

    def dead(self, entries: int) -> None:
        """Count dead letters."""
        self._metrics.add("dead_letters", entries)


def _last_answer(outcome: RequestOutcome[E]) -> str | None:
    answer = _answer(outcome)
    return f"its last answer was: {answer}" if answer else None


def _answer(outcome: RequestOutcome[E]) -> str | None:
    """Say what a destination said, and for how long it wanted to be left alone."""
    if not outcome.reason:
        return None
    asked = f", and asked to wait {outcome.after:.0f} s" if outcome.after else ""
    return f"{outcome.reason}{asked}{said(outcome.excerpt)}"
