"""What a target itself says of a step, compared with the recovery data: one rule for ledgers, markers and registers.

A target says which BEGIN opened it last, by generation and token, and which epoch was published there last. Three
things can be wrong with it:

- It is *ahead*: of a generation or an epoch that the recovery data does not have. That data was restored from a copy.
- It is *behind*: opened last before the last completed epoch, or without an epoch that was published. The target was
  restored from a copy, or its server lost what it had confirmed.
- It is *another driver's*: of a generation that the recovery data has too, and of another token. The log was copied,
  and both copies are in use. A generation alone cannot tell: both count from the same entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outfall.contexts import CommitterInitContext, SealContext, TargetContext, WriterInitContext
from outfall.errors import FencedError, TargetAheadError, TargetLostError


@dataclass(frozen=True)
class TargetRecord:
    """What a target says of one step."""

    generation: int
    """The BEGIN that opened it last."""
    token: str | None = None
    """That BEGIN's token; `None` where a release before tokens wrote it. Then it is not compared."""
    epoch: int | None = None
    """The newest epoch that was published there; `None` before the first."""


def is_ahead(found: TargetRecord, context: TargetContext[Any]) -> bool:
    """Tell whether a target knows of a generation or an epoch that the recovery data does not have."""
    last = -1 if context.completed is None else context.completed
    return found.generation > context.last_generation or (found.epoch is not None and found.epoch > last)


def check_record(where: str, found: TargetRecord, context: TargetContext[Any], *, ahead: str) -> None:
    """Refuse a target that is not what the recovery data says. Called before BEGIN, by `SupportsTarget.check_target`.

    Args:
        where: the target, for texts.
        found: what it says.
        context: what the recovery data says.
        ahead: what to do about a target that is ahead.

    Raises:
        TargetAheadError, TargetLostError, FencedError: see above.
    """
    place: dict[str, Any] = {"step": context.step_id, "epoch": context.epoch}
    if is_ahead(found, context):
        raise TargetAheadError(
            f"{where} is ahead of the recovery data: generation {found.generation}, epoch {_shown(found.epoch)}",
            why=f"the recovery data ends at generation {context.last_generation}, completed epoch"
            f" {_shown(context.completed)}: it was restored from an older copy, or another copy of it is in use",
            do=ahead,
            **place,
        )
    oldest = min(context.begun, default=0)
    if found.token is not None and found.generation < oldest:
        raise behind(where, f"generation {found.generation} opened it last, and {oldest} did", **place)
    if found.token is not None and context.begun.get(found.generation) != found.token:
        raise _rival(where, found, **place)
    if context.published is not None and (found.epoch is None or found.epoch < context.published):
        what = f"it holds epoch {_shown(found.epoch)}, and {context.published} was published"
        raise behind(where, what, **place)


def check_opening(where: str, found: TargetRecord, context: TargetContext[Any]) -> None:
    """Refuse to open a target that another driver has opened meanwhile.

    Called after BEGIN, by `SupportsTarget.open_target`, under whatever keeps others from writing the record.

    Raises:
        FencedError: it was opened by a newer driver, or by that of another copy of the log.
    """
    _check_driver(where, found, context, context.begun)


def check_publishing(where: str, found: TargetRecord, context: CommitterInitContext) -> None:
    """Refuse to publish to a target that another driver has opened since the data was staged.

    Called by a committer, under whatever keeps others from writing the record.

    Raises:
        FencedError: it was opened by a newer driver, or by that of another copy of the log.
    """
    _check_driver(where, found, context, context.begun)


def check_writing(where: str, found: TargetRecord, context: WriterInitContext | SealContext) -> None:
    """Refuse to write to a target, or to seal it, that another driver has opened since.

    Called by partitions that publish by themselves, and by `SupportsSeal.seal`.

    Raises:
        FencedError: it was opened by a newer driver, or by that of another copy of the log.
    """
    _check_driver(where, found, context, {})


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
            why=f"this driver's is {context.generation}: a newer driver has taken the step over",
            do="nothing, if the newer one is meant to run",
            **place,
        )
    token = {**begun, context.generation: context.token}.get(found.generation)
    if found.token is not None and found.token != token and (token is not None or begun):
        raise _rival(where, found, **place)


def _rival(where: str, found: TargetRecord, **place: Any) -> FencedError:
    return FencedError(
        f"{where} was opened by a driver that this recovery data does not know, as generation {found.generation}",
        why="the recovery data was copied, and the query runs on both copies",
        do="stop the query that runs on the copy; the one that opened the target goes on",
        **place,
    )


def behind(where: str, what: str, *, step: str, epoch: int | None, part: str | None = None) -> TargetLostError:
    """Make the error for a target that has less than the recovery data says.

    Args:
        where: the target, for the text.
        what: what it has, and what is recorded.
        step: the step.
        epoch: the epoch, if it is known.
        part: the part, if it is about one.
    """
    return TargetLostError(
        f"{where} is behind the recovery data: {what}",
        step=step,
        epoch=epoch,
        part=part,
        why="it was emptied, or restored from an older copy, or its server lost what it had confirmed",
        do="restore a newer copy of the target, or start the query with a new checkpoint",
    )


def _shown(epoch: int | None) -> str:
    return "none" if epoch is None else str(epoch)
