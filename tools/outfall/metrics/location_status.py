"""All steps of a recovery location, and of the checkpoints below a directory that is none itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outfall.errors import OutfallError
from outfall.metrics.locations import locations_below
from outfall.metrics.step_status import StepStatus, look
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.log import RecoveryConfig

SHOWN = 10
"""Checkpoints and steps that a text names."""


@dataclass(frozen=True)
class LocationStatus:
    """One location, as its logs are at one moment."""

    recovery: str
    """Its URL, free of secrets."""
    steps: list[StepStatus] = field(default_factory=list)
    checkpoints: list[LocationStatus] = field(default_factory=list)
    """Those in the directories of a location that has no steps itself."""
    problem: str | None = None
    """Why there are no steps."""

    def failed(self) -> bool:
        """Whether nothing is recorded, or something cannot be read."""
        wrong = any(step.problem or step.state == "empty" for step in self.steps)
        return bool(self.problem) or wrong or any(found.failed() for found in self.checkpoints)


@dataclass(frozen=True)
class NamedStep:
    """A step of a location, or of a checkpoint below it."""

    directory: str
    """Of the checkpoint, below the location; empty for a step of the location itself."""
    location: str
    """The URL of the one that the step is in."""
    status: StepStatus

    @property
    def name(self) -> str:
        """Tells the step from the others of the location."""
        return f"{self.directory}/{self.status.step}" if self.directory else self.status.step


def named_steps(found: LocationStatus) -> Iterator[NamedStep]:
    """Yield all steps of a location and of the checkpoints below it."""
    for location in (found, *found.checkpoints):
        directory = location.recovery.removeprefix(found.recovery).strip("/")
        yield from (NamedStep(directory, location.recovery, step) for step in location.steps)


def problems(found: LocationStatus) -> Iterator[tuple[str, str]]:
    """Yield why there are no steps in a location or in a checkpoint below it, each with its URL."""
    for location in (found, *found.checkpoints):
        if location.problem is not None:
            yield location.recovery, location.problem


def look_at(recovery: RecoveryConfig, steps: Sequence[str] = (), *, last: int) -> LocationStatus:
    """Read the steps of a location. Writes nothing, and raises nothing: what fails is told in its place.

    Args:
        recovery: the location.
        steps: which ones; all when empty, and where there are none those of the checkpoints below.
        last: how many of the last epochs of each.
    """
    url = recovery.url()
    try:
        found = [look(recovery, step, last=last) for step in steps or recovery.steps()]
        below = [] if found else locations_below(recovery)
    except OutfallError as error:
        return LocationStatus(url, problem=str(error))
    if found:
        return LocationStatus(url, found)
    if below:
        return LocationStatus(url, checkpoints=[look_at(each, last=last) for each in below])
    return LocationStatus(url, problem=no_steps(recovery))


def no_steps(recovery: RecoveryConfig) -> str:
    """Say that a location has no steps, and why where that can be seen."""
    why = why_none(recovery)
    return f"no steps in {recovery.url()}" + (f": {why}" if why else "")


def why_none(recovery: RecoveryConfig) -> str | None:
    """Say why a location has no steps, where that can be seen."""
    path = local_path(recovery)
    if path is None:
        return None
    if not os.path.isdir(path):
        return f"there is no directory {path}"
    if below := locations_below(recovery):
        names = [found.url().removeprefix(path).lstrip("/") for found in below]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"it holds checkpoints, and is none: name one of {', '.join(names[:SHOWN])}{more}"
    if (Path(path) / "offsets").is_dir():
        return "Spark has a checkpoint there, and Outfall wrote nothing yet"
    return "it is no checkpoint, nor was it given as recovery="


def local_path(recovery: RecoveryConfig) -> str | None:
    """Return the directory of a location that is one on this host."""
    path = recovery.url() if isinstance(recovery, CheckpointRecoveryConfig) else ""
    return path if path.startswith("/") else None
