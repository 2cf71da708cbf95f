"""A step in whose epochs much happened: retries, dead letters, slow commits; the same each time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.testing import FakeClock, LocalDriver
from outfall.wrappers import DeadLetteringSink
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.refusing import RefusingSink
from tests.unit.support.warehouse import Staged, StagingCommitter, Warehouse


class _Hesitating(StagingCommitter):
    """Asks for some offers to be repeated, and takes its time."""

    def __init__(self, warehouse: Warehouse, clock: FakeClock, seconds: float, times: int) -> None:
        super().__init__(warehouse)
        self._clock, self._seconds, self._times = clock, seconds, times

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        self._clock.sleep(self._seconds)
        for request in requests:
            if request.number_of_retries < self._times:
                request.retry_later()
            else:
                self._commit_one(request)


class EventfulSink(RefusingSink):
    """Rows below nought are refused; its target is named as one likes."""

    def __init__(self, target: str) -> None:
        super().__init__(Warehouse(), target)
        self.clock = FakeClock()
        self.commit_seconds = 0.0
        self.commit_retries = 0

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return _Hesitating(self.warehouse, self.clock, self.commit_seconds, self.commit_retries)


def eventful_step(
    recovery: str,
    *,
    epochs: int = 100,
    outage: range = range(60, 66),
    step_id: str = "sink",
    target: str = "warehouse",
) -> LocalDriver:
    """Write epochs whose seconds are those of a clock that nobody waits for."""
    chance = random.Random(7)
    sink = EventfulSink(target)
    both = DeadLetteringSink(sink, NamedStagingSink(Warehouse(), "letters"))
    driver = LocalDriver(both, recovery, step_id=step_id, clock=sink.clock)
    for epoch in range(epochs):
        sink.commit_seconds = chance.uniform(0.2, 0.6) * (6 if epoch in outage else 1)
        sink.commit_retries = 2 if epoch in outage else 0
        count = int(chance.gauss(900, 150) * (1 + (epoch % 24) / 24))
        refused = epoch % 4 + 1 if epoch in (31, 32, 74) else 0
        driver.run_epoch(epoch, [_rows(sink.clock, count, refused, chance.uniform(2.2, 3.4))])
    return driver


def _rows(clock: FakeClock, count: int, refused: int, seconds: float) -> Iterator[dict[str, int]]:
    yield from ({"id": number} for number in range(count))
    yield from ({"id": -1} for _ in range(refused))
    clock.sleep(seconds)
