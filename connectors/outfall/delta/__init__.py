"""Delta Lake: rows as a table, one version per epoch. See docs/delta.md; the base is `outfall.tables`.

```
sink, options     the public class and its options
table             one loaded version: records, history, and the commit
features          the supported tables: features that a bare commit of files would violate
layout            the form of data files; columns: the fit between rows and tables, and new tables
char_varchar      the lengths of `CHAR` and `VARCHAR` columns
partition_values  partition values as strings; statistics: data skipping
stored            the data files that may hold given keys
files             location of the table: deltalake's client, also as a filesystem for tasks, and durability on disks
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("delta", "deltalake")

from outfall.delta.options import DeltaOptions
from outfall.delta.sink import DeltaSink

__all__ = ["DeltaSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> DeltaSink:
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    return DeltaSink(**dict(parse_options(DeltaOptions, options)))
