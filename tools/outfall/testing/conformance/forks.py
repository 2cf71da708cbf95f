"""Drivers and tasks in processes of their own, that are really killed."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from outfall.errors import TargetError
from outfall.testing.conformance.faults import ConformanceError
from outfall.testing.conformance.trial import Content, Trial
from outfall.testing.conformance.trials import Trials
from outfall.testing.crash_points import Countdown
from outfall.trace_points import listen


def needs_processes(trials: Trials) -> None:
    """Leave a check out where a child process cannot write to the target.

    Raises:
        NotTriedError: saying why.
        ConformanceError: a run failed in a child process.
    """
    trials.needs_to_try(hasattr(os, "fork"), "this system has no fork()")
    outlives = outlives_this_process(trials)
    trials.needs_to_try(outlives, "the target is in this process, and a child's writing does not reach it")


def outlives_this_process(trials: Trials) -> bool:
    """Whether what a child process writes to a target is there when it is gone.

    Raises:
        ConformanceError: a run failed in a child process, which is no sign of a target in this one.
    """
    if not hasattr(os, "fork"):
        return False
    trial = trials.new(durable_log=True)
    content = trial.bring(0)
    _check_child("an epoch", partial(_run_anew, trial, content))
    trial.counted[0] = [content.numbers]
    for _ in range(trials.harness.drain_epochs):
        empty = trial.bring_numbers(trial.epoch, [(), ()])
        if not _goes_on(trial, "an epoch after another", partial(_run_anew, trial, empty)):
            return False
        trial.counted[empty.epoch] = [empty.numbers]
    if trial.drains and not _goes_on(trial, "a drain", partial(_drain, trial)):
        return False
    return bool(trial.found())


def _run_anew(trial: Trial, content: Content) -> None:
    trial.run(trial.driver(), content)


def _drain(trial: Trial) -> None:
    trial.driver().drain()


def _goes_on(trial: Trial, what: str, action: Callable[[], Any]) -> bool:
    """Run what builds on another process; `False` when that one's rows are gone with it, and the target says so."""
    try:
        _check_child(what, action)
    except ConformanceError as error:
        if isinstance(error.__cause__, TargetError) and not trial.found():
            return False
        raise
    return True


def _check_child(what: str, action: Callable[[], Any]) -> None:
    """Run something in a child process, which must come to its end.

    Raises:
        ConformanceError: it did not; its cause is a `TargetError` where the child raised one.
    """

    def run() -> tuple[str, bool] | None:
        try:
            action()
        except Exception as error:
            if os.environ.get("OUTFALL_TEST_VERBOSE"):
                traceback.print_exc()
            return f"{type(error).__name__}: {error}", isinstance(error, TargetError)
        return None

    try:
        failed = result_of_child(run)
    except ChildProcessError as error:
        failed = str(error), False
    if failed:
        text, of_target = failed
        raise ConformanceError(
            f"{what} failed in a process of its own: {text}",
            do="keep nothing that only one process has: on Spark a sink is used in several, and a run may be the"
            " first of its process (OUTFALL_TEST_VERBOSE=1 prints the traceback)",
        ) from (TargetError(text) if of_target else None)


def status_of_child_killed_at(spec: str, action: Callable[[], Any]) -> int:
    """Run something in a child process that dies by SIGKILL at a step.

    Returns:
        As `in_child`: 0 when the step was not reached.
    """

    def run() -> None:
        countdown = Countdown(spec)
        listen(lambda step: os.kill(os.getpid(), signal.SIGKILL) if countdown.hit(step) else None)
        action()

    return in_child(run)


def result_of_child(action: Callable[[], Any]) -> Any:
    """Run something in a child process and return its result, pickled."""
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
            raise ChildProcessError(f"a task in a process of its own ended with {status}")
        return pickle.loads(data)  # noqa: S301 - our own child's
    finally:
        os.close(reading)


def in_child(action: Callable[[], Any]) -> int:
    """Run something in a child process.

    Returns:
        Its exit status, 0 when it came to its end, 1 when it raised, negative for a signal.
    """
    return _waited(_forked(action))


def _forked(action: Callable[[], Any]) -> int:
    with warnings.catch_warnings():
        # Threads of servers that run in this process too are not needed in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            if os.environ.get("OUTFALL_TEST_VERBOSE"):
                traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _waited(pid: int) -> int:
    """Wait for a child, however long: a check in which nothing happens any more is ended from outside."""
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
