"""A driver dies at every step, and its successor goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outfall.testing.conformance.faults import when
from outfall.testing.conformance.lines import files_of, watched
from outfall.testing.conformance.registry import check
from outfall.testing.conformance.spying import Probe, probing
from outfall.testing.conformance.stepping import steps_of
from outfall.testing.conformance.trials import Trials
from outfall.testing.crash_points import crash_at

MOST_LINES = 150
"""Lines at which one epoch is crashed; of more, as many are chosen evenly."""


def epoch_steps(trials: Trials, epoch: int, *, files: set[str] | None = None, durable_log: bool = False) -> list[str]:
    """Every step of an epoch, each time that it is reached; with files, each of their lines is one."""
    trial = trials.new(durable_log=durable_log)
    driver = trial.run_epochs(epoch)
    content = trial.bring(epoch)
    steps: list[str] = watched(files or set(), lambda: steps_of(lambda: trial.run(driver, content)))
    return steps


@check
def crash_at_every_step(trials: Trials) -> None:
    """A crash of the driver at some step, or between two calls of the sink, loses or repeats rows."""
    for epoch in (0, 1):
        for spec in epoch_steps(trials, epoch):
            _crash(trials, epoch, spec)


@check
def crash_at_every_line(trials: Trials) -> None:
    """A crash between two lines of the sink's own code loses or repeats rows."""
    files = _files(trials)
    trials.needs_to_try(bool(files), "the sink's code is in no file")
    for epoch in (0, 1):
        specs = [spec for spec in epoch_steps(trials, epoch, files=files) if spec.startswith("line ")]
        for spec in _spread(specs, MOST_LINES):
            _crash(trials, epoch, spec, files)


@check
def crash_twice(trials: Trials) -> None:
    """A driver that dies where its predecessor died loses or repeats rows."""
    for spec in epoch_steps(trials, 0)[::3]:
        trial = trials.new()
        with when(f"two drivers, one after the other, died at {spec!r}"):
            for _ in range(2):
                with crash_at(spec):
                    trial.complete(0)
            trial.finish(0)


def _crash(trials: Trials, epoch: int, spec: str, files: set[str] | None = None) -> None:
    trial = trials.new()
    driver = trial.run_epochs(epoch)
    content = trial.bring(epoch)
    with when(f"a driver died at {spec!r} of epoch {epoch}"):
        watched(files or set(), lambda: trial.run_until(spec, content, driver))
        trial.finish(epoch)


def _spread(specs: list[str], most: int) -> list[str]:
    """Choose evenly when there are too many."""
    step = max(1, -(-len(specs) // most))
    return specs[::step]


class _Objects(Probe):
    """Collects what the sink makes."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        result = super().around(method, args, call)
        if method in {"build", "build_part", "restore_writer", "create_committer"}:
            self.made.append(result)
        return result


def _files(trials: Trials) -> set[str]:
    trial = trials.new()
    with probing(_Objects()) as probe:
        trial.run_epochs(2)
    return files_of([trials.sink, *probe.made])
