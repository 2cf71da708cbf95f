"""Where a step's recovery data lives, and how it is read back."""

from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.config import RecoveryConfig
from outfall.recovery.history import EpochSummary, history
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryLog
from outfall.recovery.url import recovery_config

__all__ = [
    "CheckpointRecoveryConfig",
    "EntryExistsError",
    "EpochSummary",
    "LogEntry",
    "RecoveryConfig",
    "RecoveryLog",
    "history",
    "recovery_config",
]
