"""Steps of a scenario: noted, and where an attempt or driver is stopped, to be woken later.

The lines of a sink's own code may be steps too: the side effects of a sink that announces none itself.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import outfall.trace_points
from outfall.trace_points import listen, reached

WAIT = 120.0
"""Seconds after which a thread that neither stops nor ends is a fault of the test."""


_started: weakref.WeakSet[Suspended] = weakref.WeakSet()


def steps_of(action: Callable[[], Any]) -> list[str]:
    """Run something once.

    Returns:
        Every step that it reached, each time that it did: `"after commit#1"`, `"after commit#2"`.
    """
    seen: list[str] = []
    stop = listen(seen.append)
    try:
        action()
    finally:
        stop()
    return numbered(seen)


def numbered(steps: list[str]) -> list[str]:
    """Tell the same steps apart by how often they were reached."""
    times: Counter[str] = Counter()
    specs = []
    for step in steps:
        times[step] += 1
        specs.append(f"{step}#{times[step]}")
    return specs


@contextmanager
def at_step(spec: str, action: Callable[[], Any]) -> Iterator[None]:
    """Run an action when a step is reached within the block, once; the steps of the action do not count."""
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


def let_all_go() -> None:
    """Let everything go on that sleeps at a step, so that it gives up what others wait for."""
    for suspended in list(_started):
        suspended.let_go()


class Suspended:
    """Something that runs in a thread of its own up to a step, and goes on when it is woken."""

    def __init__(self, action: Callable[[], Any], spec: str | int) -> None:
        """Start it, and return when it has stopped or has ended before.

        Args:
            action: what runs.
            spec: the step, with `#n` for the n-th time; or n for the n-th step of any kind.
        """
        self.error: BaseException | None = None
        self.result: Any = None
        self.at: str | None = None
        """The step at which it stopped."""
        step, _, times = (None, "", spec + 1) if isinstance(spec, int) else spec.partition("#")
        self._step = step
        self._left = int(times or 1)
        self._still = threading.Event()
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(action,), daemon=True)
        _started.add(self)
        self._stop_listening = listen(self._listener)
        self._thread.start()
        self._wait(self._still)

    def wake(self) -> None:
        """Let it go on, and return when it has ended. What it raised is kept in `error`."""
        self._go_on.set()
        self._thread.join(WAIT)
        if self._thread.is_alive():
            raise TimeoutError("what was woken did not end")
        self._stop_listening_once()

    def let_go(self) -> None:
        """Let it go on, and wait for nothing."""
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


def watched(files: Iterable[str], action: Callable[[], T]) -> T:
    """Run something, and announce each line of the files before it runs, as `"line sink.py:42"`.

    A thread of its own runs it: an error that a trace function raises in an `except` block leaves that thread with the
    handled error for good (seen on CPython 3.11). A debugger or coverage tool sees nothing of it.
    """
    names = {file: os.path.basename(file) for file in files}
    if not names:
        return action()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        sys.settrace(lambda frame, event, argument: _trace(names, frame, event))
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run, name="watched")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _trace(names: Mapping[str, str], frame: FrameType, event: str) -> Any:
    name = names.get(frame.f_code.co_filename)
    if name is None:
        return None
    if event == "line":
        reached(f"line {name}:{frame.f_lineno}")
    return lambda frame, event, argument: _trace(names, frame, event)


def files_of(objects: Iterable[Any]) -> set[str]:
    """The source files of the classes of a sink, its partitions and its committer, without the engine's own."""
    modules = {sys.modules.get(kind.__module__) for thing in objects for kind in type(thing).__mro__}
    files = {getattr(module, "__file__", None) for module in modules}
    return {file for file in files if file and not _foreign(file)}


def _foreign(file: str) -> bool:
    return os.path.dirname(file) == _CORE or os.path.dirname(os.__file__) == os.path.dirname(file)
