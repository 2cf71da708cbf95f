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
    """Add a listener in this process.

    Returns:
        A function that removes the listener.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)
