"""Apache Iceberg: rows as the snapshots of a table, through pyiceberg.

```
sink, options    what a user writes
catalog          pyiceberg's catalogue: opened, its errors explained
table            one state of a table: markers, history, commits
layout           data files: partitions, statistics, entries of manifests
columns          rows and tables, type by type
files            filesystems for tasks, files that a disk keeps, what a failed commit has written
expire           which snapshots expire
```

What all table formats share is in `outfall.tables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from outfall.errors import missing_extra
from outfall.options import parse_options

if find_spec("pyiceberg") is None:
    raise missing_extra("pyiceberg", "iceberg")

from outfall.iceberg.options import IcebergOptions
from outfall.iceberg.sink import IcebergSink

__all__ = ["IcebergSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> IcebergSink:
    """Make a sink from Spark options (`table`, `catalog_options`, `branch`, …; also spelled `catalogOptions`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    return IcebergSink(**dict(parse_options(IcebergOptions, options)))
