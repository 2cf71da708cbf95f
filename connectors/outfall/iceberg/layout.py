"""The form of a table's data files: columns, partitions and statistics, in tasks and on the driver."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
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
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    UnknownType,
    UUIDType,
)

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.iceberg.columns import check_ids, file_schema, identities, number_of
from outfall.iceberg.options import PartitionTerm
from outfall.tables.area import DataArea
from outfall.tables.by_spark import partitioned
from outfall.tables.data_file import DataFile, Layout
from outfall.tables.table import FileLayout

_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4", "brotli": "brotli", "uncompressed": "none"}
_LEVELS = {"zstd": range(1, 23), "gzip": range(1, 10), "brotli": range(12)}
"""The levels of the compressions that have some."""
_METRICS = "write.metadata.metrics."
_TARGET_SIZE = 512 << 20
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")

_ALIGNMENT = 16
"""Bytes to which Rust aligns its widest number. Arrow only demands 8, which is what batches from Spark have."""

_PANICS = "pyo3_runtime"
"""The module of a Rust panic in Python, which is no `Exception`."""

_NAMED = DecimalType | FixedType | UUIDType

Values = tuple[str | None, ...]


@dataclass(frozen=True)
class IcebergLayout(FileLayout):
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
        _check_partitions(schema, spec)
        codec, level = _compression(properties)
        return cls(
            layout=Layout(table=str(metadata.table_uuid), partitioning=_shown(spec), columns=identities(schema)),
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

    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        return file_schema(self.schema, rows, {each.source_id for each in self._partitioned_by})

    def stored(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def check_by_spark(self, schema: pa.Schema) -> None:
        if self.spec.fields:
            raise partitioned(_shown(self.spec))
        check_ids(schema)

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
            else self._transformed(each, _at(batch, next(found)))
            for each in self.spec.fields
        ]

    def _transformed(self, partition: PartitionField, values: pa.Array) -> pa.Array:
        source = self.schema.find_field(partition.source_id)
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if source.required and values.null_count:
            raise ValueRefusedError(
                f"column {self.schema.find_column_name(partition.source_id)!r} is NULL, because its struct is",
                why="the table is partitioned by it and requires it in the struct: pyiceberg writes no such partition",
                do="remove such rows, or have the struct set",
            )
        try:
            return _physical(partition.transform.pyarrow_transform(source.field_type)(_aligned(values)))
        except BaseException as error:  # any error that Arrow, or the Rust library of pyiceberg, raises for a value
            if not isinstance(error, Exception) and type(error).__module__ != _PANICS:
                raise
            name = self.schema.find_column_name(partition.source_id)
            raise ValueRefusedError(
                f"column {name!r} has a value without a partition for {partition.transform}",
                why=type(error).__name__,  # without its text, which may quote the value
                do="remove such rows, or correct the value",
            ) from None

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
        told = file.statistics
        known: dict[str, Any] = {
            "content": DataFileContent.DATA,
            "file_path": path,
            "file_format": FileFormat.PARQUET,
            "partition": Record(*self._record(file.partition)),
            "record_count": file.rows,
            "file_size_in_bytes": file.size,
            "split_offsets": told["split_offsets"],
            "spec_id": self.spec.spec_id,
            **dict.fromkeys(("sort_order_id", "equality_ids", "key_metadata")),
        }
        for name in _COUNTS:
            known[name] = {int(number): value for number, value in told[name].items()}
        for name in _BOUNDS:
            known[name] = {int(number): base64.b64decode(value) for number, value in told[name].items()}
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


def text_of(value: Any) -> str | None:
    """Return a partition value, in the form of manifests, as a string; `value_of` parses it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return base64.b64encode(value.bytes).decode() if hasattr(value, "bytes") else str(value)


def value_of(text: str, kind: IcebergType) -> Any:
    """Return the value of a string, in the form of manifests: dates and times are integers."""
    if isinstance(kind, StringType):
        return text
    if isinstance(kind, BooleanType):
        return text == "true"
    if isinstance(kind, FloatType | DoubleType):
        return float.fromhex(text)
    if isinstance(kind, DecimalType):
        return Decimal(text)
    if isinstance(kind, BinaryType | FixedType | UUIDType):
        return base64.b64decode(text)
    return int(text)


def _aligned(values: pa.Array) -> pa.Array:
    """Return values whose buffers Rust accepts, copied only if they are not."""
    aligned = all(buffer is None or buffer.address % _ALIGNMENT == 0 for buffer in values.buffers())
    return values if aligned else pa.concat_arrays([values])


def _physical(values: pa.Array) -> pa.Array:
    """Return values in the form of manifests. Raises `ArrowInvalid` for one that they cannot represent.

    The lowest decimals have more digits than their type once they are truncated.
    """
    if pa.types.is_decimal(values.type):
        values.validate(full=True)
    if pa.types.is_date(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_temporal(values.type) else values


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


def is_written_right(spec: PartitionSpec, schema: Schema) -> bool:
    """Whether pyiceberg reads partition values correctly, and writes valid manifests with them.

    It reads doubles as floats, creates two Avro types with one name, and drops values of dropped columns. It cannot
    write NULL for a required field of a struct, although the struct may be NULL.
    """
    found = spec.partition_type(schema).fields
    kinds = [each.field_type for each in found]
    inexact = any(isinstance(kind, FloatType | DoubleType | UnknownType) for kind in kinds)
    outer = {column.field_id for column in schema.fields}
    inside = any(
        each.required and source.source_id not in outer for each, source in zip(found, spec.fields, strict=True)
    )
    return not inexact and not inside and _named_twice(kinds) is None


def _named_twice(kinds: Iterable[IcebergType]) -> str | None:
    named = [str(kind) for kind in kinds if isinstance(kind, _NAMED)]
    return next((kind for kind in named if named.count(kind) > 1), None)


def _check_partitions(schema: Schema, spec: PartitionSpec) -> None:
    """Reject a partitioning for which pyiceberg writes invalid manifests: Avro permits each of these types once.

    Raises `ConfigurationError` if two partition fields have the same named Avro type.
    """
    twice = _named_twice(each.field_type for each in spec.partition_type(schema).fields)
    if twice is not None:
        raise ConfigurationError(
            f"the table has two partition fields of type {twice}",
            why="pyiceberg writes manifests for it that Avro readers reject",
            do="partition by one of them, or write with Spark",
        )


def _shown(spec: PartitionSpec) -> str:
    fields = ", ".join(f"{each.name} = {each.transform} of column {each.source_id}" for each in spec.fields)
    return f"{fields or 'none'} (spec {spec.spec_id})"


def new_spec(schema: Schema, terms: Iterable[PartitionTerm]) -> PartitionSpec:
    """Return a new table's partition spec. `ConfigurationError` has each term of a missing or unsupported column."""
    problems, fields = [], []
    for number, term in enumerate(terms, start=1000):
        transform = parse_transform(term.transform)
        try:
            source = schema.find_field(term.column, case_sensitive=False)
        except ValueError:
            problems.append(f"there is no column {term.column!r}")
            continue
        if transform.can_transform(source.field_type):
            fields.append(PartitionField(source.field_id, number, transform, f"{term.column}{term.suffix}"))
        else:
            problems.append(f"{term.column!r} is {source.field_type}, which has no {term.transform}")
    names = [each.name for each in fields]
    problems += [
        f"two terms have the name {name!r}" for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if problems:
        raise ConfigurationError(
            "partition_by does not fit the rows:  " + "; ".join(problems), do="correct partition_by, or the columns"
        )
    return PartitionSpec(*fields)


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
