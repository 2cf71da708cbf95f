"""Files: JSON lines, CSV, Parquet and text, growing or whole, with each row written exactly once.

```
sink            `FileSink`, the public class; it delegates to one of three write modes
options         the options of `FileSink`
target          shared by all modes: the target's name, and how a step takes possession of a directory on a disk
first_contact   existing data on the first run, and its deletion
encoded_file    encodes rows and writes them to one file in large pieces
whole/          `sink` on a disk and in object stores, `writer` in tasks, `commit` on the driver; `by_spark`
growing/        `sink` on the driver, `partition` in tasks, `part_files`, the `registry` of part writers, the `seal`
stores/         `store`: a directory and its records; `local` with `locks`, `spark_tree`, `remote` with fsspec, `disk`
```
Attempt names, records, roll bounds and the checks of the first run are in `outfall.storage`.
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.file.options import FileOptions
from outfall.file.sink import FileSink
from outfall.options import parse_options

__all__ = ["FileSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> FileSink:
    """Create a sink from Spark options in snake or camel case. `ConfigurationError` names each unknown or wrong one."""
    return FileSink(**dict(parse_options(FileOptions, options)))
