"""What stands in a marker: which step writes to a target, who opened it last, and how far its commits came.

A marker's name holds the incarnation, which is random: a task that sees it sees the driver's target. How markers are
written so that no driver replaces another one's unseen is the affair of each store: disks have locks, S3 has
conditional requests, other object stores have neither.
"""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from outfall.capabilities import TargetContext
from outfall.errors import TargetLostError, UnsharedTargetError
from outfall.target_record import TargetRecord


class StepMarker(BaseModel):
    """What all markers say of their step. Stores add what they need, and keep the order of fields that they began with.

    A field that is missing was not there yet in the release that wrote the marker.
    """

    model_config = ConfigDict(frozen=True)

    incarnation: str
    step: str = ""
    created: str = ""
    generation: int = 0
    """The generation that opened the target last."""
    token: str | None = None
    """Its token; `None` in a marker of a release before tokens."""
    epoch: int = -1
    """The newest epoch that was published, or was about to be; -1 before the first."""

    @classmethod
    def of(cls, context: TargetContext[Any], **more: Any) -> Self:
        """Make the marker of a step that opens a target here and now."""
        known: dict[str, Any] = {
            "incarnation": context.incarnation,
            "step": context.step_id,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "generation": context.generation,
            "token": context.token,
        }
        return cls(**known | more)

    @property
    def record(self) -> TargetRecord:
        """What it says of its step."""
        return TargetRecord(self.generation, self.token, None if self.epoch < 0 else self.epoch)

    def opened_by(self, context: TargetContext[Any]) -> Self:
        """Return the marker as it is once a BEGIN has opened the target."""
        return self.model_copy(update={"generation": context.generation, "token": context.token})

    def advanced(self, epoch: int) -> Self:
        """Return the marker as it is once an epoch is published."""
        return self.model_copy(update={"epoch": max(self.epoch, epoch)})

    def rewound(self, epoch: int) -> Self:
        """Return the marker as it is after the epochs behind one were taken back."""
        return self.model_copy(update={"epoch": epoch})


def missing_marker(where: str, marker: str, completed: int, **place: Any) -> TargetLostError:
    """Make the error of a target that was ours and is no longer, as the driver finds before an epoch."""
    return TargetLostError(
        f"{where} does not hold what was written there up to epoch {completed}",
        why=f"the marker {marker} is missing: what lies there was deleted, moved, replaced, or overwritten by another"
        " query",
        do="restore it, or start the query with a new checkpoint",
        **place,
    )


def overwritten(marker: str) -> TargetLostError:
    """Make the error of a marker that is gone while its query runs."""
    return TargetLostError(
        f"the marker {marker} does not exist",
        why="what this query wrote was moved, deleted, or overwritten by another query, while it ran",
        do="restore it, or start the query with a new checkpoint",
    )


def unreadable_marker(marker: str, why: str) -> TargetLostError:
    """Make the error of a marker that says nothing."""
    return TargetLostError(
        f"the marker {marker} cannot be read",
        why=f"{why}; nobody knows who writes here, and how far what is here counts",
        do="restore it with what lies beside it, run the release that wrote it, or start the query with a new"
        " checkpoint",
    )


def unshared(where: str, marker: str, do: str) -> UnsharedTargetError:
    """Make the error of a task that does not see the driver's target."""
    return UnsharedTargetError(
        f"host {socket.gethostname()} does not see the driver's {where}",
        why=f"the marker {marker}, which the driver wrote, is not there",
        do=f"{do}; if they have them, another query has overwritten what lies here",
    )
