"""Which columns of a schema the options of buckets mean."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import pyarrow as pa

from outfall.errors import ConfigurationError
from outfall.formats.partition_paths.options import BucketOptions
from outfall.formats.partition_paths.patterns import Level, parse_levels
from outfall.formats.partition_paths.values import check_type
from outfall.formats.patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ


@dataclass(frozen=True)
class Columns:
    """Columns by their index in a schema.

    Args:
        partition: those that become directories, in this order.
        kept: those that the files hold.
        time: the one that the pattern formats.
        levels: of the pattern; none without one.
    """

    partition: tuple[int, ...]
    kept: tuple[int, ...]
    time: int | None
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, options: BucketOptions, schema: pa.Schema) -> Columns:
        """Find and check the columns.

        Raises:
            ConfigurationError: naming the column and what is wrong with it.
        """
        partition = tuple(_find(schema, name, "partition_by") for name in options.partition_by)
        _check_partition(schema, partition)
        kept = tuple(index for index in range(len(schema)) if index not in partition)
        time, levels = None, tuple[Level, ...]()
        if options.bucket_pattern is not None:
            if options.bucket_time is not None:
                time = _find(schema, options.bucket_time, "bucket_time")
            levels = _levels(options.bucket_pattern, None if time is None else schema.field(time))
            _check_names(schema, levels)
        return cls(partition, kept, time, levels)


def _find(schema: pa.Schema, name: str, option: str) -> int:
    """As Spark resolves names, but an exact match comes first: sessions may tell `a` and `A` apart."""
    found = [index for index, known in enumerate(schema.names) if known == name]
    found = found or [index for index, known in enumerate(schema.names) if known.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(repr(schema.names[index]) for index in found)
        raise ConfigurationError(
            f"{option} names the column {name!r}, and there are {len(found)} of that name: {names}",
            do="rename or drop one of them",
        )
    near = difflib.get_close_matches(name, schema.names, n=3)
    raise ConfigurationError(
        f"{option} names the column {name!r}, which the rows do not have",
        why=f"near it are {', '.join(map(repr, near))}" if near else None,
        do=f"name one of {', '.join(map(repr, schema.names[:20]))}",
    )


def _check_partition(schema: pa.Schema, partition: tuple[int, ...]) -> None:
    for index in partition:
        field = schema.field(index)
        if partition.count(index) > 1:
            raise ConfigurationError(f"partition_by names the column {field.name!r} twice", do="name it once")
        check_type(field)
    if partition and len(partition) == len(schema):
        raise ConfigurationError(
            "partition_by names all columns of the rows",
            why="nothing would be left for the files to hold",
            do="leave one column out",
        )


def _levels(pattern: str, field: pa.Field | None) -> tuple[Level, ...]:
    allowed = TIMESTAMP
    if field is not None:
        allowed = _allowed(field)
    try:
        return parse_levels(pattern, allowed)
    except ValueError as error:
        where = "" if field is None else f" of type {field.type} in column {field.name!r}"
        raise ConfigurationError(
            f"bucket_pattern {pattern!r} does not fit the times{where}",
            why=str(error),
            do="leave the pattern's part out, or format a column that has it",
        ) from error


def _allowed(field: pa.Field) -> frozenset[str]:
    if pa.types.is_date32(field.type):
        return DATE
    if pa.types.is_timestamp(field.type) and field.type.unit != "ns":
        return TIMESTAMP_NTZ if field.type.tz is None else TIMESTAMP
    raise ConfigurationError(
        f"bucket_time names the column {field.name!r} of type {field.type}",
        why="bucket_pattern formats dates and timestamps, of microseconds at most",
        do="cast the column to a timestamp, or name another one",
    )


def _check_names(schema: pa.Schema, levels: tuple[Level, ...]) -> None:
    known = {name.lower() for name in schema.names}
    for level in levels:
        if level.name is not None and level.name.lower() in known:
            raise ConfigurationError(
                f"bucket_pattern has a level '{level.name}=', and the rows have a column of that name",
                why="readers would take the directory's value for the column's",
                do="give the level another name, or put the column into partition_by instead",
            )
