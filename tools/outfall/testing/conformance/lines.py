"""Every line of a sink's own code as a step: the side effects of a sink that announces none itself."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, TypeVar

import outfall.trace_points
from outfall.trace_points import reached

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
