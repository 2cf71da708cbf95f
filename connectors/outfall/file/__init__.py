"""Files: JSON lines, CSV, Parquet and text, growing or whole, each row in them once."""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import ConfigurationError
from outfall.file.options import FileOptions
from outfall.file.sink import FileSink
from outfall.options import parse_options

__all__ = ["FileSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> FileSink:
    """Make a sink from Spark options (`path`, `format`, `on_existing`, …; also spelled `onExisting`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong, or `parts`, which needs rows routed by key.
    """
    parsed = parse_options(FileOptions, options)
    if parsed.parts is not None:
        raise ConfigurationError(
            "the option parts is not available through options",
            why="rows must be routed to growing files by key, and a data source cannot route them",
            do="leave parts out to write whole files, or use: from outfall.spark import write_stream;"
            f" write_stream(df, FileSink({parsed.path!r}, format={parsed.format!r}, parts={parsed.parts}), key=…,"
            " checkpoint=…).start()",
        )
    return FileSink(**dict(parsed))
