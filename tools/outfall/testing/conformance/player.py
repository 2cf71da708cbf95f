"""Plays schedules: what happens, what is noted, and after each action what a reader finds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from outfall.errors import OutfallError
from outfall.testing.conformance.actions import (
    Action,
    Attempt,
    Begin,
    Crash,
    Fail,
    Finish,
    LostReply,
    PartialCommit,
    Replay,
    Restart,
    Sleep,
    SlowReply,
    Stall,
    Wake,
    Write,
)
from outfall.testing.conformance.checks.commit import Commits, reply_late, reply_lost
from outfall.testing.conformance.faults import ConformanceError
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.quiet import quiet
from outfall.testing.conformance.spying import probing
from outfall.testing.conformance.stepping import Suspended
from outfall.testing.conformance.trial import Begun, Trial
from outfall.testing.crash_points import CrashError
from outfall.testing.fake_clock import FakeClock
from outfall.trace_points import listen

TASK_STEPS = 25
"""About so many steps has an attempt of a task."""


class InjectedError(Exception):
    """Stands for any error that a call may raise."""


def play(harness: SinkHarness, schedule: Sequence[Action], directory: Path | None = None) -> None:
    """Play a schedule on an empty target, and check what a reader finds after each action and in the end.

    Raises:
        ConformanceError: the claim is not true; the text is a script that plays the schedule again.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as temporary:
            return play(harness, schedule, Path(temporary))
    player = Player(Trial(harness, directory))
    try:
        with quiet():
            player.play(schedule)
    except ConformanceError as fault:
        raise ConformanceError(fault.fault, place=f"this schedule was played\n{player.script(schedule)}") from fault
    return None


class Player:
    """One query: a driver that lives, epochs that others have begun, drivers that sleep."""

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
        """Play all actions; then wake and finish what is left over, and have the query go on."""
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
        """Write the schedule as Python, with the step that each action came to."""
        kind = type(self.trial.harness)
        lines = [
            f"from {kind.__module__} import {kind.__name__}",
            "from outfall.testing.conformance.actions import *",
            "from outfall.testing.conformance.player import play",
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
        with suppress(CrashError), self._at(action.at, CrashError):
            self._run(action.tasks, action.rows)
        self._restart()

    @_act.register
    def _(self, action: Fail) -> None:
        with self._at(action.at, InjectedError):
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
            # Refused when the next epoch is recorded already, though nobody has heard of it.
            with suppress(OutfallError):
                self.trial.run(self.driver, self.trial.bring(epoch, tasks=action.tasks))
        self._restart()

    @_act.register
    def _(self, action: Begin) -> None:
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

    # --- what they are made of

    def _run(self, tasks: int = 3, rows: int = 6) -> None:
        """Have the driver run the next epoch. After any error it is started again, as a cluster does."""
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
        self._notes[self._playing] = sleeper.at or "came to its end"
        self.sleepers.append(sleeper)

    def _finish(self, begun: Begun) -> None:
        with suppress(Exception):
            begun.run_tasks()
            begun.finish()

    def _within_an_epoch(self, number: int) -> int:
        """The step of a number: an epoch has so many as the last one that went through."""
        return number if self._steps_of_an_epoch is None else number % self._steps_of_an_epoch

    @contextmanager
    def _at(self, number: int, error: type[BaseException]) -> Iterator[None]:
        """Raise at the n-th step within the block."""
        left = self._within_an_epoch(number)

        def listener(step: str) -> None:
            nonlocal left
            if left == 0:
                self._notes[self._playing] = step
                left -= 1
                raise error(step)
            left -= 1

        with _listening(listener):
            yield


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
