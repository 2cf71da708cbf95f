"""How states come to the tasks and back where tasks cannot reach the log: whole, with the ticket and the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from outfall.errors import ConfigurationError
from outfall.recovery.config import RecoveryConfig
from outfall.recovery.entries import StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.recovery.values import CARRIED, carry_in, carry_out

K = TypeVar("K")


class TravellingStates:
    """The states of one step on their way. Changes nothing for a log that tasks open themselves."""

    def __init__(self, recovery: RecoveryConfig, log: RecoveryLog, step_id: str) -> None:
        self._carried = not recovery.reaches_tasks
        self._log = log
        self._step_id = step_id

    def out(self, states: Mapping[K, StoredValue]) -> dict[K, StoredValue]:
        """Return recorded states as a ticket holds them."""
        return {key: carry_out(state, self._log) if self._carried else state for key, state in states.items()}

    def back(
        self, states: Mapping[str, StoredValue], writer_states: Sequence[StoredValue], generation: int
    ) -> tuple[dict[str, StoredValue], list[StoredValue]]:
        """Return the states of parts and writers as the log records them.

        Raises:
            ConfigurationError: they are more than tickets can carry. Nothing is recorded yet.
        """
        if not self._carried:
            return dict(states), list(writer_states)
        self._check_size([*states.values(), *writer_states])
        return (
            {part: carry_in(state, self._log, name=part, generation=generation) for part, state in states.items()},
            [carry_in(state, self._log, name="writer", generation=generation) for state in writer_states],
        )

    def _check_size(self, states: Iterable[StoredValue]) -> None:
        size = sum(state.blob.length if state.blob else len(state.text or state.base64 or "") for state in states)
        if size > CARRIED:
            raise ConfigurationError(
                f"the states of this step have {size:,} bytes together, and at most {CARRIED:,} can be carried",
                step=self._step_id,
                why="tasks cannot reach the driver's recovery database, so every task gets all states from the driver",
                do="use recovery data that tasks reach too, such as the checkpoint's, and outfall.recovery.copy_step",
            )
