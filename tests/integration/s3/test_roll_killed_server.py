"""The server is killed (-9) while small epochs become large objects, and starts again while the sink tries on."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outfall.protocol.step import EpochOptions
from outfall.s3 import S3Sink, committed_keys
from outfall.testing import LocalDriver
from tests.integration.s3.support import Target, listening
from tests.integration.support.killed_driver import KILLS
from tests.integration.support.s3 import SeaweedFS

pytestmark = [pytest.mark.faults, pytest.mark.long]

MIB = 1 << 20
STEPS = (
    "s3: copying part", "s3: piece under way", "s3: completing", "s3: deleting pieces", "s3: putting piece",
    "s3: piece read", "s3: part under way", "s3: object ended", "s3: staged", "s3: record advanced", "s3: completed",
    "s3: manifest written", "before PREPARED",
)  # fmt: skip


class Killer:
    """Kills the server at one step after the other, each as soon as it is reached, and lets it start meanwhile."""

    def __init__(self, server: SeaweedFS, steps: Iterator[str]) -> None:
        self._server = server
        self._steps = steps
        self._next = next(steps, None)
        self._starting: threading.Thread | None = None
        self._lock = threading.Lock()
        self.killed: Counter[str] = Counter()

    @property
    def done(self) -> bool:
        return self._next is None

    def __call__(self, reached: str) -> None:
        with self._lock:
            if reached != self._next:
                return
            self.close()
            self._server.kill()
            self.killed[reached] += 1
            self._next = next(self._steps, None)
            self._starting = threading.Thread(target=self._server.start)
            self._starting.start()

    def close(self) -> None:
        """Wait until the server is there again."""
        if self._starting is not None:
            self._starting.join()
            self._starting = None


def driver(sink: S3Sink, root: Path) -> LocalDriver:
    """A driver that remembers nothing, as after a restart."""
    return LocalDriver(sink, str(root / "recovery"), options=EpochOptions(worker_count=1))


def test_rows_that_wait_survive_the_server_and_come_once(
    seaweed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without boto3's own tries, which would hide most; a client of its own, which no other test has made before.
    monkeypatch.setattr("outfall.s3.store._TRIES", 1)
    target = Target(seaweed.s3)
    # Longer than the server may take to start.
    options = {"part_bytes": "5 MiB", "inline_bytes": 0, "roll_bytes": "12 MiB", "retry_deadline": "5 minutes"}
    sink = target.sink(**options, connect_timeout=7)
    chance = random.Random("20261121 roll")
    killer = Killer(seaweed, itertools.islice(itertools.cycle(STEPS), KILLS))
    written: dict[int, int] = {}
    ids, epochs = itertools.count(), itertools.count()
    with closing(killer), listening(killer):
        while not killer.done:
            assert len(written) < 40 * KILLS, f"not all steps were reached after {killer.killed}"
            sizes = {next(ids): size for size in chance.sample([20, 70_000, 3 * MIB, 6 * MIB], 2)}
            written |= sizes
            rows = [{"id": number, "text": "x" * size} for number, size in sizes.items()]
            driver(sink, tmp_path).run_epoch(next(epochs), [rows])
    driver(sink, tmp_path).drain()
    found = target.rows()
    assert len(found) == len(written)
    assert {row["id"]: len(row["text"]) for row in found} == written
    assert sum(killer.killed.values()) == KILLS
    assert target.uploads() == []
    assert [key for key in target.objects() if key.startswith("_outfall/pieces/")] == []
    assert sorted(key.removeprefix(target.root) for key in committed_keys(sink)) == sorted(target.data())
