"""Where a step's recovery data lives, and how it is read back."""

from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.copying import CopiedStep, copy_step
from outfall.recovery.history import EpochSummary, history
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryConfig, RecoveryLog
from outfall.recovery.sqlite import SqliteRecoveryConfig
from outfall.recovery.url import recovery_config

__all__ = [
    "CheckpointRecoveryConfig",
    "CopiedStep",
    "EntryExistsError",
    "EpochSummary",
    "LogEntry",
    "RecoveryConfig",
    "RecoveryLog",
    "SqliteRecoveryConfig",
    "copy_step",
    "history",
    "recovery_config",
]
