"""Processes the outcome of a request: entries are accepted, retried or become dead letters, and each is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outfall.async_sink.buffer import BufferedEntry, EntryBuffer
from outfall.async_sink.host_state import HostState
from outfall.async_sink.limiting import EndedRequest
from outfall.async_sink.requests import PendingRequest, RefusedEntry, RequestOutcome
from outfall.contexts import Metrics, WriterInitContext
from outfall.dead_letter import NOT_CONVERTIBLE, DeadLetter
from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.row_logging import RowLog

if TYPE_CHECKING:
    from outfall.async_sink.sink import AsyncSink


E = TypeVar("E")


class OutcomeHandler(Generic[E]):
    """Processes each entry of a request: accepted, rejected, or returned to the buffer."""

    def __init__(
        self,
        sink: AsyncSink[E],
        buffer: EntryBuffer[E],
        host: HostState,
        refusals: RefusalHandler[E],
        jitter: Callable[[], float],
    ) -> None:
        """Work on the state of a partition.

        `sink` has the retry policy, and the name for errors. `buffer` receives failed entries, and `refusals` handles
        rejected ones. `jitter` returns random numbers from 0 to below 1.
        """
        self._sink = sink
        self._policy = sink.options.retry_policy()
        self._longest_pause = min(
            sink.options.max_retry_after.total_seconds(), sink.options.retry_deadline.total_seconds()
        )
        self._buffer = buffer
        self._host = host
        self._refusals = refusals
        self._jitter = jitter

    def _requested_pause(self, outcome: RequestOutcome[E]) -> float:
        """Return the seconds of the pause that the destination requested, as far as they are accepted."""
        return min(outcome.after or 0.0, self._longest_pause)

    def handle(self, pending: PendingRequest[E], outcome: RequestOutcome[E], now: float) -> None:
        """Process one outcome, of a response or a timeout.

        Raises `OutfallError` if the retries of an entry are exhausted, an entry is rejected without a dead-letter sink,
        or the outcome has an error.
        """
        items = pending.batch.items
        retried, split = pending.find(outcome.retry), pending.find(outcome.split)
        unprocessed = pending.find(outcome.unprocessed)
        if outcome.error is not None:
            raise self._fatal(outcome.error, items)
        if len(unprocessed) == len(items):  # nothing came of it, so it waits like a failed request
            retried, unprocessed = unprocessed, []
        seconds = None if retried or split else pending.seconds
        self._host.limiter.ended(EndedRequest(now, len(items), len(retried), seconds))
        back = {id(item) for item in (*retried, *split, *unprocessed)}
        self._finished([item for item in items if id(item) not in back] if back else items)
        self._refusals.put(outcome.dead)
        self._split(split, outcome)
        if unprocessed:
            self._buffer.give_back(unprocessed)
        if retried:
            self._retry(pending, retried, outcome, now)

    def _finished(self, items: list[BufferedEntry[E]]) -> None:
        if any(item.paid for item in items):
            self._host.budget.refund()
        for item in items:
            if item.key is not None:
                self._buffer.done(item)

    def _split(self, items: list[BufferedEntry[E]], outcome: RequestOutcome[E]) -> None:
        if len(items) == 1:
            self._finished(items)
            reason = outcome.reason or "the destination rejected it"
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
        # They failed together, so they wait together: as long as the entry with the most failures.
        tries = max(item.tries for item in items)
        elapsed = now - min(now if item.first_sent is None else item.first_sent for item in items)
        pause = self._policy.pause(tries, elapsed, self._jitter, at_least=self._requested_pause(outcome))
        if pause is None:
            if outcome.hold_host and outcome.after:
                # For the next attempt of the task, which would otherwise send a request at once.
                self._host.retry_gate.hold(now + self._requested_pause(outcome))
            raise self._exhausted(items, tries, elapsed, outcome)
        self._warn(items, tries, elapsed, outcome, now)
        if outcome.hold_host:
            self._host.retry_gate.hold(now + pause)
        whole = len(items) == len(pending.batch.items)
        request_id = pending.result.request.id if outcome.together and whole else None
        # A partial success costs no token.
        self._buffer.set_aside(items, now + pause, request_id=request_id, charged=whole)

    def _warn(
        self, items: Sequence[BufferedEntry[E]], tries: int, elapsed: float, outcome: RequestOutcome[E], now: float
    ) -> None:
        policy, entries = self._policy, len(items)
        if not self._refusals.rows.full:
            # Masking the rows in it takes too long for each retry.
            outcome = replace(outcome, excerpt=None)
        self._host.retries.retry(
            str(self._sink),
            f"a request with {entries} entries" if entries > 1 else "a request with one entry",
            attempt=tries,
            attempts=None if policy.max_retries is None else policy.max_retries + 1,
            reason=self._refusals.quoted(_answer(outcome), items[:1]) or "the destination gave no reason",
            left=None if policy.deadline is None else policy.deadline - elapsed,
            now=now,
        )

    def _exhausted(
        self, items: Sequence[BufferedEntry[E]], tries: int, elapsed: float, outcome: RequestOutcome[E]
    ) -> TransientError:
        said = self._refusals.quoted(_answer(outcome), items)
        most = self._policy.max_retries
        longer = "raise retry_deadline" if most is None or tries <= most else "raise or omit max_retries"
        return TransientError(
            f"{self._sink} did not accept a request after {elapsed:.0f} s (entries: {len(items)}, attempts: {tries})",
            why=f"last response: {said}" if said else None,
            do="fix the destination, then start the query again: it sends the rows of the epoch again. For longer"
            f" outages {longer}",
        )

    def _fatal(self, error: BaseException, items: Sequence[BufferedEntry[E]]) -> BaseException:
        if isinstance(error, OutfallError) or not isinstance(error, Exception):
            return error
        summary = f"{type(error).__name__}: {error}"
        why = self._refusals.quoted(summary, items)
        fatal = TargetError(
            f"{self._sink} permanently rejected a request",
            why=why,
            do="correct the options, the permissions or the destination",
        )
        # A traceback shows the text of the cause too.
        fatal.__cause__ = error if why == summary else None
        return fatal


class RefusalHandler(Generic[E]):
    """Turns rejected entries into dead letters and passes them on.

    Without a dead-letter sink a rejection fails the query.
    """

    def __init__(
        self, text_of: Callable[[E], str], context: WriterInitContext | None, counters: Counters, rows: RowLog
    ) -> None:
        """Start without a dead-letter sink."""
        self.take: Callable[[Sequence[DeadLetter]], None] | None = None
        self.rows = rows
        self._text_of = text_of
        self._context = context
        self._counters = counters

    def quoted(self, text: str | None, items: Iterable[BufferedEntry[E]]) -> str | None:
        """Return a text about entries with no more of their rows in it than may be shown."""
        if text is None or self.rows.full:
            return text
        return self.rows.quoted(text, [self._text_of(item.entry) for item in items])

    def put(self, refusals: Sequence[RefusedEntry[E]]) -> None:
        """Pass on rejected entries.

        Raises `ValueRefusedError` if there is no dead-letter sink, and else what that sink raises.
        """
        if not refusals:
            return
        if self.take is None:
            raise self._refused(refusals[0])
        self.take([self._dead_letter(self._text_of(refusal.entry), refusal) for refusal in refusals])
        self._counters.dead(len(refusals))

    def put_row(self, text: str, error: ValueRefusedError) -> None:
        """Pass on a row, as JSON, that could not be converted to an entry.

        Raises `error`, the reason, if there is no dead-letter sink, and else what that sink raises.
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
            masked=lambda: self.rows.described("a record", row, refusal.reason),
        )

    def _refused(self, refusal: RefusedEntry[E]) -> ValueRefusedError:
        code = f" ({refusal.code})" if refusal.code else ""
        row = self._text_of(refusal.entry)
        where = f"a record of writer {self._context.worker_index}" if self._context else "a record"
        return ValueRefusedError(
            f"{self.rows.name(where, row)} is rejected{code}",
            step=self._context.step_id if self._context else None,
            epoch=self._context.epoch if self._context else None,
            why=self.rows.quoted(refusal.reason + said(refusal.excerpt), [row]),
            do="correct or remove the row, or set dead_letter to a sink that stores such rows",
        )


