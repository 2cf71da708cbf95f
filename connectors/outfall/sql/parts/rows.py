"""The rows of parts, as the table stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError
from outfall.sql.dialect import Column, Dialect
from outfall.sql.parts.options import PartOptions


@dataclass(frozen=True)
class PartRows:
    """Converts rows to the columns of the table. With `text` the part's column is a string instead of an integer."""

    options: PartOptions
    text: bool = False

    @classmethod
    def into(cls, dialect: Dialect, columns: Sequence[Column]) -> PartRows:
        """Return the conversion for the columns of the table, if there is one. The options are those of parts."""
        options: PartOptions = dialect.options  # type: ignore[assignment]
        found = next((column for column in columns if column.name == options.part_column), None)
        return cls(options, found is not None and not pa.types.is_integer(dialect.arrow_type(found)))

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns that are written for rows with a schema.

        Raises `ConfigurationError` if a column of the rows has the name of a column of the sink.
        """
        own = self._own_fields()
        payload = self.options.payload_column
        if payload is not None:
            return pa.schema([*own, pa.field(payload, pa.struct(list(given)), nullable=False)])
        for field in own:
            if field.name in given.names:
                option = "part_column" if field.name == self.options.part_column else "part_offset_column"
                raise ConfigurationError(
                    f"the rows have a column {field.name!r}, which {option} reserves for the sink",
                    do=f'set another {option}, drop the column, or set offset_keys="ledger"',
                )
        return pa.schema([*own, *given])

    def batch(self, given: pa.RecordBatch, part: str, start: int) -> pa.RecordBatch:
        """Return the rows to write, numbered from `start`."""
        rows = given.num_rows
        columns: list[pa.Array] = []
        if self.options.offset_keys == "columns":
            value = pa.scalar(part) if self.text else pa.scalar(int(part), pa.int32())
            ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
            columns = [pa.repeat(value, rows), pc.cumulative_sum(ones, start=start - 1)]
        if self.options.payload_column is None:
            columns += given.columns
        else:
            columns.append(pa.StructArray.from_arrays(given.columns, fields=list(given.schema)))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema(given.schema))

    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """Return the options from which `create_table` derives the primary key."""
        if self.options.key_columns or self.options.offset_keys == "ledger":
            return {}
        return {"key_columns": (self.options.part_column, self.options.part_offset_column)}

    def _own_fields(self) -> list[pa.Field]:
        if self.options.offset_keys == "ledger":
            return []
        kind = pa.string() if self.text else pa.int32()
        return [
            pa.field(self.options.part_column, kind, nullable=False),
            pa.field(self.options.part_offset_column, pa.int64(), nullable=False),
        ]
