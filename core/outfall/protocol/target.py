"""The target as the recovery data knows it, checked and opened for an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from outfall.capabilities import SupportsTarget, TargetContext
from outfall.capability_checks import is_fixed
from outfall.protocol.journal import JournalView
from outfall.protocol.states import load_states, state_serializer
from outfall.recovery.entries import StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.recovery.values import store_state
from outfall.trace_points import reached


@dataclass(frozen=True)
class CheckedTarget:
    """A target that is what the log says."""

    context: TargetContext[Any] | None = None
    """What the sink was told; `None` for a sink that has no say."""
    bases: dict[str, StoredValue] = field(default_factory=dict)
    """Where parts start that have no state yet but hold data that is kept."""


def check_target(
    sink: Any, step_id: str, view: JournalView, log: RecoveryLog, *, epoch: int | None, key: str | None = None
) -> CheckedTarget:
    """Let the sink compare its target with the log, before BEGIN.

    Raises:
        TargetError: the target is not what the log says.
    """
    if not isinstance(sink, SupportsTarget):
        return CheckedTarget()
    states = load_states(sink, view.states, log) if is_fixed(sink) else {}
    context = replace(target_context(step_id, view, states, epoch), key=key)
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
    if isinstance(sink, SupportsTarget) and checked.context is not None:
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
