"""The base of table sinks that also upsert and delete by key."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from outfall.capabilities import RowIdentity
from outfall.errors import ConfigurationError
from outfall.tables.key_options import KeyOptions, keeps_newer_rows, key_identity
from outfall.tables.keyed import KeyedTable
from outfall.tables.merge import MergeRows
from outfall.tables.sink import TableSink
from outfall.tables.write_mode import WriteMode


class KeyedTableSink(TableSink):
    """A table sink with the options `upsert` and `delete` of `write_mode`. Formats add how the newest state is read."""

    options: KeyOptions

    @abstractmethod
    def newest(self) -> KeyedTable | None:
        """Load the newest state of the table, without the checks of `load`; `None` if it does not exist."""

    def row_identity(self) -> RowIdentity | None:
        return key_identity(self.options, self.options.order_column)

    def check_keys_known(self) -> None:
        if self.options.has_keys and not self.options.key_columns:
            raise ConfigurationError(
                f"the key of the table {self._name!r} is not known",
                why="table_keys has no entry for it, and key_columns is not set",
                do="name its columns in table_keys",
            )

    def keeps_newer_rows(self) -> bool:
        return keeps_newer_rows(self.options)

    def applies_key_at_commit(self) -> bool:
        return True

    @property
    def mode(self) -> WriteMode:
        return MergeRows(self.options, self.newest) if self.options.has_keys else super().mode

    def row_schema(self) -> pa.Schema | None:
        columns, marker = super().row_schema(), self.options.delete_marker
        return columns if columns is None or marker is None else columns.append(pa.field(marker, pa.bool_()))
