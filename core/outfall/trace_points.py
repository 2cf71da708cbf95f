"""Named steps of the protocol and its stores, for crash points, clocks and traces."""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str], None]

_listeners: list[Listener] = []


def reached(step: str) -> None:
    """Report to the listeners that a step was reached, such as `"after BEGIN"`. Connectors add their own steps."""
    for listener in tuple(_listeners):
        listener(step)


def listen(listener: Listener) -> Callable[[], None]:
    """Add a listener in this process, and return a function that removes it."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)
