"""Threads that run one at a time, in an order that the test chooses: every interleaving can be had, and had again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

Pause = Callable[[], None]


class Killed(BaseException):
    """The actor ends here, as a process does that is killed: nothing after it runs."""


class Actor:
    """A job that stops at each pause until it is told to go on."""

    def __init__(self, job: Callable[[Pause], None]) -> None:
        self._job = job
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._doomed = False
        self.done = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, *, kill: bool = False) -> None:
        """Let it run to its next pause, or end it here."""
        self._doomed = kill
        self._go.release()
        self._stopped.acquire()

    def _pause(self) -> None:
        self._stopped.release()
        self._go.acquire()
        if self._doomed:
            raise Killed

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._doomed:
                with suppress(Killed):
                    self._job(self._pause)
        except BaseException as error:
            self.failure = error
        self.done = True
        self._stopped.release()


def play(jobs: Sequence[Callable[[Pause], None]], choose: Callable[[int], int], between: Callable[[], None]) -> None:
    """Run all jobs to their ends.

    Args:
        jobs: each is given what it has to call where others may come between.
        choose: picks one of so many.
        between: is called after each step, for what happens by itself.
    """
    actors = [Actor(job) for job in jobs]
    try:
        while living := [actor for actor in actors if not actor.done]:
            living[choose(len(living))].step()
            between()
    finally:
        for actor in actors:
            if not actor.done:
                actor.step(kill=True)
    for actor in actors:
        if actor.failure is not None:
            raise actor.failure


def every_schedule(run: Callable[[Callable[[int], int]], None]) -> int:
    """Run once for every sequence of choices there is, and return how many there were."""
    script: list[tuple[int, int]] = []
    runs = 0
    while True:
        taken: list[tuple[int, int]] = []

        def choose(count: int, script: list[tuple[int, int]] = script, taken: list[tuple[int, int]] = taken) -> int:
            pick = script[len(taken)][0] if len(taken) < len(script) else 0
            taken.append((pick, count))
            return pick

        run(choose)
        runs += 1
        script = taken
        while script and script[-1][0] + 1 == script[-1][1]:
            script.pop()
        if not script:
            return runs
        script[-1] = script[-1][0] + 1, script[-1][1]
