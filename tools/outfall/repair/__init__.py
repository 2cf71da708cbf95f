"""Repair of Spark's checkpoint after a power loss, by moving torn files aside.

```
plan        from the checkpoint's files and the progress in the logs: the files to move, or the reasons against it
repairing   read the logs · plan · fence running drivers and move the files
```

The command is in `outfall.cli.commands.repair`.
"""

from __future__ import annotations
