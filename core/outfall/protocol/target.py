"""The target as the recovery data knows it: checked and opened for an epoch, cleaned up after failed attempts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outfall.capabilities import CleanUpContext, SupportsTarget, SupportsWriterState, TargetContext
from outfall.capability_checks import is_fixed, supports
from outfall.protocol.journal import JournalView
from outfall.protocol.states import load_states, state_serializer
from outfall.protocol.step import Step
from outfall.recovery.entries import StoredValue, load_value, store_state
from outfall.recovery.log import RecoveryLog
from outfall.trace_points import reached

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckedTarget:
    """A target that is what the log says."""

    context: TargetContext[Any] | None = None
    """What the sink was told; `None` for a sink that has no say."""
    bases: dict[str, StoredValue] = field(default_factory=dict)
    """Where parts start that have no state yet but hold data that is kept."""


def check_target(step: Step, view: JournalView, *, epoch: int | None) -> CheckedTarget:
    """Let the sink compare its target with the log, before BEGIN.

    Raises:
        TargetError: the target is not what the log says.
    """
    sink, log = step.sink, step.journal.log
    if not supports(sink, SupportsTarget):
        return CheckedTarget()
    states = load_states(sink, view.states, log) if is_fixed(sink) else {}
    context = replace(target_context(step.step_id, view, states, epoch), key=step.options.key)
    found = sink.check_target(context)
    anew = sink.chooses_bases_anew and not view.prepared
    bases = {part: state for part, state in found.items() if anew or part not in view.states}
    return CheckedTarget(
        replace(context, states={**context.states, **bases}),
        {
            part: store_state(state_serializer(sink, part), state, log=log, name=part, generation=view.last + 1)
            for part, state in bases.items()
        },
    )


def open_target(sink: Any, checked: CheckedTarget, before: JournalView, begun: JournalView) -> None:
    """Let the sink make what its tasks need.

    Args:
        sink: the sink.
        checked: its target.
        before: the log without this epoch's BEGIN.
        begun: the log with it.
    """
    if supports(sink, SupportsTarget) and checked.context is not None:
        context = replace(
            checked.context,
            incarnation=begun.incarnation or "",
            last_generation=before.generation,
            generation=begun.generation,
            token=begun.token,
            begun=begun.begun,
        )
        sink.open_target(context)
        reached("after open target")


def target_context(step_id: str, view: JournalView, states: Mapping[str, Any], epoch: int | None) -> TargetContext[Any]:
    """Say what the log knows of a target before an epoch.

    Args:
        step_id: the step's id.
        view: the log.
        states: the states of a fixed sink's parts.
        epoch: the epoch that is to begin, if that is known.
    """
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
    sink: Any,
    step_id: str,
    view: JournalView,
    log: RecoveryLog,
    *,
    lost: Mapping[int, str] | None,
    final: bool = False,
) -> CleanUpContext:
    """Make the context of a clean-up. What it reads it reads while the log is open.

    Args:
        sink: the sink, whose serializers read the states.
        step_id: the step's id.
        view: the log: the names of its incarnation below its generation may be removed, but for those in its states.
        log: where large states lie.
        lost: the BEGINs whose attempts were lost, see `CleanUpContext.lost`.
        final: whether the last epoch of this incarnation is completed.
    """

    def read_writer_states() -> Sequence[Any]:
        if not supports(sink, SupportsWriterState):
            return ()
        serializer = sink.writer_state_serializer()
        return [load_value(serializer, state, log=log) for state in view.writer_states]

    return CleanUpContext(
        step_id,
        view.incarnation or "",
        view.generation,
        final=final,
        token=view.begun.get(view.generation, ""),
        lost=lost,
        states=lambda: load_states(sink, view.states, log),
        writer_states=read_writer_states,
    )


def clean_up_target(sink: Any, context: CleanUpContext) -> None:
    """Let the sink remove what carries our incarnation and an older generation.

    Called when no record but the states names anything of an older generation: after COMPLETED, and after the BEGIN
    that follows a lost attempt, whose leftovers may be what fills the disk. A failure is logged and not raised: the
    next clean-up comes.
    """
    if not supports(sink, SupportsTarget):
        return
    try:
        removed = sink.clean_up(context)
        _log.debug("step %s: cleaned up %d leftovers", context.step_id, removed)
    except Exception:
        _log.warning("step %s: cleaning up the target failed, it will be tried again", context.step_id, exc_info=True)
