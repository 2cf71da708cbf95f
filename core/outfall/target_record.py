"""Compares the record of a step in its target with the recovery data: one rule for ledgers, markers and registers.

The sink stores a `TargetRecord` in its target. It reads and writes the record under a lock or in a transaction:

1. `SupportsTarget.check_target` calls `check_record`.
2. `SupportsTarget.open_target` calls `check_opening`, then writes the generation and token of its context.
3. The committer calls `check_publishing`, then writes its epoch, then publishes.

A target records the BEGIN that last opened it, by generation and token, and the newest epoch that was published there.
Three cases are rejected:

- The target is *ahead*: it has a generation or an epoch that the recovery data does not have. The recovery data was
  restored from a copy.
- The target is *behind*: it was last opened before the last completed epoch, or lacks a published epoch. The target
  was restored from a copy, or its server lost data that it had acknowledged.
- The target is *another driver's*: it has a generation of the recovery data with another token. The log was copied,
  and both copies are in use. The generation alone does not show this, because both copies count from the same entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outfall.contexts import CommitterInitContext, SealContext, TargetContext, WriterInitContext
from outfall.errors import FencedError, TargetAheadError, TargetLostError

__all__ = [
    "TargetRecord",
    "behind",
    "check_opening",
    "check_publishing",
    "check_record",
    "check_writing",
    "is_ahead",
]


@dataclass(frozen=True)
class TargetRecord:
    """The record of one step in a target."""

    generation: int
    """The BEGIN that last opened the target."""
    token: str | None = None
    """The token of that BEGIN; `None` if a release without tokens wrote the record. Then it is not compared."""
    epoch: int | None = None
    """The newest epoch that was published to the target; `None` before the first."""


def is_ahead(found: TargetRecord, context: TargetContext[Any]) -> bool:
    """Return whether a target has a generation or an epoch that the recovery data does not have."""
    last = -1 if context.completed is None else context.completed
    return found.generation > context.last_generation or (found.epoch is not None and found.epoch > last)


def check_record(where: str, found: TargetRecord, context: TargetContext[Any], *, ahead: str) -> None:
    """Reject a target that contradicts the recovery data. Called before BEGIN, by `SupportsTarget.check_target`.

    Args:
        where: The target, for error texts.
        found: The record of the target.
        context: The state of the recovery data.
        ahead: The remedy for a target that is ahead.

    Raises:
        TargetAheadError: The target is ahead of the recovery data.
        TargetLostError: The target is behind the recovery data.
        FencedError: The driver of another copy of the log has opened the target.
    """
    place: dict[str, Any] = {"step": context.step_id, "epoch": context.epoch}
    if is_ahead(found, context):
        raise TargetAheadError(
            f"{where} is ahead of the recovery data: generation {found.generation}, epoch {_epoch_text(found.epoch)}",
            why=f"the recovery data ends at generation {context.last_generation}, completed epoch"
            f" {_epoch_text(context.completed)}: it was restored from an older copy, or another copy of it is in use",
            do=ahead,
            **place,
        )
    _check_not_older(where, found, context.begun, **place)
    if found.token is not None and context.begun.get(found.generation) != found.token:
        raise _rival(where, found, **place)
    _check_published(where, found, context.published, **place)


def check_opening(where: str, found: TargetRecord, context: TargetContext[Any]) -> None:
    """Reject a target that another driver has opened since the check.

    Called after BEGIN, by `SupportsTarget.open_target`, under the lock of the record.

    Raises:
        FencedError: A newer driver, or the driver of another copy of the log, has opened the target.
        TargetLostError: The target is behind the recovery data: another server answers since the check.
    """
    _check_same(where, found, context)


def check_publishing(where: str, found: TargetRecord, context: CommitterInitContext) -> None:
    """Reject publishing to a target that another driver has opened since the data was staged.

    Called by a committer, under the lock of the record.

    Raises:
        FencedError: A newer driver, or the driver of another copy of the log, has opened the target.
        TargetLostError: The target is behind the recovery data: another server answers since it was opened.
    """
    _check_same(where, found, context)


def check_writing(where: str, found: TargetRecord, context: WriterInitContext | SealContext) -> None:
    """Reject writing to a target, or sealing it, after another driver has opened it.

    Called by partitions that publish themselves, and by `SupportsSeal.seal`.

    Raises:
        FencedError: A newer driver, or the driver of another copy of the log, has opened the target.
    """
    _check_driver(where, found, context, {})


def _check_same(where: str, found: TargetRecord, context: TargetContext[Any] | CommitterInitContext) -> None:
    """Reject a target that another driver has opened since the check, or that has changed since the check.

    In an epoch, a server that lost data may take the place of the one that was checked: a standby that is promoted, or
    a restored copy. Rows that are published there would hide the loss, because the record then has a newer epoch.
    """
    place: dict[str, Any] = {"step": context.step_id, "epoch": context.epoch}
    _check_not_older(where, found, context.begun, **place)
    _check_driver(where, found, context, context.begun)
    _check_published(where, found, context.published, **place)


def _check_not_older(where: str, found: TargetRecord, begun: Mapping[int, str], **place: Any) -> None:
    oldest = min(begun, default=0)
    if found.token is not None and found.generation < oldest:
        raise behind(where, f"generation {found.generation} opened it last, expected was {oldest}", **place)


def _check_published(where: str, found: TargetRecord, published: int | None, **place: Any) -> None:
    if published is not None and (found.epoch is None or found.epoch < published):
        what = f"it has epoch {_epoch_text(found.epoch)}, but epoch {published} was published"
        raise behind(where, what, **place)


def _check_driver(
    where: str,
    found: TargetRecord,
    context: TargetContext[Any] | CommitterInitContext | WriterInitContext | SealContext,
    begun: Mapping[int, str],
) -> None:
    place: dict[str, Any] = {"step": context.step_id, "epoch": context.epoch}
    if found.generation > context.generation:
        raise FencedError(
            f"{where} is at generation {found.generation}",
            why=f"this driver's generation is {context.generation}: a newer driver has taken over the step",
            do="nothing, if the newer driver is the intended one",
            **place,
        )
    token = {**begun, context.generation: context.token}.get(found.generation)
    if found.token is not None and found.token != token and (token is not None or begun):
        raise _rival(where, found, **place)


def _rival(where: str, found: TargetRecord, **place: Any) -> FencedError:
    return FencedError(
        f"{where} was opened by a driver that is not in this recovery data, as generation {found.generation}",
        why="the recovery data was copied, and the query runs on both copies",
        do="stop the query that runs on the copy; the query that opened the target continues",
        **place,
    )


def behind(where: str, what: str, *, step: str, epoch: int | None, part: str | None = None) -> TargetLostError:
    """Return the error for a target that has less than the recovery data says.

    Args:
        where: The target, for the text.
        what: The found and the recorded values.
        step: The step id.
        epoch: The epoch, if known.
        part: The part, if the error is about one.
    """
    return TargetLostError(
        f"{where} is behind the recovery data: {what}",
        step=step,
        epoch=epoch,
        part=part,
        why="it was emptied or restored from an older copy, or its server lost data that it had acknowledged",
        do="restore a newer copy of the target, or start the query with a new checkpoint",
    )


def _epoch_text(epoch: int | None) -> str:
    return "none" if epoch is None else str(epoch)
