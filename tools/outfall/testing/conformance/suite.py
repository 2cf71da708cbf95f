"""Runs the checks of a sink, without pytest."""

from __future__ import annotations

import difflib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import outfall.testing.conformance.checks  # noqa: F401 - fills CHECKS
from outfall.errors import ConfigurationError
from outfall.testing.conformance.faults import (
    CHECKS,
    ConformanceError,
    NotApplicableError,
    NotClaimedError,
    NotTriedError,
    StalledError,
    quiet,
)
from outfall.testing.conformance.harness import SinkHarness
from outfall.testing.conformance.stepping import let_all_go
from outfall.testing.conformance.trials import Trials
from outfall.trace_points import listen

Outcome = Literal["passed", "failed", "not tried", "not claimed", "not applicable"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    check: str
    outcome: Outcome
    text: str = ""
    """The fault, or the reason why the check did not run."""
    seconds: float = 0.0
    strict: bool = False
    """Whether the check, if not tried, fails the suite."""


@dataclass(frozen=True)
class ConformanceReport:
    """The results of all checks of a sink."""

    results: list[CheckResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed, and with `SinkHarness.strict` every covered check ran."""
        return not self.failed and not any(result.strict for result in self.not_tried)

    @property
    def failed(self) -> list[CheckResult]:
        """Checks that found a fault."""
        return self._with("failed")

    @property
    def not_tried(self) -> list[CheckResult]:
        """Checks that could not run although the guarantee covers them."""
        return self._with("not tried")

    @property
    def verdict(self) -> str:
        """The overall result in one line, with refuting and open checks."""
        of_all = {outcome: self._with(outcome) for outcome in ("failed", "not tried", "not claimed")}
        found = [f"{outcome}: {_names(results)}" for outcome, results in of_all.items() if results]
        if left_out := [name for name in CHECKS if name not in {result.check for result in self.results}]:
            found.append(f"not run: {len(left_out)} of {len(CHECKS)} checks")
        claim = "The claim is refuted" if self.failed else "No check refutes the claim"
        return f"{claim}. {'; '.join(found).capitalize()}." if found else f"{claim}, and all were tried."

    def _with(self, outcome: Outcome) -> list[CheckResult]:
        return [result for result in self.results if result.outcome == outcome]

    def __str__(self) -> str:
        lines = []
        for result in self.results:
            lines.append(f"{result.outcome:<15} {result.check} ({result.seconds:.2f} s)")
            lines += [f"    {line}" for line in result.text.splitlines()]
        return "\n".join([*lines, self.verdict])


def _names(results: list[CheckResult]) -> str:
    return ", ".join(result.check for result in results)


def run_check(harness: SinkHarness, name: str, directory: Path) -> None:
    """Run one check in its own directory.

    Raises `ConformanceError` if the sink violates its guarantee or the check stalled, `NotTriedError` if the check
    cannot run, `NotClaimedError` if the author excluded it, and `NotApplicableError` if it does not apply to this sink.
    """
    _check_names(harness.not_claimed)
    if name in harness.not_claimed:
        raise NotClaimedError(harness.not_claimed[name])
    with _ended_if_it_stalls(name, harness.deadline), _nothing_synced():
        CHECKS[name].run(Trials.create(harness, directory))


@contextmanager
def _nothing_synced() -> Iterator[None]:
    """Skip `os.fsync` for speed: a process crash does not lose written data.

    `checks.power` simulates power losses and sync failures from the recorded calls.
    """
    originals = {name: getattr(os, name) for name in ("fsync", "fdatasync") if hasattr(os, name)}
    for name in originals:
        setattr(os, name, _said_to_be_synced)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def _said_to_be_synced(file: Any) -> None:
    # Still an error for a closed file.
    os.fstat(file if isinstance(file, int) else file.fileno())


@contextmanager
def _ended_if_it_stalls(name: str, deadline: float) -> Iterator[None]:
    """Report and end a check that reaches no step before the deadline. Only the main thread can be ended.

    Raises `ConformanceError` with the last step.
    """
    watch = _Watch(name, deadline)
    stop = listen(watch.note)
    try:
        with watch.watching():
            yield
    except StalledError as stall:
        let_all_go()
        place = ": ".join([*stall.places, f"the last step was {watch.step!r}"])
        raise ConformanceError(
            f"the check stalled: no progress for {deadline:g} s",
            place=place,
            do="do not wait without a deadline for a lock of another attempt or driver, which may be"
            " suspended for hours; if the target is only slow, set a longer deadline on the test",
        ) from None
    finally:
        stop()


class _Watch:
    """Monitors the progress of a check from a separate thread."""

    def __init__(self, name: str, deadline: float) -> None:
        self.step = "its start"
        self._name = name
        self._deadline = deadline
        self._reached = time.monotonic()
        self._over = threading.Event()
        self._stalled = False

    def note(self, step: str) -> None:
        self.step, self._reached = step, time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        in_main = threading.current_thread() is threading.main_thread()
        former = signal.signal(signal.SIGINT, self._interrupted) if in_main else None
        self._former: Any = former
        thread = threading.Thread(target=self._watch, args=(in_main,), name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            if in_main:
                signal.signal(signal.SIGINT, former)

    def _watch(self, in_main: bool) -> None:
        while not self._over.wait(max(0.0, self._reached + self._deadline - time.monotonic())):
            if time.monotonic() - self._reached < self._deadline:
                continue
            sys.stderr.write(
                f"outfall.testing: no progress in the check {self._name} for {self._deadline:g} s;"
                f" the last step was {self.step!r}\n"
            )
            sys.stderr.flush()
            self._stalled = True
            if in_main:
                # A signal also interrupts a wait for a lock.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return

    def _interrupted(self, number: int, frame: Any) -> None:
        if self._stalled:
            self._stalled = False
            raise StalledError
        if callable(self._former):
            self._former(number, frame)


def run_conformance(
    harness: SinkHarness, directory: Path | None = None, *, checks: Iterable[str] | None = None
) -> ConformanceReport:
    """Run checks of a sink in sequence, also after failures.

    Args:
        harness: creates the sink and reads its target.
        directory: directory for targets and recovery data; default: a temporary one.
        checks: names of checks; default: all.

    Returns:
        The result of each check.

    Raises:
        ConfigurationError: a check does not exist.
    """
    names = list(CHECKS if checks is None else checks)
    _check_names(names)
    if directory is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_conformance(harness, Path(temporary), checks=names)
    with quiet():
        return ConformanceReport([_result(harness, name, directory / name) for name in names])


def _result(harness: SinkHarness, name: str, directory: Path) -> CheckResult:
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    outcome: Outcome = "passed"
    text = ""
    strict = False
    try:
        run_check(harness, name, directory)
    except NotTriedError as reason:
        outcome, text, strict = "not tried", str(reason), reason.strict
    except NotClaimedError as reason:
        outcome, text = "not claimed", str(reason)
    except NotApplicableError as reason:
        outcome, text = "not applicable", str(reason)
    except ConformanceError as fault:
        outcome, text = "failed", str(fault)
    except Exception:
        outcome, text = "failed", traceback.format_exc()
    return CheckResult(name, outcome, text, time.monotonic() - started, strict)


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in CHECKS:
            near = difflib.get_close_matches(name, CHECKS, n=1)
            raise ConfigurationError(
                f"the check {name!r} does not exist",
                do=f"write {near[0]!r}" if near else f"choose from {', '.join(CHECKS)}",
            )
