"""The form of a table's data files: columns, partitions and statistics, in tasks and on the driver."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
)
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from outfall.errors import ConfigurationError
from outfall.iceberg.columns import file_schema, identities, merge_schema, names_by_id, number_of
from outfall.iceberg.partitions import Values, check_partitions, partitioning_text, text_of, transformed, value_of
from outfall.tables.area import DataArea
from outfall.tables.data_file import DataFile, Layout
from outfall.tables.keyed import KeyedLayout

_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4", "brotli": "brotli", "uncompressed": "none"}
_LEVELS = {"zstd": range(1, 23), "gzip": range(1, 10), "brotli": range(12)}
"""The levels of the compressions that have some."""
_METRICS = "write.metadata.metrics."
_TARGET_SIZE = 512 << 20
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


@dataclass(frozen=True)
class IcebergLayout(KeyedLayout):
    """Holds the table's schema and spec as text, to be small when pickled."""

    layout: Layout
    area: DataArea
    codec: str
    target_size: int
    schema_text: str
    spec_text: str
    metrics: Mapping[str, str]
    """The table properties that select the statistics of each column."""
    level: int | None = None
    _sources: dict[pa.Schema, list[list[int]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, metadata: TableMetadata, open_area: Callable[[str], DataArea]) -> IcebergLayout:
        """Describe the data files of a table. `open_area` creates the area for a root location.

        Raises `ConfigurationError` if the table's properties require files that the sink cannot write.
        """
        properties, schema, spec = metadata.properties, metadata.schema(), metadata.spec()
        check_partitions(schema, spec)
        codec, level = _compression(properties)
        return cls(
            layout=Layout(
                table=str(metadata.table_uuid), partitioning=partitioning_text(spec), columns=identities(schema)
            ),
            area=open_area(_data_root(metadata)),
            codec=codec,
            level=level,
            target_size=int(properties.get("write.target-file-size-bytes", _TARGET_SIZE)),
            schema_text=schema.model_dump_json(),
            spec_text=spec.model_dump_json(),
            metrics={name: value for name, value in properties.items() if name.startswith(_METRICS)},
        )

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}
        return kept | {"_sources": {}}

    @cached_property
    def schema(self) -> Schema:
        """The schema of the table."""
        return Schema.model_validate_json(self.schema_text)

    @cached_property
    def spec(self) -> PartitionSpec:
        """The partition spec of the table."""
        return PartitionSpec.model_validate_json(self.spec_text)

    @cached_property
    def _partitioned_by(self) -> list[PartitionField]:
        return [each for each in self.spec.fields if not isinstance(each.transform, VoidTransform)]

    @cached_property
    def columns(self) -> pa.Schema:
        return merge_schema(self.schema)

    @property
    def of_staged(self) -> Layout:
        """Staged files are found by the names that the columns have now: after a change of a name they fit no more."""
        return self.layout.model_copy(update={"columns": {**self.layout.columns, **names_by_id(self.schema)}})

    def only(self, names: Collection[str]) -> IcebergLayout:
        schema = Schema(*(column for column in self.schema.fields if column.name in names))
        unpartitioned = UNPARTITIONED_PARTITION_SPEC.model_dump_json()
        return replace(self, schema_text=schema.model_dump_json(), spec_text=unpartitioned)

    def check_values(self, rows: pa.RecordBatch, deleted: pa.Array | None) -> None:
        self.partition(rows if deleted is None else rows.filter(pc.invert(deleted)))

    def unchecked(self) -> IcebergLayout:
        return self

    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        return file_schema(self.schema, rows, {each.source_id for each in self._partitioned_by})

    def stored(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def partition(self, batch: pa.RecordBatch) -> Sequence[pa.Array]:
        if not self.spec.fields:
            return ()
        sources = self._sources.get(batch.schema)
        if sources is None:
            sources = [_place(batch.schema, each.source_id) for each in self._partitioned_by]
            self._sources[batch.schema] = sources
        found = iter(sources)
        return [
            pa.nulls(batch.num_rows, pa.int32())
            if isinstance(each.transform, VoidTransform)
            else transformed(self.schema, each, _at(batch, next(found)))
            for each in self.spec.fields
        ]

    def partition_text(self, values: Sequence[Any]) -> Values:
        return tuple(map(text_of, values))

    def statistics(self, written: pq.FileMetaData, schema: pa.Schema) -> Mapping[str, Any]:
        numbers = dict(_leaves(schema))
        try:
            plan = self._plan(written, numbers, dict(self.metrics))
            found = data_file_statistics_from_parquet_metadata(written, plan, numbers)
        except OverflowError:
            # A bound after the year 9999, which Python's dates do not support; readers then have no bounds.
            plan = self._plan(written, numbers, {f"{_METRICS}default": "counts"})
            found = data_file_statistics_from_parquet_metadata(written, plan, numbers)
        known: dict[str, dict[str, Any]] = {
            name: {str(number): value for number, value in getattr(found, name).items()} for name in _COUNTS
        }
        known |= {name: {} for name in _BOUNDS}
        for number, column in found.column_aggregates.items():
            _cover_zeros(column)
            for name, bound in zip(_BOUNDS, (column.min_as_bytes, column.max_as_bytes), strict=True):
                # pyiceberg increments the last character of a truncated string, after U+D7FF to a surrogate.
                with suppress(UnicodeEncodeError):
                    if (value := bound()) is not None:
                        known[name][str(number)] = base64.b64encode(value).decode()
        return {**known, "split_offsets": found.split_offsets}

    def _plan(
        self, written: pq.FileMetaData, numbers: Mapping[str, int], metrics: dict[str, str]
    ) -> dict[int, StatisticsCollector]:
        """Return the statistics to collect: of a column without bounds in a row group with values, none.

        pyiceberg would take the bounds of the other row groups, and warn of NaN, which is a bound of Spark's writer.
        """
        groups = [written.row_group(group) for group in range(written.num_row_groups)]
        columns = [group.column(column) for group in groups for column in range(group.num_columns)]
        plan = compute_statistics_plan(self.schema, metrics)
        for column in columns:
            found, number = column.statistics, numbers[column.path_in_schema]
            if found is None or (found.num_values and not _bounded(found)):
                plan[number] = replace(plan[number], mode=match_metrics_mode("none"))
        return plan

    def manifest_file(self, file: DataFile, path: str) -> ManifestDataFile:
        """Create a manifest entry from the result of a task. `path` is the file's location in the table's form."""
        statistics = file.statistics
        known: dict[str, Any] = {
            "content": DataFileContent.DATA,
            "file_path": path,
            "file_format": FileFormat.PARQUET,
            "partition": Record(*self._record(file.partition)),
            "record_count": file.rows,
            "file_size_in_bytes": file.size,
            "split_offsets": statistics["split_offsets"],
            "spec_id": self.spec.spec_id,
            **dict.fromkeys(("sort_order_id", "equality_ids", "key_metadata")),
        }
        for name in _COUNTS:
            known[name] = {int(number): value for number, value in statistics[name].items()}
        for name in _BOUNDS:
            known[name] = {int(number): base64.b64decode(value) for number, value in statistics[name].items()}
        return ManifestDataFile.from_args(**known)

    def _record(self, partition: Values) -> Iterator[Any]:
        kinds = self.spec.partition_type(self.schema).fields
        for text, kind in zip(partition, kinds, strict=True):
            yield None if text is None else value_of(text, kind.field_type)


def _bounded(found: Any) -> bool:
    """Whether statistics of a footer have bounds, of numbers alone."""
    # Older pyarrow has no values of other types, such as decimals.
    return found.has_min_max and not (found.physical_type in ("FLOAT", "DOUBLE") and math.isnan(found.max))


def _cover_zeros(column: Any) -> None:
    """Let a bound of zero cover both zeros, which readers order: Spark's writer writes the one that it found."""
    for name, zero in (("current_min", -0.0), ("current_max", 0.0)):
        found = getattr(column, name)
        if isinstance(found, float) and found == 0:
            setattr(column, name, zero)


def _place(schema: pa.Schema, wanted: int) -> list[int]:
    """Return the location of a column: its position, and that of each field below it."""

    def within(fields: Any) -> list[int] | None:
        for index, column in enumerate(fields):
            if number_of(column) == wanted:
                return [index]
            below = within(column.type) if pa.types.is_struct(column.type) else None
            if below is not None:
                return [index, *below]
        return None

    found = within(schema)
    if found is None:
        raise ConfigurationError(
            f"the table is partitioned by column {wanted}, which the rows do not have", do="add it to the rows"
        )
    return found


def _at(batch: pa.RecordBatch, place: Sequence[int]) -> pa.Array:
    column = batch.column(place[0])
    return pc.struct_field(column, list(place[1:])) if len(place) > 1 else column


def _leaves(schema: pa.Schema) -> Iterator[tuple[str, int]]:
    """Yield the path of each column of a Parquet file, as in its footer, with its field id."""
    for column in schema:
        yield from _below(column, column.name)


def _below(column: pa.Field, path: str) -> Iterator[tuple[str, int]]:
    kind = column.type
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _below(inner, f"{path}.{inner.name}")
    elif pa.types.is_map(kind):
        yield from _below(kind.key_field, f"{path}.key_value.key")
        yield from _below(kind.item_field, f"{path}.key_value.value")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _below(kind.value_field, f"{path}.list.element")
    else:
        yield path, number_of(column)


def _data_root(metadata: TableMetadata) -> str:
    return metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data").rstrip("/")


def _compression(properties: Mapping[str, str]) -> tuple[str, int | None]:
    """Return compression and level of data files, and reject unsupported properties. `None` is the default level.

    Raises `ConfigurationError` for another format, encryption, or a compression that pyarrow does not support.
    """
    kind = properties.get("write.format.default", "parquet").lower()
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    level = properties.get("write.parquet.compression-level") if codec in _LEVELS else None
    wrong = None
    if kind != "parquet":
        wrong = f"write.format.default={kind}: only Parquet is supported"
    elif "encryption.key-id" in properties:
        wrong = "encryption.key-id: encryption is not supported"
    elif codec not in _CODECS:
        wrong = f"write.parquet.compression-codec={codec}: supported are {', '.join(_CODECS)}"
    elif level is not None and level not in map(str, _LEVELS[codec]):
        wrong = f"write.parquet.compression-level={level}: {codec} has {_LEVELS[codec][0]} to {_LEVELS[codec][-1]}"
    if wrong:
        raise ConfigurationError(f"the table has the property {wrong}", do="change the property, or write with Spark")
    return _CODECS[codec], None if level is None else int(level)
