"""Schedules: sequences of events of a query as values, and their execution.

A schedule is a list of actions and is printed as a script that plays it again. The number of a step is taken modulo the
steps of the last successful epoch, so every number is valid. The visible rows are checked after each action.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from outfall.errors import OutfallError
from outfall.testing.conformance.checks.commit import Commits, reply_late, reply_lost
from outfall.testing.conformance.faults import ConformanceError, quiet
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.spying import probing
from outfall.testing.conformance.stepping import Suspended
from outfall.testing.conformance.trial import Begun, Trial
from outfall.testing.crash_points import CrashError
from outfall.testing.local_engine import FakeClock
from outfall.trace_points import listen


@dataclass(frozen=True)
class Write:
    """The driver runs the next epoch with a number of rows and tasks."""

    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Crash:
    """The driver begins the next epoch and dies at the n-th step of any kind. A new driver starts."""

    at: int
    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Fail:
    """An error occurs at the n-th step of the next epoch, in a task or in the driver. The driver survives."""

    at: int
    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class PartialCommit:
    """The driver dies after its committer has processed this number of requests."""

    after: int = 1


@dataclass(frozen=True)
class LostReply:
    """The commit succeeds, but its response is lost: an error."""


@dataclass(frozen=True)
class SlowReply:
    """The commit succeeds, requests a retry, and runs again."""


@dataclass(frozen=True)
class Restart:
    """The driver ends, and a new driver starts."""


@dataclass(frozen=True)
class Replay:
    """Spark replays the last completed epoch, because it lost its commit entry."""

    tasks: int = 2


@dataclass(frozen=True)
class BeginBeside:
    """Another driver begins the next epoch without tasks. A later driver makes it a zombie."""

    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Attempt:
    """An attempt of a task of a begun epoch runs, late or concurrently. Its result is delivered or lost."""

    begun: int
    task: int
    delivered: bool = True


@dataclass(frozen=True)
class Stall:
    """An attempt of a task of a begun epoch is suspended at the n-th step of any kind."""

    begun: int
    task: int
    at: int


@dataclass(frozen=True)
class Finish:
    """A begun epoch continues with its remaining tasks and its commit."""

    begun: int


@dataclass(frozen=True)
class Sleep:
    """Another driver runs the next epoch and is suspended at the n-th step of any kind."""

    at: int
    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Wake:
    """A suspended driver or attempt resumes."""

    sleeper: int


@dataclass(frozen=True)
class WakeWithin:
    """A suspended driver or attempt resumes at the n-th step of the next epoch."""

    sleeper: int
    at: int
    tasks: int = 3
    rows: int = 6


Action = (
    Write | Crash | Fail | PartialCommit | LostReply | SlowReply | Restart | Replay | BeginBeside | Attempt | Stall
    | Finish | Sleep | Wake | WakeWithin
)  # fmt: skip


TASK_STEPS = 25
"""Approximate number of steps of a task attempt."""


class InjectedError(Exception):
    """An arbitrary error of a call."""


def play(harness: SinkHarness, schedule: Sequence[Action], directory: Path | None = None) -> None:
    """Play a schedule on an empty target, and check the visible rows after each action and at the end.

    Raises `ConformanceError` if the guarantee does not hold; the text is a script that plays the schedule again.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as temporary:
            return play(harness, schedule, Path(temporary))
    player = Player(Trial.create(harness, directory))
    try:
        with quiet():
            player.play(schedule)
    except ConformanceError as fault:
        raise ConformanceError(fault.fault, place=f"this schedule was played\n{player.script(schedule)}") from fault
    return None


