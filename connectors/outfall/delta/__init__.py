"""Delta Lake: rows as a table, each epoch one version of it. See docs/delta.md; the base is `outfall.tables`.

```
sink, options     what a user writes
table             one loaded version: markers, history, and the commit
features          which tables are taken: what a bare commit of files would break
layout            what data files must be like; columns: which rows fit, and what tables are made for them
partition_values  the text of a partition;  statistics: what readers skip files by
files             where the table lies: deltalake's client, as a filesystem for tasks too, and durability on disks
```
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from outfall.errors import missing_extra
from outfall.options import parse_options

if find_spec("deltalake") is None:
    raise missing_extra("deltalake", "delta")

from outfall.delta.options import DeltaOptions
from outfall.delta.sink import DeltaSink

__all__ = ["DeltaSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> DeltaSink:
    """Make a sink from Spark options (`path`, `create_table`, `partition_by`, …; also spelled `createTable`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    return DeltaSink(**dict(parse_options(DeltaOptions, options)))