def said(excerpt: str | None) -> str:
    """Return the destination's text for the end of an error sentence; empty if there is none."""
    text = (excerpt or "")[:_SAID].strip()
    return f", with the message {text!r}" if text else ""


_SAID = 300
"""Maximum number of characters of a response in an error."""


class Counters:
    """The counters of one partition: integers that add up over tasks, with Flink's names where it has one.

    - `num_records_out`, `num_bytes_out`: entries and bytes sent, including retries.
    - `sent`, `bytes`: accepted entries and their size, like the rows and bytes of other sinks.
    - `failed`: entries whose request failed.
    - `requests`: all requests; `retries`: those with an entry that was sent before.
    - `dead_letters`, `timeouts`, `late_answers`: dead letters, timed-out requests, and their late responses.
    - `send_time_ms`: total time from request to response. Divide by `requests` for the mean.

    `max_in_flight`, `max_limit` and `max_send_time_ms` are gauges: the maximum over all tasks.
    """

    def __init__(self, metrics: Metrics) -> None:
        """Count into these metrics."""
        self._metrics = metrics
        self.current_send_time: float | None = None
        """Seconds between the last completed request and its response (Flink's `currentSendTime`)."""

    def started(self, entries: int, size: int, *, again: bool, in_flight: int, limit: int) -> None:
        """Count a started request."""
        self._metrics.add("requests")
        self._metrics.add("num_records_out", entries)
        self._metrics.add("num_bytes_out", size)
        if again:
            self._metrics.add("retries")
        self._metrics.peak("max_in_flight", in_flight)
        self._metrics.peak("max_limit", limit)

    def answered(self, seconds: float, accepted: int, size: int, failed: int) -> None:
        """Count a response: the number and bytes of accepted entries, and the number of entries to retry."""
        self.current_send_time = seconds
        milliseconds = round(seconds * 1000)
        self._metrics.peak("max_send_time_ms", milliseconds)
        self._metrics.add("send_time_ms", milliseconds)
        self._metrics.add("sent", accepted)
        self._metrics.add("bytes", size)
        if failed:
            self._metrics.add("failed", failed)

    def timed_out(self, failed: int) -> None:
        """Count a timed-out request."""
        self._metrics.add("timeouts")
        self._metrics.add("failed", failed)

    def late(self) -> None:
        """Count a response to a timed-out request."""
        self._metrics.add("late_answers")

    def dead(self, entries: int) -> None:
        """Count dead letters."""
        self._metrics.add("dead_letters", entries)


def _answer(outcome: RequestOutcome[E]) -> str | None:
    """Describe the destination's response, with the pause that it requested."""
    if not outcome.reason:
        return None
    asked = f", and requested a pause of {outcome.after:.0f} s" if outcome.after else ""
    return f"{outcome.reason}{asked}{said(outcome.excerpt)}"
