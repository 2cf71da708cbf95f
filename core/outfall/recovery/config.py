"""Where recovery data lives."""

from __future__ import annotations

from abc import ABC, abstractmethod

from outfall.recovery.log import RecoveryLog


class RecoveryConfig(ABC):
    """Says where recovery data lives. Picklable; opens nothing until `open` is called, on the driver or in a task."""

    @abstractmethod
    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step, which is made on first use.

        Raises:
            ConfigurationError: the location cannot hold a log; the text says what to use instead.
        """

    @abstractmethod
    def url(self) -> str:
        """Return the location as text, free of secrets; `recovery_config(url)` gives an equal configuration."""
