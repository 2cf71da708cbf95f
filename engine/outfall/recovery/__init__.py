"""Recovery data of a step: its stores, its format, and functions to read it.

```
log         the interface of a store: RecoveryConfig is its location, RecoveryLog appends and reads
entries     the content of a log: format 1, and the serialized values in it
url         from the text of a location to the configuration of its store
checkpoint  the default store, on any filesystem: file_log with local_log on disks, object_log in object stores
sqlite      the store on a driver's own disk, based on sqlite_database
history     the counts of the last epochs, displayed in notebooks with plots
copying     moves a step to another store
spark_checkpoint   syncs Spark's own checkpoint files, and detects damage after a power loss
```
Other distributions add stores with the entry points `outfall.recovery`, as `outfall.kafka` does.
"""

from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.copying import CopiedStep, copy_step
from outfall.recovery.history import EpochSummary, History, history
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryConfig, RecoveryLog, ServerChange
from outfall.recovery.sqlite import SqliteRecoveryConfig
from outfall.recovery.url import recovery_config

__all__ = [
    "CheckpointRecoveryConfig",
    "CopiedStep",
    "EntryExistsError",
    "EpochSummary",
    "History",
    "LogEntry",
    "RecoveryConfig",
    "RecoveryLog",
    "ServerChange",
    "SqliteRecoveryConfig",
    "copy_step",
    "history",
    "recovery_config",
]
