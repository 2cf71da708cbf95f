"""The data files of a loaded Delta table, of any writer: which may hold given keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError

_is = pa.types

_OTHER_PLACE = ("://", "file:/")
"""In paths of a shallow clone, whose files belong to another table."""


@dataclass(frozen=True)
class DeltaFile:
    """An active data file."""

    path: str
    """As in the log."""
    size: int
    partition: Mapping[str, Any]
    """The value of each partition column."""
    bounds: Mapping[str, tuple[Any, Any]]
    """The smallest and the largest value of columns, as far as they are known exactly."""

    def may_have(self, keys: pa.Table) -> pa.ChunkedArray | None:
        """Return, for each row of `keys`, whether the file may have it; `None` if it may have any of them."""
        found: Any = None
        for name in keys.column_names:
            column, these = keys.column(name), None
            if name in self.partition:
                value = pa.scalar(self.partition[name], column.type)
                these = pc.equal(column, value) if value.is_valid else pa.chunked_array([pa.repeat(False, len(column))])
            elif name in self.bounds:
                low, high = (pa.scalar(bound, column.type) for bound in self.bounds[name])
                these = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
            if these is not None:
                found = these if found is None else pc.and_(found, these)
        return None if found is None else pc.fill_null(found, False)


def stored_files(
    active: pa.Table, columns: pa.Schema, partitioned_by: Sequence[str], keys: Sequence[str]
) -> Iterator[DeltaFile]:
    """Yield the files of deltalake's add actions in flat form. `ConfigurationError` names one of another table."""
    bounded = [name for name in keys if name not in partitioned_by and _is_exact(columns.field(name).type)]
    for file in active.to_pylist():
        if any(sign in file["path"] for sign in _OTHER_PLACE):
            raise ConfigurationError(
                f"the table has a file of another table: {file['path']!r}",
                why="it is a shallow clone, and the sink would have to replace that file",
                do="use a table of its own files, for example a deep clone",
            )
        found = {name: (file.get(f"min.{name}"), file.get(f"max.{name}")) for name in bounded}
        yield DeltaFile(
            path=file["path"],
            size=file["size_bytes"],
            partition={name: file.get(f"partition.{name}") for name in partitioned_by},
            bounds={name: bounds for name, bounds in found.items() if None not in bounds},
        )


def _is_exact(kind: pa.DataType) -> bool:
    """Whether every writer's bounds hold for all values: times may be truncated, decimals and floats rounded."""
    return bool(_is.is_integer(kind) or _is.is_date(kind) or _is.is_string(kind))
