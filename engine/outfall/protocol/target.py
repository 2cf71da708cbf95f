"""Checks and opens the target for an epoch, and cleans up after failed attempts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from outfall.capabilities import CleanUpContext, SupportsTarget, SupportsWriterState, TargetCheck, TargetContext
from outfall.capability_checks import ResolvedSink
from outfall.first_contact import first_contact
from outfall.protocol.journal import JournalView
from outfall.protocol.states import load_states
from outfall.protocol.step import Step
from outfall.recovery.entries import StoredValue, load_value, store_state
from outfall.recovery.log import RecoveryLog
from outfall.trace_points import reached

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckedTarget:
    """A target that agrees with the log."""

    context: TargetContext[Any] | None = None
    """The context that the sink received; `None` for a sink without `SupportsTarget`."""
    bases: dict[str, StoredValue] = field(default_factory=dict)
    """The start of parts that have no state yet but contain data that is kept."""


def check_target(step: Step, view: JournalView, *, epoch: int | None, starting: bool) -> CheckedTarget:
    """Let the sink compare its target with the log, before BEGIN. `starting` is for the first epoch of this run.

    `epoch` is `None` if it is not known yet. Raises `TargetError` if the target contradicts the log.
    """
    sink, resolved, log = step.sink, step.resolved, step.journal.log
    if SupportsTarget not in step.capabilities:
        return CheckedTarget()
    states = load_states(resolved, view.states, log) if resolved.fixed else {}
    context = replace(target_context(step.step_id, view, states, epoch), key=step.options.key, starting=starting)
    with first_contact(step.step_id) if context.first_contact else nullcontext():
        check = sink.check_target(context)
    if not isinstance(check, TargetCheck):
        check = TargetCheck(check)
    reselect = sink.reselects_base_states and not view.prepared
    bases = {part: state for part, state in check.states.items() if reselect or part not in view.states}
    return CheckedTarget(
        replace(context, states={**context.states, **bases}, found=check.found),
        {
            part: store_state(resolved.state_serializer(part), state, log=log, name=part, generation=view.last + 1)
            for part, state in bases.items()
        },
    )


def open_target(resolved: ResolvedSink, checked: CheckedTarget, before: JournalView, begun: JournalView) -> None:
    """Let the sink create what its tasks require. The log is given without and with this epoch's BEGIN."""
    if SupportsTarget in resolved.capabilities and checked.context is not None:
        context = replace(
            checked.context,
            incarnation=begun.incarnation or "",
            last_generation=before.generation,
            generation=begun.generation,
            token=begun.token,
            begun=begun.begun,
        )
        resolved.sink.open_target(context)
        reached("after open target")


def target_context(step_id: str, view: JournalView, states: Mapping[str, Any], epoch: int | None) -> TargetContext[Any]:
    """Return the context of a target before `epoch`, if known. `states` are those of a fixed sink's parts."""
    return TargetContext(
        step_id=step_id,
        incarnation=view.incarnation or "",
        epoch=epoch,
        completed=view.completed,
        first_contact=view.begin is None,
        states=states,
        last_generation=view.generation,
        known_children={name: child.since for name, child in (view.begin.children if view.begin else {}).items()},
        begun=view.begun,
        published=view.published.get(""),
        children_published={name: epoch for name, epoch in view.published.items() if name},
        unfinished=view.begun_since,
    )


def clean_up_context(
    resolved: ResolvedSink,
    step_id: str,
    view: JournalView,
    log: RecoveryLog,
    *,
    lost: Mapping[int, str] | None,
    final: bool = False,
) -> CleanUpContext:
    """Return the context of a clean-up. It reads the states on demand from `log`, while that is open.

    Names of the incarnation of `view` below its generation may be removed, except those in its states. `lost` are the
    BEGINs whose attempts failed, see `CleanUpContext.lost`. `final` says whether the last epoch of this incarnation is
    completed.
    """

    def read_writer_states() -> Sequence[Any]:
        if SupportsWriterState not in resolved.capabilities:
            return ()
        serializer = resolved.sink.writer_state_serializer()
        return [load_value(serializer, state, log=log) for state in view.writer_states]

    return CleanUpContext(
        step_id,
        view.incarnation or "",
        view.generation,
        final=final,
        token=view.begun.get(view.generation, ""),
        lost=lost,
        states=lambda: load_states(resolved, view.states, log),
        writer_states=read_writer_states,
    )


def clean_up_target(resolved: ResolvedSink, context: CleanUpContext) -> None:
    """Let the sink remove names with this incarnation and an older generation.

    Called when only the states name data of an older generation: after COMPLETED, and after the BEGIN that follows a
    failed attempt, whose leftovers may fill the disk. A failure is only logged, because the next clean-up retries.
    """
    if SupportsTarget not in resolved.capabilities:
        return
    try:
        removed = resolved.sink.clean_up(context)
        _log.debug("step %s: cleaned up %d leftovers", context.step_id, removed)
    except Exception:
        _log.warning(
            "step %s: cleaning up the target failed; the next epoch retries it", context.step_id, exc_info=True
        )
