"""The record of a step as JSON: the step that writes to a target, the last driver, and the newest published epoch.

The name of a record contains the random incarnation, so a task that finds it has access to the driver's target. Each
store prevents undetected replacements in its own way: disks have locks, S3 has conditional requests, other object
stores have neither.
"""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from outfall.capabilities import TargetContext
from outfall.errors import TargetLostError, UnsharedTargetError
from outfall.target_record import TargetRecord


class StepRecord(BaseModel):
    """The fields of all records. Stores add fields and keep the order of the existing ones.

    Records of earlier releases lack the newer fields.
    """

    model_config = ConfigDict(frozen=True)

    incarnation: str
    step: str = ""
    created: str = ""
    generation: int = 0
    """The generation that opened the target last."""
    token: str | None = None
    """Its token; `None` in records of releases before tokens."""
    epoch: int = -1
    """The newest epoch that was or is being published; -1 before the first."""

    @classmethod
    def of(cls, context: TargetContext[Any], **more: Any) -> Self:
        """Return the record of a step that opens a target now."""
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
        """What is compared with the log."""
        return TargetRecord(self.generation, self.token, None if self.epoch < 0 else self.epoch)

    def opened_by(self, context: TargetContext[Any]) -> Self:
        """Return the record after a BEGIN has opened the target."""
        return self.model_copy(update={"generation": context.generation, "token": context.token})

    def advanced(self, epoch: int) -> Self:
        """Return the record after an epoch is published."""
        return self.model_copy(update={"epoch": max(self.epoch, epoch)})

    def rewound(self, epoch: int) -> Self:
        """Return the record after all epochs later than `epoch` were rolled back."""
        return self.model_copy(update={"epoch": epoch})


RESTORE = (
    "restore it; if it was moved or renamed, stop the query and run outfall move with the sink's new options; otherwise"
    " start the query with a new checkpoint"
)
"""The remedy for a target that is not where the recovery data says."""


def missing_record(where: str, name: str, written: int, **place: Any) -> TargetLostError:
    """Return the error of a target whose record is missing before an epoch, although epochs were completed."""
    return TargetLostError(
        f"{where} does not hold the data written up to epoch {written}",
        why=f"the record {name} is missing: the data was deleted, moved, replaced, or overwritten by another query",
        do=RESTORE,
        **place,
    )


def no_record(where: str, context: TargetContext[Any]) -> TargetLostError:
    """Return the error of a target that has no record of a step, which therefore has not moved there."""
    return TargetLostError(
        f"{where} has no record of this step (incarnation {context.incarnation})",
        step=context.step_id,
        why="it is another target, or was moved without Outfall's own records, or no epoch was written yet",
        do="name the target that has moved, and move Outfall's records with it",
    )


def overwritten(name: str) -> TargetLostError:
    """Return the error of a record that disappeared while its query runs."""
    return TargetLostError(
        f"the record {name} does not exist",
        why="the data of this query was moved, deleted, or overwritten by another query while it ran",
        do=RESTORE,
    )


def unreadable_record(name: str, why: str) -> TargetLostError:
    """Return the error of a record that cannot be read."""
    return TargetLostError(
        f"the record {name} cannot be read",
        why=f"{why}; without it, the writer and the newest epoch of the target are unknown",
        do="restore the record together with the data, run the release that wrote it, or start the query with a new"
        " checkpoint",
    )


def unshared(where: str, name: str, do: str) -> UnsharedTargetError:
    """Return the error of a task without access to the driver's target."""
    return UnsharedTargetError(
        f"host {socket.gethostname()} does not see the driver's {where}",
        why=f"the record {name}, which the driver wrote, does not exist on this host",
        do=f"{do}; if that is already the case, another query has overwritten the target",
    )
