"""Where recovery data lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from outfall.errors import ConfigurationError
from outfall.recovery.log import RecoveryLog


class RecoveryConfig(ABC):
    """Says where recovery data lives. Picklable; opens nothing until `open` is called, on the driver or in a task."""

    reaches_tasks: ClassVar[bool] = True
    """Whether tasks on any host can open the log too. Where not, only the driver does, and states travel whole with the
    ticket and the answers, as long as all of a step's together are within `outfall.recovery.values.CARRIED`."""

    @abstractmethod
    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step, which is made on first use.

        Raises:
            ConfigurationError: the location cannot hold a log; the text says what to use instead.
        """

    def steps(self) -> Sequence[str]:
        """Return the ids of the steps that have recovery data here, sorted; none where nothing was ever written.

        For people who look: the protocol never asks. Reads only, and may name a step whose log is empty.

        Raises:
            ConfigurationError: this store cannot list its steps, or the location cannot hold logs.
            TransientError: the store failed.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot list the steps that it holds", do="name the step (its default is 'sink')"
        )

    @abstractmethod
    def url(self) -> str:
        """Return the location as text, free of secrets; `recovery_config(url)` gives an equal configuration."""