class Player:
    """The state of one query: the current driver, epochs begun by other drivers, suspended drivers."""

    def __init__(self, trial: Trial) -> None:
        """Start the first driver."""
        self.trial = trial
        self.driver = trial.driver(clock=FakeClock())
        self.begun: list[Begun] = []
        self.sleepers: list[Suspended] = []
        self._notes: dict[int, str] = {}
        self._playing = 0
        self._steps_of_an_epoch: int | None = None

    def play(self, schedule: Sequence[Action]) -> None:
        """Play all actions, resume and finish the rest, and continue the query."""
        try:
            for self._playing, action in enumerate(schedule):
                self._act(action)
                self.trial.verify()
        finally:
            for sleeper in self.sleepers:
                sleeper.wake()
        for begun in self.begun:
            self._finish(begun)
        self.trial.finish()

    def script(self, schedule: Sequence[Action]) -> str:
        """Return the schedule as Python code, with the step that each action reached."""
        kind = type(self.trial.harness)
        lines = [
            f"from {kind.__module__} import {kind.__name__}",
            "from outfall.testing.conformance.schedules import *",
            "",
            f"play({kind.__name__}(), [",
        ]
        for index, action in enumerate(schedule):
            lines.append(f"    {action!r}," + (f"  # {self._notes[index]}" if index in self._notes else ""))
        return "\n".join([*lines, "])"])

    # --- actions

    @singledispatchmethod
    def _act(self, action: Any) -> None:
        raise TypeError(f"{action!r} is not an action")

    @_act.register
    def _(self, action: Write) -> None:
        self._run(action.tasks, action.rows)

    @_act.register
    def _(self, action: Crash) -> None:
        with suppress(CrashError), self._at(action.at, _raise(CrashError)):
            self._run(action.tasks, action.rows)
        self._restart()

    @_act.register
    def _(self, action: Fail) -> None:
        with self._at(action.at, _raise(InjectedError)):
            self._run(action.tasks, action.rows)

    @_act.register
    def _(self, action: PartialCommit) -> None:
        with suppress(CrashError), _raising(f"sink: request {action.after + 1} taken", CrashError):
            self._run()
        self._restart()

    @_act.register
    def _(self, action: LostReply) -> None:
        with probing(Commits(reply_lost)):
            self._run()

    @_act.register
    def _(self, action: SlowReply) -> None:
        with probing(Commits(reply_late)):
            self._run()

    @_act.register
    def _(self, action: Restart) -> None:
        self._restart()

    @_act.register
    def _(self, action: Replay) -> None:
        self._restart()
        epoch = self.trial.epoch - 1
        if epoch >= 0:
            # Rejected if the next epoch is already recorded, although its response was lost.
            with suppress(OutfallError):
                self.trial.run(self.driver, self.trial.bring(epoch, tasks=action.tasks))
        self._restart()

    @_act.register
    def _(self, action: BeginBeside) -> None:
        with suppress(Exception):
            driver = self.trial.driver(clock=FakeClock())
            self.begun.append(
                self.trial.begin(driver, self.trial.bring(self.trial.epoch, tasks=action.tasks, rows=action.rows))
            )

    @_act.register
    def _(self, action: Attempt) -> None:
        if not self.begun:
            return
        begun = self.begun[action.begun % len(self.begun)]
        task = action.task % len(begun.tasks)
        with suppress(Exception):
            answer = begun.run_task(task)
            if action.delivered or task not in begun.answers:
                begun.answers[task] = answer

    @_act.register
    def _(self, action: Stall) -> None:
        if not self.begun:
            return
        begun = self.begun[action.begun % len(self.begun)]
        task = action.task % len(begun.tasks)
        self._sleep(lambda: begun.run_task(task), action.at % TASK_STEPS)

    @_act.register
    def _(self, action: Finish) -> None:
        if self.begun:
            self._finish(self.begun.pop(action.begun % len(self.begun)))

    @_act.register
    def _(self, action: Sleep) -> None:
        driver = self.trial.driver(clock=FakeClock())
        content = self.trial.bring(self.trial.epoch, tasks=action.tasks, rows=action.rows)
        self._sleep(lambda: self.trial.run(driver, content), self._within_an_epoch(action.at))

    @_act.register
    def _(self, action: Wake) -> None:
        if self.sleepers:
            self.sleepers.pop(action.sleeper % len(self.sleepers)).wake()

    @_act.register
    def _(self, action: WakeWithin) -> None:
        sleeper = self.sleepers[action.sleeper % len(self.sleepers)] if self.sleepers else None
        with self._at(action.at, lambda step: sleeper.nudge() if sleeper else None):
            self._run(action.tasks, action.rows)

    # --- helpers of actions

    def _run(self, tasks: int = 3, rows: int = 6) -> None:
        """Run the next epoch, and restart the driver after an error, as a cluster does."""
        seen: list[str] = []
        try:
            with _listening(seen.append):
                self.trial.run(self.driver, self.trial.bring(self.trial.epoch, tasks=tasks, rows=rows))
            self._steps_of_an_epoch = len(seen)
        except ConformanceError:
            raise
        except Exception as error:
            self._notes.setdefault(self._playing, f"{type(error).__name__}")
            self._restart()

    def _restart(self) -> None:
        self.driver = self.trial.driver(clock=FakeClock())

    def _sleep(self, action: Callable[[], object], number: int) -> None:
        sleeper = Suspended(action, number)
        self._notes[self._playing] = sleeper.at or "the end"
        self.sleepers.append(sleeper)

    def _finish(self, begun: Begun) -> None:
        with suppress(Exception):
            begun.run_tasks()
            begun.finish()

    def _within_an_epoch(self, number: int) -> int:
        """Return the step of a number, modulo the steps of the last successful epoch."""
        return number if self._steps_of_an_epoch is None else number % self._steps_of_an_epoch

    @contextmanager
    def _at(self, number: int, act: Callable[[str], object]) -> Iterator[None]:
        """Act at the n-th step in the block."""
        left = self._within_an_epoch(number)

        def listener(step: str) -> None:
            nonlocal left
            if left == 0:
                self._notes[self._playing] = step
                left -= 1
                act(step)
            left -= 1

        with _listening(listener):
            yield


def _raise(error: type[BaseException]) -> Callable[[str], None]:
    def act(step: str) -> None:
        raise error(step)

    return act


@contextmanager
def _raising(wanted: str, error: type[BaseException]) -> Iterator[None]:
    def listener(step: str) -> None:
        if step == wanted:
            raise error(step)

    with _listening(listener):
        yield


@contextmanager
def _listening(listener: Callable[[str], None]) -> Iterator[None]:
    stop = listen(listener)
    try:
        yield
    finally:
        stop()
