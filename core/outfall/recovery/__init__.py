"""Where a step's recovery data lives, and how it is read back."""

from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.config import RecoveryConfig, recovery_config
from outfall.recovery.history import EpochSummary, history
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryLog

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
