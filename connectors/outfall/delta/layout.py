"""The form of a Delta table's data files, for tasks, which load no table."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from outfall.delta.char_varchar import check_length
from outfall.delta.columns import file_schema
from outfall.delta.files import TableLocation
from outfall.delta.partition_values import check_values, text_of
from outfall.delta.statistics import Indexed, statistics_of
from outfall.tables.area import DataArea
from outfall.tables.data_file import Layout
from outfall.tables.keyed import KeyedLayout

_TARGET_SIZE = 128 << 20
_CODECS = {"uncompressed": "none", "none": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}

STATISTICS = "stats"
"""The key of Delta's statistics in `DataFile.statistics`, with the JSON of its log."""


@dataclass(frozen=True)
class DeltaFileLayout(KeyedLayout):
    """Files contain all columns except partition columns. Picklable."""

    layout: Layout
    area: DataArea
    schema: pa.Schema
    """The columns of the table."""
    partitioned_by: tuple[str, ...]
    indexed: Indexed
    codec: str
    target_size: int
    checked: bool = True
    """Whether values are checked. Those of rows that are in the table already are not."""

    @classmethod
    def of(cls, place: TableLocation, table: DeltaTable, columns: pa.Schema | None = None) -> Self:
        """Describe files of a loaded table, or of the table with other columns."""
        metadata = table.metadata()
        schema = pa.schema(table.schema()) if columns is None else columns
        configuration, partitioned_by = metadata.configuration, tuple(metadata.partition_columns)
        return cls(
            layout=Layout(
                table=str(metadata.id), partitioning=json.dumps(partitioned_by), columns=dict(identities(schema))
            ),
            area=place.area,
            schema=schema,
            partitioned_by=partitioned_by,
            indexed=Indexed.of(configuration),
            codec=_CODECS.get(configuration.get("delta.parquet.compression.codec", "").lower(), "snappy"),
            target_size=_size(configuration.get("delta.targetFileSize", "")),
        )

    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        return file_schema(self.schema, rows, self.partitioned_by)

    def partition(self, batch: pa.RecordBatch) -> Sequence[pa.Array]:
        keys = [batch.column(name) for name in self.partitioned_by]
        if not self.checked:
            return keys
        for field, column in zip(batch.schema, batch.columns, strict=True):
            check_length(field, column)
        for name, key in zip(self.partitioned_by, keys, strict=True):
            check_values(key, name)
        return keys

    def partition_text(self, values: Sequence[Any]) -> tuple[str | None, ...]:
        return tuple(map(text_of, values))

    def stored(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in schema if field.name not in self.partitioned_by])

    @property
    def columns(self) -> pa.Schema:
        return self.schema

    def only(self, names: Collection[str]) -> DeltaFileLayout:
        schema = pa.schema([field for field in self.schema if field.name in names])
        return replace(self, schema=schema, partitioned_by=())

    def check_values(self, rows: pa.RecordBatch, deleted: pa.Array | None) -> None:
        plain = rows.select([field.name for field in rows.schema if not pa.types.is_nested(field.type)])
        if deleted is not None:
            columns = [pc.if_else(deleted, pa.scalar(None, column.type), column) for column in plain.columns]
            plain = pa.RecordBatch.from_arrays(columns, schema=plain.schema)
        self.partition(plain)

    def unchecked(self) -> DeltaFileLayout:
        return replace(self, checked=False)

    def statistics(self, written: pq.FileMetaData, schema: pa.Schema) -> Mapping[str, Any]:
        return {STATISTICS: statistics_of(written, schema, self.indexed)}


def identities(schema: pa.Schema) -> Mapping[str, str]:
    """Return each column's name with its fixed properties, which determine how a file is read.

    If a column becomes required, older files may lack it.
    """
    fields = json.loads(Schema.from_arrow(schema).to_json())["fields"]
    found = {field["name"]: json.dumps(field["type"], sort_keys=True).strip('"') for field in fields}
    required = [field["name"] for field in fields if not field["nullable"]]
    return found | {"(required)": ", ".join(required)}


def _size(text: str) -> int:
    """Parse a size as in Delta's properties (`104857600`, `128mb`); the default if it is invalid."""
    number = text.strip().lower().removesuffix("b")
    unit = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(number[-1:], 1)
    digits = number.rstrip("kmg").strip()
    return int(digits) * unit if digits.isdigit() and int(digits) else _TARGET_SIZE
