"""The steps of a recovery location, or of the checkpoints below a directory."""

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
"""Maximum number of checkpoints and steps in a text."""


@dataclass(frozen=True)
class LocationStatus:
    """The state of one location at one moment."""

    recovery: str
    """URL without secrets."""
    steps: list[StepStatus] = field(default_factory=list)
    checkpoints: list[LocationStatus] = field(default_factory=list)
    """Checkpoints below a location without own steps."""
    problem: str | None = None
    """Reason for missing steps."""

    def failed(self) -> bool:
        """Whether nothing is recorded or a log cannot be read."""
        wrong = any(step.problem or step.state == "empty" for step in self.steps)
        return bool(self.problem) or wrong or any(found.failed() for found in self.checkpoints)


@dataclass(frozen=True)
class NamedStep:
    """A step of a location, or of a checkpoint below it."""

    directory: str
    """Directory of the checkpoint relative to the location; empty for the location's own steps."""
    location: str
    """URL of the location of the step."""
    status: StepStatus

    @property
    def name(self) -> str:
        """A unique name within the location."""
        return f"{self.directory}/{self.status.step}" if self.directory else self.status.step


def named_steps(found: LocationStatus) -> Iterator[NamedStep]:
    """Yield all steps of a location and of the checkpoints below it."""
    for location in (found, *found.checkpoints):
        directory = location.recovery.removeprefix(found.recovery).strip("/")
        yield from (NamedStep(directory, location.recovery, step) for step in location.steps)


def problems(found: LocationStatus) -> Iterator[tuple[str, str]]:
    """Yield URL and reason for each location or checkpoint without steps."""
    for location in (found, *found.checkpoints):
        if location.problem is not None:
            yield location.recovery, location.problem


def look_at(recovery: RecoveryConfig, steps: Sequence[str] = (), *, last: int) -> LocationStatus:
    """Read the last epochs of each step of a location. Never writes. Errors become part of the result.

    If no step ids are given, reads all steps; if there are none, the steps of the checkpoints below.
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
    """Describe a location without steps, with the reason if it is known."""
    why = why_none(recovery)
    return f"no steps in {recovery.url()}" + (f": {why}" if why else "")


def why_none(recovery: RecoveryConfig) -> str | None:
    """Return the reason why a location has no steps, if it is known."""
    path = local_path(recovery)
    if path is None:
        return None
    if not os.path.isdir(path):
        return f"the directory {path} does not exist"
    if below := locations_below(recovery):
        names = [found.url().removeprefix(path).lstrip("/") for found in below]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"it is a directory of checkpoints: give one of {', '.join(names[:SHOWN])}{more}"
    if (Path(path) / "offsets").is_dir():
        return "it is a Spark checkpoint without Outfall's records"
    return "it is neither a checkpoint nor a value of recovery="


def local_path(recovery: RecoveryConfig) -> str | None:
    """Return the directory of a location on this host, else `None`."""
    path = recovery.url() if isinstance(recovery, CheckpointRecoveryConfig) else ""
    return path if path.startswith("/") else None
