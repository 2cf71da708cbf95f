"""Splits batches by partition directory: the options, the columns they name, and the split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from outfall.errors import ConfigurationError
from outfall.formats.partition_paths.directory_names import (
    NULL_NAME,
    Distinct,
    check_level,
    check_type,
    column_directories,
    escape_text,
    split_rows,
)
from outfall.formats.partition_paths.time_patterns import (
    Level,
    clock_directories,
    hidden_name,
    parse_levels,
    time_directories,
)
from outfall.formats.patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ
from outfall.formats.strings import literal
from outfall.options import Names, SinkOptions
from outfall.values import require_columns, spark_type


class PartitionArguments(TypedDict, total=False):
    """The options of partition paths as keyword arguments of a sink, described in `PartitionOptions`."""

    partition_by: str | list[str] | tuple[str, ...]
    directory_pattern: str | None
    directory_time: str | None


class PartitionOptions(SinkOptions):
    """The partition directory of a row; without these options, the root."""

    partition_by: Names = Field(
        default=(),
        description="Columns that become directories, as with Spark's `partitionBy`: `carrier=AA/day=2026-11-21`."
        " As a string, separated by commas. The files omit these columns; readers take them from the path. NULL"
        " and the empty string both become `__HIVE_DEFAULT_PARTITION__`, which readers return as NULL.",
    )
    directory_pattern: str | None = Field(
        default=None,
        description="The pattern of directories by time, below those of `partition_by`, for example"
        " `'dt='yyyy-MM-dd/'hour='HH`. It consists of `yyyy`, `MM`, `dd`, `HH`, `mm`, `ss`, `S` to `SSSSSS`, `XXX`"
        " and text; `/` separates levels.",
    )
    directory_time: str | None = Field(
        default=None,
        description="The date or timestamp column that `directory_pattern` formats, in the session time zone. The files"
        " keep it. Default: the time of writing in UTC; then a replayed epoch may use other directories.",
    )

    def directory_levels(self) -> tuple[Level, ...]:
        """Return the levels of directories between the root and a file."""
        columns = (Level(name, ()) for name in self.partition_by)
        return (*columns, *(parse_levels(self.directory_pattern) if self.directory_pattern else ()))

    def may_contain(self, directory: str) -> bool:
        """Return whether a directory below the root can be one of the partition directories, or above some of them."""
        names, levels = directory.split("/"), self.directory_levels()
        return len(names) <= len(levels) and all(map(Level.matches, levels, names))

    @field_validator("partition_by")
    @classmethod
    def _directories(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in value if value.count(name) > 1]
        if twice:
            raise ValueError(f"names the column {twice[0]!r} twice")
        for name in value:
            check_level(name, f"{escape_text(name)}={NULL_NAME}")
        return value

    @field_validator("directory_pattern")
    @classmethod
    def _levels(cls, value: str | None) -> str | None:
        if value is not None:
            parse_levels(value)
        return value

    @model_validator(mode="after")
    def _partitions_can_be_read(self) -> Self:
        if self.directory_pattern is None:
            if self.directory_time is not None:
                raise ValueError(
                    "directory_time is the column that directory_pattern formats, but directory_pattern is not set"
                )
            return self
        hidden = hidden_name(parse_levels(self.directory_pattern), above=bool(self.partition_by))
        if hidden is not None:
            raise ValueError(
                f"directory_pattern has the level '{hidden}=' below a level without a name, and Spark's readers reject"
                " such directories: put named levels first, or name all levels"
            )
        return self


@dataclass(frozen=True)
class PartitionPaths:
    """Splits batches by the partition directory of each row.

    Paths are relative to the sink's root, have `/` between levels, and stay below the root for all values. Names and
    escapes are those of Spark's `partitionBy`. Instances have no state between batches and can be pickled.
    """

    options: PartitionOptions

    def stored_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files: all columns except those of `partition_by`.

        Called before the first row is written, so that wrong options fail the query early. Raises `ConfigurationError`
        if a column is missing, ambiguous or of a type that cannot be read back from a directory name, if the pattern
        does not fit its column, or if no column is left for the files.
        """
        columns = _PartitionColumns.of(self.options, schema)
        return pa.schema([schema.field(index) for index in columns.kept], metadata=schema.metadata)

    def split(self, batch: pa.RecordBatch, now: datetime | None = None) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Split a batch of any size by partition, in the order of the first row of each partition.

        Yields the path of a partition, which is empty for the root, and its rows in their order, without the columns
        of `partition_by`. If the rows of a partition are adjacent, they share the memory of the batch. `now`, with a
        zone, is used only by a pattern without `directory_time`; the default is the current time. Raises the errors of
        `stored_schema`, and before the first partition a `ValueRefusedError` with column and row if a row has no
        directory.
        """
        if batch.num_rows == 0:
            return
        if not self.options.partition_by and self.options.directory_pattern is None:
            yield "", batch
            return
        columns = _PartitionColumns.of(self.options, batch.schema)
        # Like Spark, the directory has the name from the option, not the case of the column.
        named = zip(columns.partition, self.options.partition_by, strict=True)
        parts = [column_directories(batch.column(index), name) for index, name in named]
        if columns.time is not None:
            parts.append(time_directories(batch.column(columns.time), batch.schema.names[columns.time], columns.levels))
        elif columns.levels:
            parts.append(clock_directories(now or datetime.now(UTC), columns.levels))
        firsts, rest = split_rows(batch.select(list(columns.kept)), parts)
        yield from zip(_paths(parts, firsts), rest, strict=True)


def _paths(parts: list[Distinct], rows: pa.Array) -> list[str]:
    """Return the paths of some rows."""
    pieces = [part.at(rows) for part in parts]
    joined = pc.binary_join_element_wise(*pieces, literal("/"))
    return joined.to_pylist() if isinstance(joined, pa.Array) else [joined.as_py()]


@dataclass(frozen=True)
class _PartitionColumns:
    """Columns by their index in a schema: those that become directories, in this order, and those kept in the files.

    The pattern formats the column `time` in `levels`, which are empty without a pattern.
    """

    partition: tuple[int, ...]
    kept: tuple[int, ...]
    time: int | None
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, options: PartitionOptions, schema: pa.Schema) -> _PartitionColumns:
        """Find and check the columns; `ConfigurationError` names a wrong column and the reason."""
        partition = tuple(_find(schema, name, "partition_by") for name in options.partition_by)
        _check_partition(schema, partition)
        kept = tuple(index for index in range(len(schema)) if index not in partition)
        time, levels = None, tuple[Level, ...]()
        if options.directory_pattern is not None:
            if options.directory_time is not None:
                time = _find(schema, options.directory_time, "directory_time")
            levels = _levels(options.directory_pattern, None if time is None else schema.field(time))
            _check_names(schema, levels)
        return cls(partition, kept, time, levels)


def _find(schema: pa.Schema, name: str, option: str) -> int:
    """Resolve a column name like Spark, but prefer an exact match, because a session may be case-sensitive."""
    found = [index for index, known in enumerate(schema.names) if known == name]
    found = found or [index for index, known in enumerate(schema.names) if known.lower() == name.lower()]
    if not found:
        require_columns(schema.names, {option: name})
    if len(found) > 1:
        names = ", ".join(repr(schema.names[index]) for index in found)
        raise ConfigurationError(
            f"{option} names the column {name!r}, but {len(found)} columns have that name: {names}",
            do="rename or drop one of them",
        )
    return found[0]


def _check_partition(schema: pa.Schema, partition: tuple[int, ...]) -> None:
    for index in partition:
        field = schema.field(index)
        if partition.count(index) > 1:
            raise ConfigurationError(f"partition_by names the column {field.name!r} twice", do="name it once")
        check_type(field)
    if partition and len(partition) == len(schema):
        raise ConfigurationError(
            "partition_by names all columns of the rows",
            why="no column would be left for the files",
            do="leave one column out",
        )


def _levels(pattern: str, field: pa.Field | None) -> tuple[Level, ...]:
    allowed = TIMESTAMP
    if field is not None:
        allowed = _allowed(field)
    try:
        return parse_levels(pattern, allowed)
    except ValueError as error:
        where = "" if field is None else f" of type {spark_type(field.type)} in column {field.name!r}"
        raise ConfigurationError(
            f"directory_pattern {pattern!r} does not fit the times{where}",
            why=str(error),
            do="remove that part of the pattern, or format a column that has it",
        ) from error


def _allowed(field: pa.Field) -> frozenset[str]:
    if pa.types.is_date32(field.type):
        return DATE
    if pa.types.is_timestamp(field.type) and field.type.unit != "ns":
        return TIMESTAMP_NTZ if field.type.tz is None else TIMESTAMP
    raise ConfigurationError(
        f"directory_time names the column {field.name!r} of type {spark_type(field.type)}",
        why="directory_pattern formats dates, and timestamps of at most microseconds",
        do="cast the column to a timestamp, or use another column",
    )


def _check_names(schema: pa.Schema, levels: tuple[Level, ...]) -> None:
    known = {name.lower() for name in schema.names}
    for level in levels:
        if level.name is not None and level.name.lower() in known:
            raise ConfigurationError(
                f"directory_pattern has a level '{level.name}=', and the rows have a column of that name",
                why="readers would use the value of the directory instead of the column",
                do="give the level another name, or put the column into partition_by instead",
            )
