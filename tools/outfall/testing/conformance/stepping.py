"""Records the steps of a scenario, and suspends attempts or drivers at a step.

Lines of a sink's own code can be steps too, for sinks that announce no steps.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

import outfall.trace_points
from outfall.trace_points import listen, reached

WAIT = 120.0
"""Seconds after which a thread that neither stops nor ends is an error of the test."""
PATIENCE = 1.0
"""Seconds after which an unfinished resumed action is assumed to wait for a lock of the action that resumed it."""


_started: weakref.WeakSet[Suspended] = weakref.WeakSet()


def steps_of(action: Callable[[], Any]) -> list[str]:
    """Run an action once, and return all reached steps with their counts: `"after commit#1"`, `"after commit#2"`."""
    seen: list[str] = []
    stop = listen(seen.append)
    try:
        action()
    finally:
        stop()
    return numbered(seen)


def changing(steps: Iterable[str]) -> list[str]:
    """Return the steps after which code of the sink may change the target. After the others, only the engine's runs."""
    inert = ("task: ", "log: ", "before ", "after ", "sink: after ", "sink: before bind", "sink: before list_parts")
    return [step for step in steps if not step.startswith(inert) or step.startswith("task: after snapshot")]


def numbered(steps: list[str]) -> list[str]:
    """Number repeated steps."""
    times: Counter[str] = Counter()
    specs = []
    for step in steps:
        times[step] += 1
        specs.append(f"{step}#{times[step]}")
    return specs


@contextmanager
def at_step(spec: str, action: Callable[[], Any]) -> Iterator[None]:
    """Run an action once at a step in the block. Steps of the action do not count."""
    step, _, times = spec.partition("#")
    left = int(times or 1)
    acting = False

    def listener(reached: str) -> None:
        nonlocal left, acting
        if acting or reached != step:
            return
        left -= 1
        if left == 0:
            acting = True
            try:
                action()
            finally:
                acting = False

    stop = listen(listener)
    try:
        yield
    finally:
        stop()


class _InjectedError(Exception):
    """An arbitrary error of a task, driver or job."""


@contextmanager
def failing_at(step: str) -> Iterator[None]:
    """Raise an error when a step is reached, and end the block with it."""

    def fail() -> None:
        raise _InjectedError

    with suppress(_InjectedError), at_step(step, fail):
        yield


def let_all_go() -> None:
    """Resume all suspended actions, so that they release their locks."""
    for suspended in list(_started):
        suspended.let_go()


class Suspended:
    """An action in a separate thread that is suspended at a step and can be resumed."""

    def __init__(self, action: Callable[[], Any], spec: str | int, *, patience: float | None = None) -> None:
        """Start the action, and return when it is suspended or has ended.

        `spec` is the step, with `#n` for the n-th time; or n for the n-th step of any kind. After `patience` seconds,
        the action is left alone, because it waits for a lock; `None` if it must not.
        """
        self.error: BaseException | None = None
        self.result: Any = None
        self.at: str | None = None
        """The step at which the action is suspended."""
        step, _, times = (None, "", spec + 1) if isinstance(spec, int) else spec.partition("#")
        self._step = step
        self._left = int(times or 1)
        self._still = threading.Event()
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(action,), daemon=True)
        _started.add(self)
        self._stop_listening = listen(self._listener)
        self._thread.start()
        if patience is None:
            self._wait(self._still)
        else:
            self._still.wait(patience)

    @property
    def ended(self) -> bool:
        """Whether the action has ended."""
        return not self._thread.is_alive()

    def nudge(self) -> None:
        """Resume the action within another one, for whose lock it may wait. Wake it at the end."""
        self._go_on.set()
        self._thread.join(PATIENCE)

    @property
    def resumed(self) -> bool:
        """Whether the action continues or has ended."""
        return self._go_on.is_set()

    def wake(self) -> None:
        """Resume the action, and return when it has ended. Its exception is in `error`."""
        self._go_on.set()
        self._thread.join(WAIT)
        if self._thread.is_alive():
            raise TimeoutError("the resumed action did not end")
        self._stop_listening_once()

    def let_go(self) -> None:
        """Resume the action without waiting."""
        self._go_on.set()

    def _run(self, action: Callable[[], Any]) -> None:
        try:
            self.result = action()
        except BaseException as error:
            self.error = error
        finally:
            self._still.set()

    def _listener(self, step: str) -> None:
        if self._step not in (None, step) or threading.current_thread() is not self._thread:
            return
        self._left -= 1
        if self._left == 0:
            self.at = step
            self._still.set()
            self._wait(self._go_on)

    def _wait(self, event: threading.Event) -> None:
        if not event.wait(WAIT):
            raise TimeoutError(f"{self._step!r} was neither reached nor left")

    def _stop_listening_once(self) -> None:
        stop, self._stop_listening = self._stop_listening, lambda: None
        stop()


T = TypeVar("T")
_CORE = os.path.dirname(outfall.trace_points.__file__)


def watched(files: Collection[str], action: Callable[[], T]) -> T:
    """Run an action, and announce each line of the files before it runs, as `"line sink.py:42"`.

    The action runs in a separate thread: if a trace function raises in an `except` block, the thread keeps the handled
    error forever (seen on CPython 3.11). Debuggers and coverage tools do not see the thread.
    """
    if not files:
        return action()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(announcing_lines(files, action))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="watched")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def announcing_lines(files: Iterable[str], action: Callable[[], T]) -> T:
    """Run an action in this thread, and announce each line of the files before it runs."""
    names = {file: os.path.basename(file) for file in files}
    sys.settrace(lambda frame, event, argument: _trace(names, frame, event))
    try:
        return action()
    finally:
        sys.settrace(None)


def _trace(names: Mapping[str, str], frame: FrameType, event: str) -> Any:
    name = names.get(frame.f_code.co_filename)
    if name is None:
        return None
    if event == "line":
        reached(f"line {name}:{frame.f_lineno}")
    return lambda frame, event, argument: _trace(names, frame, event)


def files_of(objects: Iterable[Any]) -> set[str]:
    """The source files of a sink's classes, partitions and committer, without the engine's files."""
    modules = {sys.modules.get(kind.__module__) for thing in objects for kind in type(thing).__mro__}
    files = {getattr(module, "__file__", None) for module in modules}
    return {file for file in files if file and not _foreign(file)}


def _foreign(file: str) -> bool:
    return os.path.dirname(file) == _CORE or os.path.dirname(os.__file__) == os.path.dirname(file)
