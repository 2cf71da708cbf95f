"""Named steps of the protocol and of the stores below it, for those who watch: crash points, a clock, a trace."""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str], None]

_listeners: list[Listener] = []


def reached(step: str) -> None:
    """Tell the listeners that a step was reached, as `"after BEGIN"`. Connectors name their own side effects too."""
    for listener in tuple(_listeners):
        listener(step)


def listen(listener: Listener) -> Callable[[], None]:
    """Add a listener to this process.

    Returns:
        A function that removes it again.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)
