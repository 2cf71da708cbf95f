"""What it means to erase a step's recovery data."""

from __future__ import annotations

from contextlib import closing

from outfall.cli.step_status import read_status
from outfall.errors import RecordError
from outfall.recovery.log import RecoveryConfig


def consequences(recovery: RecoveryConfig, step_id: str) -> list[str]:
    """Say what is lost with a step's recovery data, one sentence each; nothing where there is none to lose.

    Raises:
        TransientError, ConfigurationError: the store cannot be read.
    """
    try:
        status = read_status(recovery, step_id, last=0)
    except RecordError as error:
        return [f"What is lost cannot be told, since the log cannot be read: {error}", *_ALWAYS]
    if status.state == "empty":
        return []
    found = []
    if status.state in ("recorded", "committing"):
        found.append(
            f"Epoch {status.epoch} is recorded and not wholly published. Its rows are lost, or partly there, unless the"
            " query brings them again. Starting the query once, or outfall gc --take-over, publishes it."
        )
    if status.rows_held:
        found.append(
            f"{status.rows_held} rows that the sink holds back are lost for good. outfall drain delivers them."
        )
    last = "no epoch is completed" if status.completed is None else f"epochs up to {status.completed} are completed"
    where = status.target or status.sink or "the target"
    return [
        *found,
        f"It is forgotten which rows are in {where} ({last}): rows that come again are written again.",
        *_ALWAYS,
    ]


_ALWAYS = [
    "What lost attempts staged in the target is never swept any more. outfall gc --take-over removes it before.",
    "The step begins as a new one: with a new checkpoint at batch 0, with the old one only with adopt_checkpoint. A"
    " target that holds data is then treated as somebody else's, as the sink's on_existing says.",
    "A query that still runs fails.",
]


def reset(recovery: RecoveryConfig, step_id: str) -> None:
    """Erase a step's recovery data. The query must not run.

    Raises:
        TransientError, ConfigurationError: the store failed, or cannot do it. Then call it again.
    """
    with closing(recovery.open(step_id)) as log:
        log.erase()
