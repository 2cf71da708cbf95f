"""Faults of a stream in YARN's cluster mode: its drivers stand still or die, and so do their hosts and YARN itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.integration.support.waiting import until
from tests.peers.support.yarn import Host
from tests.peers.support.yarn_job import PATIENCE, Submission, YarnJob, end_all, start_again

_COMMON = (
    "before PREPARED", "after PREPARED", "after COMMITTING", "before commit", "after commit", "before COMPLETED",
    "log: newest checked",
)  # fmt: skip
_FILES = (*_COMMON, "file: record advanced", "file: publishing", "file: published", "log: object created")
REFUSED_AT: Mapping[str, Sequence[str]] = {
    "hdfs": _FILES,
    "shared": _FILES,
    "postgres": (*_COMMON, "sql: publishing", "sql: after COMMIT", "log: object created"),
}
"""By place: steps of the driver after which Python is refused without asking its JVM for anything."""
LEFT_AT = ("after BEGIN", "after COMPLETED")
"""Steps after which it needs its JVM, which ends with it when YARN tells it so."""


class Storm:
    """Faults of one job that goes on meanwhile. After each, another driver writes all rows that there are."""

    def __init__(self, job: YarnJob, chance: random.Random) -> None:
        """Start the job, and see that it writes."""
        self.job = job
        self.counts: Counter[str] = Counter()
        self.steps: list[str] = []
        """Where drivers were stopped, killed, or asked where they are."""
        self._chance = chance
        self._running: Submission = job.start(goes_on=True)
        self._feed_and_await()

    def go(self, faults: Sequence[str]) -> None:
        """Do so many faults, each one named as a method of this class, at steps by chance; then let the job end."""
        deeds: dict[str, Callable[[], None]] = {
            "stop": self.stop, "kill": self.kill, "end container": self.end_container, "lose host": self.lose_host,
            "restart manager": self.restart_manager,
        }  # fmt: skip
        for fault in faults:
            deeds[fault]()
            self.counts[fault] += 1
        self.job.enough.touch()
        self._running.await_success()

    def figures(self) -> dict[str, int]:
        """Return what is there, checked, and what was done for it."""
        found = self.job.check()
        return found | {"attempts": len(self._running.attempts()), "fenced": self._running.fenced()} | dict(self.counts)

    def stop(self, step: str | None = None) -> None:
        """Stop a driver and lose its node manager; wake it when the next driver has written all."""
        at_steps = (*REFUSED_AT[self.job.place], *LEFT_AT)
        step = step or self._chance.choice(at_steps)
        self._order("stop", step)
        zombie = self._running.stop(at=step)
        self._feed_and_await()
        before = self.job.content()
        if step in LEFT_AT:
            zombie.wake()
        else:
            zombie.wake(python_until=zombie.refused)
            assert zombie.refused(), f"the driver stopped at {step!r} ended, but was not refused"
        zombie.await_end()
        assert self.job.content() == before, f"the driver stopped at {step!r} wrote when it was woken"
        start_again(zombie.host)

    def kill(self) -> None:
        """Kill Python (-9), which the JVM of the driver notices."""
        self._order("kill", self._step())
        self._running.when(lambda: not self.job.order.exists(), "the driver being killed")
        self._feed_and_await()

    def end_container(self) -> None:
        """Kill all processes of the driver, which the node manager notices."""
        _, folder = self._driver()
        end_all(folder)
        self._feed_and_await()

    def lose_host(self) -> None:
        """Kill the node manager of the driver and all that runs there."""
        host, _ = self._driver()
        host.end()
        self._feed_and_await()
        start_again(host)

    def restart_manager(self) -> None:
        """Kill the resource manager in the middle of an epoch. The job goes on, and the next one knows it."""
        self._driver()
        self.job.yarn.manager.kill()
        self._feed_and_await()
        self.job.yarn.manager.start()
        until(lambda: len(self.job.yarn.alive()) == len(self.job.yarn.hosts), "the node managers", PATIENCE)

    def _step(self) -> str:
        return self._chance.choice(REFUSED_AT[self.job.place])

    def _order(self, deed: str, step: str) -> None:
        """Have the driver do something at a step, which it comes to."""
        self.steps.append(step)
        self.job.tell(deed, step)
        self.job.feed(1)

    def _driver(self) -> tuple[Host, Path]:
        """Return where the driver runs, which has come to a step."""
        self._order("tell", self._step())
        return self._running.reported()

    def _feed_and_await(self) -> None:
        """Add rows that only a driver can write which begins another epoch, and wait for them."""
        self.job.feed(1)
        self._running.when(lambda: self.job.progress() >= self.job.rows, "all rows")
