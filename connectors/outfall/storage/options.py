"""The options that all sinks of files and objects have."""

from __future__ import annotations

import pyarrow as pa

from outfall.formats import FormatOptions
from outfall.formats.partition_paths import PartitionOptions


class StorageOptions(FormatOptions, PartitionOptions):
    """The options of formats and partition directories. Sinks add their location and `on_existing`."""

    def stored_in_files(self, rows: pa.Schema) -> list[pa.Field]:
        """Return the columns that are in files and not in their paths. Spark's writer does not distinguish case."""
        named = set(self.partition_by)
        folded = {name.lower() for name in named} if self.by_spark else set()
        return [field for field in rows if field.name not in named and field.name.lower() not in folded]
