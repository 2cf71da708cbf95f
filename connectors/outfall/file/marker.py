"""The marker: the file that says which step writes into a directory, and how far its commits came.

Its name holds the incarnation, which is random: a task that sees the file sees the driver's directory.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.errors import TargetLostError, UnsharedTargetError
from outfall.file.disk import sync_directory
from outfall.file.flock import HeldFile, Patience, held, peek
from outfall.file.layout import Layout
from outfall.target_record import TargetRecord, check_publishing
from outfall.trace_points import reached


@dataclass(frozen=True)
class Marker:
    """A marker's content."""

    incarnation: str
    step: str
    host: str
    created: str
    generation: int = 0
    """The BEGIN that opened the directory last."""
    epoch: int = -1
    """The newest epoch whose whole files were published, or were about to be; -1 before the first."""
    token: str | None = None
    """The token of that BEGIN; `None` where a release before tokens wrote the marker. `generation` is then the newest
    one that published."""
    ready: bool = True
    """Whether what stood here before was deleted, where that is to be done after the marker is written."""

    def line(self) -> str:
        """Return the marker as a line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def record(self) -> TargetRecord:
        """What it says of its step."""
        return TargetRecord(self.generation, self.token, None if self.epoch < 0 else self.epoch)

    def opened(self, context: TargetContext[Any]) -> Marker:
        """Return the marker as it is once a BEGIN has opened the directory."""
        return replace(self, generation=context.generation, token=context.token)

    def advanced(self, epoch: int) -> Marker:
        """Return the marker as it is once an epoch is published."""
        return replace(self, epoch=max(self.epoch, epoch))

    def rewound(self, epoch: int) -> Marker:
        """Return the marker as it is after the epochs behind one were taken back."""
        return replace(self, epoch=epoch)

    @classmethod
    def parse(cls, line: str | None) -> Marker | None:
        """Read a line; `None` for none and for one that cannot be read."""
        try:
            return cls(**json.loads(line or ""))
        except (ValueError, TypeError):
            return None


def new_marker(context: TargetContext[Any]) -> Marker:
    """Make the marker of a step that opens a directory here and now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Marker(context.incarnation, context.step_id[:40], socket.gethostname(), now).opened(context)


def has_marker(layout: Layout, incarnation: str) -> bool:
    """Whether the step has opened this directory."""
    return os.path.exists(layout.marker(incarnation))


def read_marker(layout: Layout, patience: Patience, incarnation: str) -> Marker:
    """Read a step's marker, which is there.

    Raises:
        TargetLostError: it cannot be read, or is gone by now.
    """
    found = Marker.parse(peek(layout.marker(incarnation)))
    if found is not None:
        return found
    # It may be written just now.
    with marker_held(layout, patience, incarnation) as (_, found):
        return found


@contextmanager
def marker_held(layout: Layout, patience: Patience, incarnation: str) -> Iterator[tuple[HeldFile, Marker]]:
    """Hold a step's marker, and read it.

    Raises:
        TargetLostError: it is gone, or cannot be read.
    """
    path = layout.marker(incarnation)
    with held(path, patience, create=False) as file:
        found = Marker.parse(file.read())
        if found is None:
            raise unreadable_marker(path)
        yield file, found


def unreadable_marker(path: str) -> TargetLostError:
    """Make the error of a marker that says nothing."""
    return TargetLostError(
        f"{path} cannot be read",
        why="it says how far the files of this directory count, and was damaged, or written by a newer release",
        do="restore it with the directory, or run the newer release",
    )


def create_marker(layout: Layout, context: TargetContext[Any]) -> None:
    """Write the marker of a step that opens the directory for the first time. Durable when this returns."""
    made, incarnation = new_marker(context), context.incarnation
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


def advance_marker(layout: Layout, patience: Patience, context: CommitterInitContext) -> None:
    """Say in the marker, durably, before the first file of an epoch is published, how far publishing came.

    Raises:
        TargetLostError: the marker is gone; nothing may be published.
        FencedError: another driver has opened the directory since; nothing may be published.
    """
    with marker_held(layout, patience, context.incarnation) as (file, found):
        check_publishing(layout.path, found.record, context)
        after = found.advanced(context.epoch)
        if after != found:
            file.write(after.line())
            # Once the epoch is recorded as completed, a marker without it is one of a copy.
            file.sync()


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
