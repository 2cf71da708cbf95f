"""The marker: the file that says which step writes into a directory, and how far its commits came.

Its name holds the incarnation, which is random: a task that sees the file sees the driver's directory.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from outfall.errors import TargetLostError, UnsharedTargetError
from outfall.file.disk import sync_directory
from outfall.file.layout import Layout
from outfall.file.locked import HeldFile, Patience, held, peek
from outfall.steps import reached


@dataclass(frozen=True)
class Marker:
    """A marker's content."""

    incarnation: str
    step: str
    host: str
    created: str
    generation: int = 0
    """The newest generation whose whole files were published, or were about to be."""
    epoch: int = -1
    """The newest such epoch."""

    def line(self) -> str:
        """Return the marker as a line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def advanced(self, generation: int, epoch: int) -> Marker:
        """Return the marker as it is once an epoch is published."""
        return replace(self, generation=max(self.generation, generation), epoch=max(self.epoch, epoch))

    def rewound(self, generation: int, epoch: int) -> Marker:
        """Return the marker as it is after later epochs were taken back."""
        return replace(self, generation=generation, epoch=epoch)

    @classmethod
    def parse(cls, line: str | None) -> Marker | None:
        """Read a line; `None` for none and for one that cannot be read."""
        try:
            return cls(**json.loads(line or ""))
        except (ValueError, TypeError):
            return None


def new_marker(incarnation: str, step: str) -> Marker:
    """Make the marker of a step that opens a directory here and now."""
    return Marker(incarnation, step[:40], socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"))


def has_marker(layout: Layout, incarnation: str) -> bool:
    """Whether the step has opened this directory."""
    return os.path.exists(layout.marker(incarnation))


def read_marker(layout: Layout, incarnation: str) -> Marker | None:
    """Read a step's marker; `None` when it is missing or cannot be read."""
    return Marker.parse(peek(layout.marker(incarnation)))


def create_marker(layout: Layout, incarnation: str, step: str) -> None:
    """Write the marker of a step that opens the directory for the first time. Durable when this returns."""
    made = new_marker(incarnation, step)
    temporary = os.path.join(layout.sidecar, f".{incarnation}.{os.getpid()}.tmp")
    try:
        _write_durably(temporary, made.line())
        reached("file: creating marker")
        os.rename(temporary, layout.marker(incarnation))
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(layout.sidecar)
    reached("file: marker created")


def remove_marker(layout: Layout, incarnation: str) -> None:
    """Remove the marker of a step that leaves the directory. Durable when this returns."""
    with suppress(FileNotFoundError):
        os.unlink(layout.marker(incarnation))
    sync_directory(layout.sidecar)


def _write_durably(path: str, line: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        HeldFile(fd).write(line)
        os.fsync(fd)
    finally:
        os.close(fd)


def advance_marker(layout: Layout, patience: Patience, incarnation: str, *, generation: int, epoch: int) -> None:
    """Say in the marker, before the first file of an epoch is published, how far publishing came.

    It is not synced: what a power loss takes back can only make a restored checkpoint harder to notice.

    Raises:
        TargetLostError: the marker is gone; nothing may be published.
    """
    with held(layout.marker(incarnation), patience, create=False) as file:
        found = Marker.parse(file.read()) or Marker(incarnation, "", "", "")
        after = found.advanced(generation, epoch)
        if after != found:
            file.write(after.line())


def check_shared(layout: Layout, incarnation: str) -> None:
    """Check in a task that it sees the directory that the driver opened.

    Raises:
        UnsharedTargetError: naming this host and the path.
    """
    if not has_marker(layout, incarnation):
        raise UnsharedTargetError(
            f"host {socket.gethostname()} does not see the driver's {layout.path}",
            why=f"the marker {layout.marker(incarnation)}, which the driver wrote, is not there",
            do="write to a path that driver and all executors share (NFS, a mounted volume); if they do share it,"
            " another query has overwritten this directory",
        )


def check_marker(layout: Layout, incarnation: str, completed: int | None) -> bool:
    """Return whether the directory is ours.

    Raises:
        TargetLostError: it was ours and is no longer.
    """
    if has_marker(layout, incarnation):
        return True
    if completed is None:
        return False
    raise missing_marker(layout.path, incarnation, completed)


def missing_marker(root: str, incarnation: str, completed: int) -> TargetLostError:
    """Make the error of a directory that was ours and is no longer."""
    return TargetLostError(
        f"{root} does not hold what was written there up to epoch {completed}",
        why=f"the marker {root}/_outfall/{incarnation}.json is missing: the directory was deleted, moved, replaced, or"
        " overwritten by another query",
        do="bring the directory back, or start the query with a new checkpoint",
    )
