"""The columns of the rows: addressed by position, and with their Arrow types.

Spark splits a column name at its dots, and does not distinguish names that differ only in case. The rows therefore have
positional names on their way to the tasks, and get their own names back there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outfall.capabilities import SupportsPreWriteTopology, SupportsSparkWriter, SupportsTarget
from outfall.capability_checks import ResolvedSink
from outfall.errors import ConfigurationError
from outfall.values import CASE_SENSITIVE, require_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PIECE = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_CLEAR = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
"""A name that means the same literally and as Spark reads it, and that no column of Outfall's own has."""
_PATH = re.compile(rf"(?:{_PIECE.pattern})(?:\.(?:{_PIECE.pattern}))*")


@dataclass(frozen=True)
class FoundColumn:
    """A column, or a field in a column."""

    path: tuple[str, ...]
    """The column's name in `RowColumns.renamed`, followed by the names of nested fields."""
    name: str
    """The user's name for it, without back-ticks."""

    def expression(self) -> Column:
        """Return the expression that selects it from the renamed rows."""
        from pyspark.sql import functions as sf

        column, *fields = self.path
        expression = sf.col(column)
        for field in fields:
            expression = expression.getField(field)
        return expression

    def sql(self) -> str:
        """Return the same expression in SQL."""
        column, *fields = ("`{}`".format(piece.replace("`", "``")) for piece in self.path)
        # Spark would take the column before a dot for a table or an alias of that name, if the rows have one.
        return ".".join([f"coalesce({column})", *fields]) if fields else column


class RowColumns:
    """The columns of a DataFrame."""

    def __init__(self, names: Sequence[str]) -> None:
        """Keep the names in the order of the columns. Names may be arbitrary, and may occur more than once."""
        self.names = tuple(names)
        self._clear = self.names
        if len({name.lower() for name in names}) < len(names) or not all(map(_CLEAR.fullmatch, names)):
            self._clear = tuple(f"c{index}" for index in range(len(names)))

    def renamed(self, df: DataFrame) -> DataFrame:
        """Return the rows with unambiguous column names."""
        # Each projection takes Spark milliseconds in each epoch.
        return df if self._clear == self.names else df.toDF(*self._clear)

    def find(self, argument: str, text: str) -> FoundColumn:
        """Return the column that an argument names, literally or as in Spark, with fields and back-ticks.

        Raises `ConfigurationError` if no column or more than one column has the name.
        """
        pieces = [text] if text in self.names else _pieces(text)
        if not pieces or pieces[0] not in self.names:
            require_columns(self.names, {argument: text})
        self.check_unique(pieces[0])
        return FoundColumn((self._clear[self.names.index(pieces[0])], *pieces[1:]), ".".join(pieces))

    def check_unique(self, *names: str) -> None:
        """Reject duplicate column names, among all columns if none is given. The error names a duplicate."""
        for name in names or self.names:
            if self.names.count(name) > 1:
                raise ConfigurationError(
                    f"{self.names.count(name)} columns have the name {name!r}",
                    why="a row is a mapping of names to values",
                    do="rename or remove all but one",
                )


def named(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the batch with these names for its first columns."""
    if not names:
        return batch
    fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=False)]
    schema = pa.schema([*fields, *list(batch.schema)[len(names) :]], metadata=batch.schema.metadata)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def columns_named(columns: StructType, names: Sequence[str]) -> StructType:
    """Return the columns with these names for the first ones."""
    from pyspark.sql.types import StructField, StructType

    fields = [StructField(name, field.dataType) for field, name in zip(columns, names, strict=False)]
    return StructType([*fields, *columns.fields[len(names) :]])


def check_schema(resolved: ResolvedSink, schema: StructType, *, case_sensitive: bool = False) -> None:
    """Let a sink reject columns that it cannot write, before any data moves.

    A sink that changes the DataFrame itself checks its columns in the tasks, and Spark's writer its own, unless the
    sink asks for them (`SupportsSparkWriter.checks_columns`). `case_sensitive` says whether the session distinguishes
    names that differ only in case, which is unknown in a data source.

    Raises `ConfigurationError` if the sink or Arrow does not support the type of a column.
    """
    has = resolved.capabilities
    itself = SupportsPreWriteTopology in has or (SupportsSparkWriter in has and not resolved.sink.checks_columns)
    if SupportsTarget in has and not itself:
        found = arrow_schema(schema, by_spark=SupportsSparkWriter in has)
        resolved.sink.check_schema(found.with_metadata({CASE_SENSITIVE: b"true"}) if case_sensitive else found)


def arrow_schema(schema: StructType, *, by_spark: bool = False) -> pa.Schema:
    """Return the Arrow schema of the batches in a Python worker, with timestamps in UTC.

    `by_spark` says that rows do not come to Python: a type that Arrow does not have is then an interval of Arrow's own,
    which Spark does not have. Raises `ConfigurationError` otherwise.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas import types

    convert: Any = types.to_arrow_type
    given = inspect.signature(convert).parameters
    options = {"timezone": "UTC"} if "timezone" in given else {}
    fields = []
    for field in schema.fields:
        try:
            fields.append(pa.field(field.name, convert(field.dataType, **options), field.nullable))
        except (PySparkException, ValueError) as error:
            if by_spark:
                fields.append(pa.field(field.name, pa.month_day_nano_interval(), field.nullable))
                continue
            raise ConfigurationError(
                f"the column {field.name!r} has the type {field.dataType.simpleString()}",
                why="Spark cannot send it to Python as Arrow",
                do="cast it to another type or remove it",
            ) from error
    return pa.schema(fields)


def _pieces(text: str) -> list[str]:
    """Return the column and its fields, as Spark splits a name; empty if the name is invalid."""
    if not _PATH.fullmatch(text):
        return []
    return [quoted.replace("``", "`") if quoted else plain for quoted, plain in _PIECE.findall(text)]
