"""Bytes in a column of a DataFrame into columns, in the workers of Python: what sinks do to rows, the other way.

It is a function of rows and not of a column, because an Arrow function of a column exists from Spark 4.1 only, runs
again for each filter that Spark moves below it, and does not know where in a topic a message was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from outfall.errors import ConfigurationError, SerializationError, printable
from outfall.options import in_own_case
from outfall.spark.columns import RowColumns, arrow_schema
from outfall.spark.routing import map_in_arrow
from outfall.spark.version_check import PickledWithVersion
from outfall.values import require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

OnError = Literal["fail", "null"]

_POSITION = ("topic", "partition", "offset")
"""Columns of Spark's Kafka source that say where a message was."""


class OpenDeserializer(Protocol):
    """What tasks use of a deserializer. It is pickled."""

    @property
    def type(self) -> pa.DataType:
        """Type of the column that is made."""

    def column(self, values: pa.Array) -> tuple[pa.Array, Mapping[int, str]]:
        """Return the column of binary values, NULL for NULL, and why others, by position, cannot be read."""


class ColumnDeserializer(Protocol):
    """Reads values that are bytes, such as `outfall.schema_registry.RegistryDeserializer`."""

    def open(self) -> OpenDeserializer:
        """Fix what all rows of a query are read with. Called once per query, where the query is defined."""


def deserialize(
    df: DataFrame, deserializer: ColumnDeserializer, *, column: str = "value", on_error: OnError = "fail"
) -> DataFrame:
    """Return the rows with the messages of a binary column as values, usually as a struct with a field per column.

    For streams and batch jobs, classic sessions and Spark Connect. `select("value.*")` makes columns of the fields. A
    NULL message stays NULL. The other columns pass through Python unchanged, so select those that are needed first.

    Args:
        df: The rows, such as those of Spark's Kafka source.
        deserializer: How to read a message.
        column: The column with the messages.
        on_error: What to do with a message that cannot be read. `fail`: fail the query, with the topic, the partition
            and the offset if the rows have these columns. `null`: NULL, with the reason in the column `<column>_error`,
            which is NULL for other rows.

    Raises:
        ConfigurationError: The rows lack the column, it is not binary, or the deserializer's settings are wrong.
        OutfallError: The deserializer cannot be opened, for example since its registry does not respond.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    on_error = in_own_case(on_error, ("fail", "null"))
    if on_error not in ("fail", "null"):
        raise ConfigurationError(f"on_error is {on_error!r}", do='pass "fail" or "null"')
    if not callable(getattr(deserializer, "open", None)):
        raise ConfigurationError(
            f"the deserializer is a {type(deserializer).__name__}", do="pass RegistryDeserializer(url, subject=…)"
        )
    columns, reason = RowColumns(df.columns), f"{column}_error"
    require_columns(columns.names, {"column": column})
    columns.check_unique(column)
    found = arrow_schema(df.schema).field(column).type
    if found not in (pa.binary(), pa.large_binary()):
        raise ConfigurationError(
            f"the column {column!r} has the type {df.schema[column].dataType.simpleString()}",
            why="a message is bytes",
            do="pass the binary column as Spark's Kafka source has it, without a cast",
        )
    if on_error == "null" and reason in columns.names:
        raise ConfigurationError(f"the rows have a column {reason!r} already", do="rename or remove it")
    reader = deserializer.open()
    fields = [
        StructField(column, _spark_type(reader.type), True) if field.name == column else field
        for field in df.schema.fields
    ]
    if on_error == "null":
        fields.append(StructField(reason, StringType(), True))
    return map_in_arrow(
        columns.renamed(df), DeserializeFunction(reader, column, columns.names, on_error), StructType(fields)
    )


@dataclass(frozen=True)
class DeserializeFunction(PickledWithVersion):
    """Replaces the messages of a task by their values; for `mapInArrow`."""

    reader: OpenDeserializer
    column: str
    names: tuple[str, ...]
    """All columns of the rows, which have other names here."""
    on_error: OnError

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the values. Raises `SerializationError` for a message that cannot be read."""
        place = self.names.index(self.column)
        names = [*self.names, f"{self.column}_error"] if self.on_error == "null" else list(self.names)
        for batch in batches:
            values, errors = self.reader.column(batch.column(place))
            if errors and self.on_error == "fail":
                raise self._failure(batch, errors)
            arrays = batch.columns
            arrays[place] = values
            if self.on_error == "null":
                # The registry or a writer may have given a part of the text, also what no UTF-8 is.
                texts = {index: printable(reason) for index, reason in errors.items()}
                arrays.append(pa.array([texts.get(index) for index in range(len(values))], pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, names)

    def _failure(self, batch: pa.RecordBatch, errors: Mapping[int, str]) -> SerializationError:
        first = min(errors)
        place: dict[str, Any] = {
            name: batch.column(self.names.index(name))[first].as_py() for name in _POSITION if name in self.names
        }
        where = ", ".join(f"{name} {value}" for name, value in place.items())
        return SerializationError(
            f"a message in the column {self.column!r} cannot be read{f': {where}' if where else ''}",
            why=printable(errors[first]),
            do="check that the deserializer is the one for this column; to go on without such messages, pass"
            ' on_error="null" to get NULL and the reason in a column, and handle these rows there',
        )


def _spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type, in which all nested values may be NULL."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if pa.types.is_struct(kind):
        return StructType([StructField(field.name, _spark_type(field.type), True) for field in kind])
    if pa.types.is_map(kind):
        return MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_nested(kind):
        return ArrayType(_spark_type(kind.value_type))
    return from_arrow_type(kind, prefer_timestamp_ntz=True)
