"""When a host may be asked again."""

from __future__ import annotations


class NotBefore:
    """The moment before which nothing is sent to a host that has asked for a pause."""

    def __init__(self) -> None:
        """Start open."""
        self._until = float("-inf")

    def hold(self, until: float) -> None:
        """Send nothing before `until`. A moment before the present one changes nothing."""
        self._until = max(self._until, until)

    def wait(self, now: float) -> float:
        """Return the seconds to wait; 0 for none."""
        return max(0.0, self._until - now)
