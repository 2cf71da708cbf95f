"""Whatever a destination answers, and when: each entry is accepted, refused or still held, exactly once."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfall.async_sink import (
    AimdLimiter,
    BufferedRequests,
    GradientLimiter,
    Limiter,
    RefusedEntry,
    RequestOutcome,
    RetryBudget,
)
from tests.unit.support.async_destination import Answer, Destination, Letters, TextSink

FATES = ("accept", "retry", "part", "together", "dead", "split", "stopped", "silence", "late")


class Moody:
    """A destination that answers at random."""

    def __init__(self, chance: random.Random, fates: Sequence[str], timeout: float) -> None:
        self.chance = chance
        self.fates = fates
        self.timeout = timeout

    def __call__(self, entries: Sequence[str], number: int) -> Answer:
        fate = self.chance.choice(self.fates)
        soon = self.chance.choice([0.0, 0.01, 0.5, self.timeout * 0.9])
        if fate == "silence":
            return None
        if fate == "late":
            return self.timeout * self.chance.uniform(1.01, 4), RequestOutcome()
        if fate == "retry":
            return soon, RequestOutcome(retry=entries, after=self.chance.choice([None, 1.0]))
        if fate == "together":
            return soon, RequestOutcome(retry=entries, together=True, hold_host=self.chance.random() < 0.2)
        if fate == "split":
            return soon, RequestOutcome(split=entries)
        if fate == "stopped":
            at = self.chance.randrange(len(entries))
            return soon, RequestOutcome(dead=[RefusedEntry(entries[at], "no")], unprocessed=entries[at + 1 :])
        some = [entry for entry in entries if self.chance.random() < 0.5]
        if fate == "part":
            return soon, RequestOutcome(retry=some)
        if fate == "dead":
            return soon, RequestOutcome(dead=[RefusedEntry(entry, "no") for entry in some])
        return soon, RequestOutcome()


def limiters() -> st.SearchStrategy[Any]:
    return st.sampled_from([lambda: AimdLimiter(20), lambda: AimdLimiter(20, proportional=True), GradientLimiter])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=4),
    rows=st.integers(0, 60),
    in_flight=st.integers(1, 4),
    batch=st.integers(1, 7),
    keyed=st.booleans(),
    across=st.booleans(),
    make_limiter=limiters(),
)
def test_each_entry_has_exactly_one_fate(
    seed: int,
    fates: list[str],
    rows: int,
    in_flight: int,
    batch: int,
    keyed: bool,
    across: bool,
    make_limiter: Any,
) -> None:
    chance = random.Random(seed)
    limiter: Limiter = make_limiter()
    destination = Destination(Moody(chance, [*fates, "accept"], timeout=2.0))
    sink = TextSink(
        destination,
        limiter,
        budget=RetryBudget(0.5),
        key=(lambda entry: int(entry) % 3) if keyed else None,
        jitter=chance.random(),
        max_in_flight_requests=in_flight,
        max_batch_size=batch,
        max_buffered_requests=batch + chance.randrange(1, 20),
        max_batch_size_in_bytes=12,
        max_record_size_in_bytes=12,
        request_timeout=2,
        retry_deadline=10**9,
        across_epochs=across,
    )
    dead = Letters()
    partition = sink.open()
    partition.dead_letters_to(dead)
    entries = [str(number) for number in range(rows)]
    position = 0
    while position < rows:
        step = chance.randrange(1, 10)
        partition.write_batch(entries[position : position + step])
        destination.events.advance(chance.choice([0.0, 0.1, 3.0]))
        position += step
    partition.flush(not across)
    held = [entry for state in partition.snapshot_state(0) for entry in state.entries]

    assert partition.in_flight == 0
    assert destination.accepted + Counter(dead.rows) + Counter(held) == Counter(entries)
    assert partition.metrics.counts.get("sent", 0) == destination.accepted.total()
    assert held == sorted(held, key=int)
    if not across:
        assert held == []
    if in_flight == 1 and not keyed:
        check_order(destination.requests)
    if keyed:
        for request in destination.requests:
            assert len({int(entry) % 3 for entry in request}) == len(request)
        for key in range(3):
            check_order([[entry] for request in destination.requests for entry in request if int(entry) % 3 == key])


def check_order(requests: list[list[str]]) -> None:
    """What comes after an entry is never sent before it, except in one request with it."""
    for earlier, later in itertools.pairwise(requests):
        assert later == sorted(later, key=int)
        assert int(later[0]) >= int(earlier[0])


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_what_one_epoch_holds_the_next_one_delivers(seed: int) -> None:
    chance = random.Random(seed)
    destination = Destination()
    sink = TextSink(destination, across_epochs=True, max_batch_size=7)
    serializer = sink.writer_state_serializer()
    waiting: list[bytes] = []
    rows = 0
    for epoch in range(6):
        states: list[BufferedRequests[str]] = [serializer.deserialize(serializer.version, data) for data in waiting]
        waiting = []
        # As after rescaling: some writers get several states, and others none.
        writers = [sink.open() for _ in range(chance.randrange(1, 4))]
        for state in states:
            chance.choice(writers).restore(state)
        for writer in writers:
            count = chance.randrange(0, 20)
            writer.write_batch([str(rows + number) for number in range(count)])
            rows += count
            writer.flush(epoch == 5)
            waiting += [serializer.serialize(state) for state in writer.snapshot_state(epoch)]
    assert not waiting
    assert Counter(entry for request in destination.requests for entry in request) == Counter(map(str, range(rows)))
