"""Where a step's recovery data lives, and how it is read back.

```
log         what a store is: RecoveryConfig says where, RecoveryLog appends and reads
entries     what is in a log: format 1, and the serialized values in it
url         a location as text -> the configuration of its store
checkpoint  the default store, on any filesystem: file_log with local_log on disks, object_log in object stores
sqlite      the store on a driver's own disk, over sqlite_database
history     the counts of the last epochs, shown in notebooks by plots
copying     a step goes on in another store
spark_checkpoint   Spark's own files beside the log, and what a power loss leaves of them
```
Others ship stores by the entry points `outfall.recovery`, as `outfall.kafka` does.
"""

from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.copying import CopiedStep, copy_step
from outfall.recovery.history import EpochSummary, History, history
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryConfig, RecoveryLog
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
    "SqliteRecoveryConfig",
    "copy_step",
    "history",
    "recovery_config",
]
