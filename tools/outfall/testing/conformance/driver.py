"""Drivers with isolated tasks, as on Spark: each task has a copy of the sink or a separate process."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from outfall.capabilities import SupportsWriterState
from outfall.capability_checks import resolve
from outfall.protocol.messages import EpochResult
from outfall.protocol.step import EpochOptions
from outfall.testing.conformance.faults import ConformanceError
from outfall.testing.crash_points import Countdown
from outfall.testing.local_engine import LocalDriver
from outfall.trace_points import listen

_PR_SET_PDEATHSIG = 1  # prctl(2)

TaskRows = list[tuple[str | None, list[Any]]]
"""The batches of one task with their parts."""


class RemoteTasks(LocalDriver):
    """Runs each attempt of each task on a pickled copy of the sink."""

    def run_epoch(self, epoch: int, tasks: Sequence[Iterable[Any]]) -> EpochResult:
        routed = self.routed(tasks)
        self.expect_tasks(len(routed))
        with closing(self.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch, query_id=self._query_id)
            answers = [self.run_task(ticket, epoch, index, rows) for index, rows in enumerate(routed)]
            return coordinator.finish(ticket, answers)

    def expect_tasks(self, count: int) -> None:
        """Set the number of tasks of the next epoch, which distributes the writer states."""
        if SupportsWriterState in resolve(self.sink).capabilities:
            self._options = replace(self._options or EpochOptions(), worker_count=count)

    def task_sink(self) -> Any:
        return copied(self.sink)

    def routed(self, tasks: Sequence[Iterable[Any]]) -> list[TaskRows]:
        """Assign rows to tasks. For a fixed sink, the given number of tasks shares the parts."""
        if not resolve(self.sink).fixed:
            return [_halves([(None, list(rows))]) for rows in tasks]
        by_part = self.route(tasks)
        count = max(1, min(len(tasks), len(by_part)))
        return [[batch for part in by_part[index::count] for batch in _halves(part)] for index in range(count)]


def copied(sink: Any) -> Any:
    """Return the sink of a task: a pickled copy, with cloudpickle as fallback, as on Spark.

    Raises `ConformanceError` if the sink cannot be pickled.
    """
    try:
        return pickle.loads(pickled(sink))  # noqa: S301 - our own bytes
    except Exception as error:
        raise ConformanceError(
            f"the sink cannot be sent to a task: {type(error).__name__}: {error}",
            do="keep only options on the sink, and open connections in build or build_part; derive a target in memory"
            " from outfall.testing.ByReference; lambdas and local classes require cloudpickle from 'outfall[testing]'",
        ) from error


def pickled(sink: Any) -> bytes:
    """Pickle as Spark does with the extra `testing`, else as Python does."""
    try:
        return pickle.dumps(sink)
    except Exception:
        try:
            import cloudpickle
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        return bytes(cloudpickle.dumps(sink))


def _halves(part: list[tuple[str | None, list[Any]]]) -> TaskRows:
    """Split the rows of a part or task into two batches, because batch boundaries have no meaning."""
    return [(name, rows[at:end]) for name, rows in part for at, end in ((0, len(rows) // 2), (len(rows) // 2, None))]


def status_of_child_killed_at(spec: str, action: Callable[[], Any]) -> int:
    """Run an action in a child process that dies by SIGKILL at a step.

    Returns the status as `in_child` does; 0 if the step was not reached.
    """

    def run() -> None:
        countdown = Countdown(spec)
        listen(lambda step: os.kill(os.getpid(), signal.SIGKILL) if countdown.hit(step) else None)
        action()

    return in_child(run)


def result_of_child(action: Callable[[], Any]) -> Any:
    """Run an action in a child process, and return its pickled result."""
    reading, writing = os.pipe()

    def run() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(action()))

    try:
        pid = _forked(run)
        os.close(writing)
        with _killed_on_error(pid), os.fdopen(reading, "rb", closefd=False) as pipe:
            data = pipe.read()
        if status := _waited(pid):
            raise ChildProcessError(f"a task in a separate process ended with {status}")
        return pickle.loads(data)  # noqa: S301 - our own child's
    finally:
        os.close(reading)


def in_child(action: Callable[[], Any]) -> int:
    """Run an action in a child process. Return its exit status: 0, 1 after an error, or negative for a signal."""
    return _waited(_forked(action))


def _forked(action: Callable[[], Any]) -> int:
    with warnings.catch_warnings():
        # The child does not need the server threads of this process.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _die_with_parent()
            action()
            status = 0
        except BaseException:
            if os.environ.get("OUTFALL_TEST_VERBOSE"):
                traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _die_with_parent() -> None:
    """End a hanging child with the tests, which would otherwise wait for its inherited pipes. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _waited(pid: int) -> int:
    """Wait for a child without a deadline, because the suite ends stalled checks."""
    with _killed_on_error(pid):
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)


@contextmanager
def _killed_on_error(pid: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
