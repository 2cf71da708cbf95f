"""Files: JSON lines, CSV, Parquet and text, growing or whole, each row in them once.

```
sink            `FileSink`: what users make; it holds one of three ways of writing
options         what it takes
target          what all ways share: the target's name, and on a disk how a step takes possession of it
first_contact   what lies there already, and its deletion
encoded_file    rows into the bytes of one file, in large pieces
whole/          `sink` on a disk and in object stores, `writer` in tasks, `commit` on the driver
growing/        `sink` on the driver, `partition` in tasks, `part_files`, the `registry` of their writers, the `seal`
storage/        `store`: a directory and its markers; `local` with `locks`, `remote` by fsspec, `disk`
```
Names of attempts, markers, bounds of files and first contact are those of `outfall.storage`.
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.file.options import FileOptions
from outfall.file.sink import FileSink
from outfall.options import parse_options

__all__ = ["FileSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> FileSink:
    """Make a sink from Spark options (`path`, `format`, `on_existing`, …; also spelled `onExisting`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    return FileSink(**dict(parse_options(FileOptions, options)))
