"""A destination of `AsyncSink` in virtual time, whose answers a test writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfall.async_sink import (
    AsyncSink,
    AsyncSinkOptions,
    AsyncSinkPartition,
    FixedLimiter,
    HostState,
    Limiter,
    RequestOutcome,
    RequestResult,
    RetryBudget,
)
from outfall.dead_letter import DeadLetter
from outfall.testing.virtual_time import VirtualEventQueue

Answer = tuple[float, RequestOutcome[str]] | None
"""After how many seconds it comes, and what it says; `None` for no answer at all."""

Service = Callable[[Sequence[str], int], Answer]
"""Answers a request: its entries, and how many requests came before."""


def accept(entries: Sequence[str], number: int) -> Answer:
    return 0.01, RequestOutcome()


@dataclass
class Destination:
    """What arrived, and when."""

    service: Service = accept
    events: VirtualEventQueue = field(default_factory=VirtualEventQueue)
    requests: list[list[str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    results: list[RequestResult[str]] = field(default_factory=list)
    accepted: Counter[str] = field(default_factory=Counter)
    """Entries that answers in time said were accepted."""

    def submit(self, entries: Sequence[str], result: RequestResult[str]) -> None:
        answer = self.service(entries, len(self.requests))
        self.requests.append(list(entries))
        self.times.append(self.events.now())
        self.ids.append(result.request.id)
        self.results.append(result)
        if answer is not None:
            seconds, outcome = answer
            self.events.at(self.events.now() + seconds, lambda: self._answer(entries, result, outcome))

    def _answer(self, entries: Sequence[str], result: RequestResult[str], outcome: RequestOutcome[str]) -> None:
        if result._open:  # later it is an answer that nobody waits for any more
            dead = [refusal.entry for refusal in outcome.dead]
            others = {*outcome.retry, *outcome.split, *outcome.unprocessed, *dead}
            self.accepted.update(entry for entry in entries if entry not in others)
        result.finish(outcome)


class TextPartition(AsyncSinkPartition[str]):
    """Entries are texts; their size is that of their UTF-8."""

    def __init__(self, sink: TextSink) -> None:
        super().__init__(sink, events=sink.destination.events, jitter=lambda: sink.jitter)
        self._destination = sink.destination
        self._key = sink.key

    def convert_row(self, row: Any) -> str:
        return str(row)

    def size_in_bytes(self, entry: str) -> int:
        return len(entry.encode())

    def submit_request_entries(self, entries: Sequence[str], result: RequestResult[str]) -> None:
        self._destination.submit(entries, result)

    def ordering_key(self, entry: str) -> Any:
        return self._key and self._key(entry)


class TextSink(AsyncSink[str]):
    """Its partitions share a host state of their own, whatever ran before."""

    def __init__(
        self,
        destination: Destination,
        limiter: Limiter | None = None,
        *,
        budget: RetryBudget | None = None,
        key: Callable[[str], Any] | None = None,
        jitter: float = 0.5,
        **settings: Any,
    ) -> None:
        small: dict[str, Any] = {
            "max_batch_size": 10,
            "max_buffered_requests": 100,
            "max_batch_size_in_bytes": 1000,
            "max_record_size_in_bytes": 1000,
            "max_in_flight_requests": 1,
        }
        super().__init__(AsyncSinkOptions(**(small | settings)))
        self.destination = destination
        self.key = key
        self.jitter = jitter
        self.state = HostState(limiter or FixedLimiter(1000), budget or RetryBudget(1.0, reserve=100))

    def open(self) -> AsyncSinkPartition[str]:
        return TextPartition(self)

    def host_state(self) -> HostState:
        return self.state


class Letters:
    """Takes dead letters."""

    def __init__(self) -> None:
        self.all: list[DeadLetter] = []

    def __call__(self, letters: Sequence[DeadLetter]) -> None:
        self.all.extend(letters)

    @property
    def rows(self) -> list[str]:
        return [letter.row for letter in self.all]


def opened(service: Service = accept, **settings: Any) -> tuple[AsyncSinkPartition[str], Destination]:
    """A partition and what it writes to."""
    destination = Destination(service)
    return TextSink(destination, **settings).open(), destination
