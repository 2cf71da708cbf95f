"""Continues a step in a target that has moved and has another name than recorded.

Its name has an address: of a directory, a server, a database, a catalog. A target that moved has the step's record with
the token of a recorded BEGIN, which proves that it is the same target. The next BEGIN then records the new name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outfall.capabilities import SupportsTarget, TargetContext
from outfall.capability_checks import ResolvedSink
from outfall.protocol.journal import JournalView
from outfall.protocol.target import target_context
from outfall.target_record import TargetRecord


@dataclass(frozen=True)
class MovedTarget:
    """A target whose name has changed."""

    child: str
    """The name of the child in a composite sink; empty for a sink that is not composite."""
    recorded: str
    now: str
    record: TargetRecord | None
    """The step's record there. `None` if the sink keeps none, so that nothing proves that it is the same target."""


def find_moved(step_id: str, sink: ResolvedSink, view: JournalView) -> Sequence[MovedTarget]:
    """Return the targets whose names have changed. Changes nothing.

    Raises `TargetLostError` if a target has no record of the step or an older one, `FencedError` if it was opened by a
    driver that is not in this log, and `ConfigurationError` if more than its address has changed.
    """
    return [
        MovedTarget(
            name, recorded, child.target() or "", child.sink.find_moved(_context(step_id, view, name), recorded)
        )
        for name, recorded, child in _renamed(sink, view)
    ]


def move_targets(step_id: str, sink: ResolvedSink, view: JournalView) -> None:
    """Let each target whose name has changed keep its record under its new name. Raises as `find_moved`."""
    find_moved(step_id, sink, view)
    for name, recorded, child in _renamed(sink, view):
        child.sink.move_target(_context(step_id, view, name), recorded)


def _renamed(sink: ResolvedSink, view: JournalView) -> Sequence[tuple[str, str, ResolvedSink]]:
    """Return name, recorded target and sink of each target whose name has changed."""
    if view.begin is None:
        return []
    recorded = {name: child.target for name, child in view.begin.children.items()} or {"": view.begin.target}
    sinks = sink.children() or {"": sink}
    return [
        (name, was, sinks[name])
        for name, was in recorded.items()
        if was is not None and SupportsTarget in sinks[name].capabilities
        if not sinks[name].children() and was != sinks[name].target()
    ]


def _context(step_id: str, view: JournalView, child: str) -> TargetContext[None]:
    """Return the context as of the newest BEGIN, which last opened the target."""
    return replace(
        target_context(step_id, view, {}, view.open_epoch if view.unfinished is None else view.unfinished.epoch),
        generation=view.generation,
        token=view.token,
        published=view.published.get(child),
    )
