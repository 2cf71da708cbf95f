"""What a check is given: trials of one sink, the cases to try, and the conditions of the check."""

from __future__ import annotations

import itertools
import math
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from outfall.capabilities import Guarantee, SupportsTarget
from outfall.capability_checks import ResolvedSink, resolve
from outfall.errors import TargetError
from outfall.testing.conformance.driver import result_of_child
from outfall.testing.conformance.faults import ConformanceError, NotApplicableError, NotTriedError
from outfall.testing.conformance.harness import SinkHarness, gives, is_directory
from outfall.testing.conformance.rows import Content
from outfall.testing.conformance.spying import Probe, delegate_of, probing
from outfall.testing.conformance.stepping import changing, files_of, steps_of, watched
from outfall.testing.conformance.trial import Trial, Wrapper, claim_of, unwrapped

Case = TypeVar("Case")

BY_DEFAULT = {"lose", "lose_target", "save_target", "breaking"}
"""Default operations for a target that is a directory."""


class Trials:
    """Creates trials of a sink in one directory; one object per check. A given `target` is only inspected."""

    def __init__(self, harness: SinkHarness, directory: Path, target: Any) -> None:
        self.harness = harness
        self.directory = directory
        self.target = target
        self.resolved = resolve(harness.make_sink(target))
        self.fixed = self.resolved.fixed
        self.claim = claim_of(harness, self.resolved)

    @classmethod
    def create(cls, harness: SinkHarness, directory: Path) -> Trials:
        """Use a directory, and create one target in it to inspect the sink."""
        place = directory / "sample"
        place.mkdir(parents=True, exist_ok=True)
        return cls(harness, directory, harness.new_target(place))

    def new(self, *, durable_log: bool = False, wrapper: Wrapper = unwrapped) -> Trial:
        """Create a trial with an empty target. Raises `OutfallError` if the wrapper rejects the sink."""
        return Trial.create(self.harness, self.directory, durable_log=durable_log, wrapper=wrapper)

    def chosen(self, cases: Iterable[Case], most: int = sys.maxsize) -> list[Case]:
        """Return all cases of a check, or at most so many and `most_cases` of them, evenly distributed."""
        every = list(cases)
        most = min(most, sys.maxsize if self.harness.most_cases is None else self.harness.most_cases)
        if len(every) <= most:
            return every
        # The golden ratio avoids pairs (step, moment) with always the same moment.
        stride = next(step for step in itertools.count(len(every) * 5 // 8 or 1) if math.gcd(step, len(every)) == 1)
        return [every[index] for index in sorted(number * stride % len(every) for number in range(most))]

    @property
    def sink(self) -> Any:
        """A sink to inspect."""
        return self.resolved.sink

    @property
    def once(self) -> bool:
        """Whether the guarantee is stronger than at-least-once."""
        return self.claim > Guarantee.AT_LEAST_ONCE

    @property
    def strict(self) -> bool:
        """Whether checks that cannot run fail the suite."""
        return self.claim == Guarantee.EXACTLY_ONCE if self.harness.strict is None else self.harness.strict

    @property
    def cleans_up(self) -> bool:
        """Whether the sink, or one of its child sinks, cleans up after failed attempts."""
        return _cleans_up(self.resolved)

    def needs(self, condition: bool, reason: str) -> None:
        """Raise `NotApplicableError` unless the condition holds."""
        if not condition:
            raise NotApplicableError(reason)

    def needs_to_try(self, condition: bool, reason: str) -> None:
        """Raise `NotTriedError` unless the condition holds; the guarantee stays untested."""
        if not condition:
            raise NotTriedError(reason, strict=self.strict)

    def needs_target(self) -> None:
        """Raise `NotTriedError` unless the sink compares its target with the recovery data."""
        self.needs_to_try(SupportsTarget in self.resolved.capabilities, "the sink has no SupportsTarget")

    def needs_from_author(self, method: str) -> None:
        """Raise `NotTriedError` unless the test has an optional method or the target is a directory."""
        self.needs_to_try(self.has_from_author(method), f"the test has no {method}()")

    def has_from_author(self, method: str) -> bool:
        """Whether the test has an optional method, or the target is a directory with a default."""
        return gives(self.harness, method) or (method in BY_DEFAULT and is_directory(self.target))

    def needs_processes(self) -> None:
        """Check that a child process can write to the target.

        Raises `NotTriedError`, with the reason, if it cannot, and `ConformanceError` if a run failed in a child
        process.
        """
        self.needs_to_try(hasattr(os, "fork"), "this system has no fork()")
        outlives = self.outlives_this_process()
        self.needs_to_try(outlives, "the target is in this process, and a child process cannot write to it")

    def outlives_this_process(self) -> bool:
        """Whether writes of a child process to the target survive the child.

        Raises `ConformanceError` if a run failed in a child process for another reason.
        """
        if not hasattr(os, "fork"):
            return False
        trial = self.new(durable_log=True)
        content = trial.bring(0)
        _check_child("an epoch", partial(_run_again, trial, content))
        trial.counted[0] = [content.numbers]
        for _ in range(self.harness.drain_epochs):
            empty = trial.bring_numbers(trial.epoch, [(), ()])
            if not _goes_on(trial, "an epoch after another", partial(_run_again, trial, empty)):
                return False
            trial.counted[empty.epoch] = [empty.numbers]
        if trial.drains and not _goes_on(trial, "a drain", partial(_drain, trial)):
            return False
        return bool(trial.found())


def _cleans_up(sink: ResolvedSink) -> bool:
    if children := sink.children():
        return any(map(_cleans_up, children.values()))
    own: Any = type(delegate_of(sink.sink))
    return SupportsTarget in sink.capabilities and own.clean_up is not SupportsTarget.clean_up


class _Objects(Probe):
    """Collects partitions of the sink."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        result = super().around(method, args, call)
        if method in {"build", "build_part", "restore_writer", "create_committer"}:
            self.made.append(result)
        return result


def sources(trials: Trials) -> set[str]:
    """Return the source files of the sink, its partitions and its committer."""
    trial = trials.new()
    with probing(_Objects()) as probe:
        trial.run_epochs(2)
    return files_of([trials.sink, delegate_of(trials.sink), *probe.made])


def epoch_steps(trials: Trials, epoch: int, *, files: Collection[str] = (), durable_log: bool = False) -> list[str]:
    """Return the steps of an epoch at which the target or the log may have changed; with files, also each line."""
    trial = trials.new(durable_log=durable_log)
    driver = trial.run_epochs(epoch)
    content = trial.bring(epoch)
    steps: list[str] = watched(files, lambda: steps_of(lambda: trial.run(driver, content)))
    return [step for step in steps if step.startswith("after ") or changing([step])]


def _run_again(trial: Trial, content: Content) -> None:
    trial.run(trial.driver(), content)


def _drain(trial: Trial) -> None:
    trial.driver().drain()


def _goes_on(trial: Trial, what: str, action: Callable[[], Any]) -> bool:
    """Run an epoch after another process; `False` if the target reports that the other's rows are lost."""
    try:
        _check_child(what, action)
    except ConformanceError as error:
        if isinstance(error.__cause__, TargetError) and not trial.found():
            return False
        raise
    return True


def _check_child(what: str, action: Callable[[], Any]) -> None:
    """Run an action in a child process, which must succeed.

    Raises `ConformanceError` if the child failed; its cause is a `TargetError` if the child raised one.
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
            f"{what} failed in a separate process: {text}",
            do="do not rely on data of one process: on Spark, several processes use a sink, and a run may be the first"
            " of its process (OUTFALL_TEST_VERBOSE=1 prints the traceback)",
        ) from (TargetError(text) if of_target else None)
