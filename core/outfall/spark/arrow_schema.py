"""Which Arrow types the rows of a DataFrame arrive in."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from outfall.capabilities import SupportsPreWriteTopology, SupportsSchemaCheck
from outfall.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def check_schema(sink: Any, schema: StructType) -> None:
    """Let a sink refuse columns that it cannot write, before any data moves.

    A sink that changes the DataFrame itself is left to find out in its tasks.

    Raises:
        ConfigurationError: a column has a type that the sink, or Arrow, does not carry.
    """
    if isinstance(sink, SupportsSchemaCheck) and not isinstance(sink, SupportsPreWriteTopology):
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
