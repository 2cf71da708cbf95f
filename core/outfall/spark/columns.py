"""The columns of the rows: by position, and in which Arrow types they arrive.

Spark takes a column's name apart at its dots, and does not tell names apart that differ in case only, or not at all. So
the rows go to the tasks under names of our own and get theirs back there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outfall.capabilities import SupportsPreWriteTopology, SupportsTarget
from outfall.capability_checks import supports
from outfall.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PIECE = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_PATH = re.compile(rf"(?:{_PIECE.pattern})(?:\.(?:{_PIECE.pattern}))*")


@dataclass(frozen=True)
class FoundColumn:
    """A column, or a field within one."""

    path: tuple[str, ...]
    """The column's name under `RowColumns.renamed`, and the fields that lead on from it."""
    name: str
    """As the user says it, without back-ticks."""

    def expression(self) -> Column:
        """What selects it from the renamed rows."""
        from pyspark.sql import functions as sf

        column, *fields = self.path
        expression = sf.col(column)
        for field in fields:
            expression = expression.getField(field)
        return expression


class RowColumns:
    """The columns of some rows."""

    def __init__(self, names: Sequence[str]) -> None:
        """Take the names in the order of the columns; they may be any, also twice the same."""
        self.names = tuple(names)

    def renamed(self, df: DataFrame) -> DataFrame:
        """Return the rows with a name for each column that nothing can mistake."""
        return df.toDF(*map(_position, range(len(self.names)))) if self.names else df

    def find(self, argument: str, text: str) -> FoundColumn:
        """Find the column that an argument names: literally, or as Spark reads it, with fields and back-ticks.

        Raises:
            ConfigurationError: there is none, or more than one.
        """
        pieces = [text] if text in self.names else _pieces(text)
        if not pieces or pieces[0] not in self.names:
            raise ConfigurationError(
                f"{argument} names the column {text!r}, and the rows have {', '.join(self.names)}",
                do=f"give {argument} the name of a column",
            )
        self.check_unique(pieces[0])
        return FoundColumn((_position(self.names.index(pieces[0])), *pieces[1:]), ".".join(pieces))

    def check_unique(self, *names: str) -> None:
        """Refuse names that several columns have, of all columns if none is given.

        Raises:
            ConfigurationError: naming one.
        """
        for name in names or self.names:
            if self.names.count(name) > 1:
                raise ConfigurationError(
                    f"{self.names.count(name)} columns have the name {name!r}",
                    why="a row is a mapping of names to values",
                    do="rename all but one, or leave them out",
                )


def named(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Give the first columns of a batch these names; the others keep theirs."""
    if not names:
        return batch
    fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=False)]
    schema = pa.schema([*fields, *list(batch.schema)[len(names) :]], metadata=batch.schema.metadata)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def check_schema(sink: Any, schema: StructType) -> None:
    """Let a sink refuse columns that it cannot write, before any data moves.

    A sink that changes the DataFrame itself is left to find out in its tasks.

    Raises:
        ConfigurationError: a column has a type that the sink, or Arrow, does not carry.
    """
    if supports(sink, SupportsTarget) and not supports(sink, SupportsPreWriteTopology):
        sink.check_schema(arrow_schema(schema))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of the batches that a Python worker gets. Timestamps are given in UTC here.

    Raises:
        ConfigurationError: Spark has no Arrow type for a column's.
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
            raise ConfigurationError(
                f"the column {field.name!r} has the type {field.dataType.simpleString()}",
                why="Spark cannot send it to Python as Arrow",
                do="cast it to another type or leave it out",
            ) from error
    return pa.schema(fields)


def _position(index: int) -> str:
    return f"c{index}"


def _pieces(text: str) -> list[str]:
    """The column and its fields, as Spark takes a name apart; none where it would not."""
    if not _PATH.fullmatch(text):
        return []
    return [quoted.replace("``", "`") if quoted else plain for quoted, plain in _PIECE.findall(text)]
