"""Apache Iceberg: rows as the snapshots of a table, through pyiceberg.

```
sink, options    the public class and its options
catalog          pyiceberg's catalog, and explanations of its errors
table            one state of a table: records, history, commits
layout           data files: partitions, statistics, manifest entries
columns          conversion of columns between rows and tables
stored           the data files that may hold given keys, and the rows that readers find in them
replacement      the snapshot that replaces files; ancestry: the snapshots before one
files            filesystems for tasks, durable files on disks, files of failed commits
expire           the choice of snapshots to expire
```

The common base of all table formats is in `outfall.tables`.
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("iceberg", "pyiceberg")

from outfall.iceberg.options import IcebergOptions
from outfall.iceberg.sink import IcebergSink

__all__ = ["IcebergSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> IcebergSink:
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    return IcebergSink(**dict(parse_options(IcebergOptions, options)))
