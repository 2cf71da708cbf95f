"""Readers that count what a filter finds, and what it would find if they skipped nothing.

The second number is of the same reader's rows without a filter, judged by the reader's own comparisons: where the two
differ, the reader trusted a bound that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from pyiceberg import expressions as ice
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow
from pyiceberg.table import FileScanTask, Table
from pyspark.sql import DataFrame

from tests.integration.support.awkward import Filter
from tests.integration.support.duck import Duck

Counts = tuple[int, int]
"""The rows that a filter finds, and those that it should."""

_COMPARED = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def by_arrow(dataset: ds.Dataset, filters: Sequence[Filter]) -> list[Counts]:
    table = dataset.to_table()
    conditions = map(arrow_condition, filters)
    return [(dataset.to_table(columns=[], filter=each).num_rows, table.filter(each).num_rows) for each in conditions]


def arrow_condition(given: Filter) -> pc.Expression:
    """Return a filter of pyarrow."""
    column = pc.field(*given.path)
    if given.operator == "is null":
        return column.is_null()
    if given.operator == "is not null":
        return column.is_valid()
    if given.operator == "is nan":
        return pc.is_nan(column)
    values = pa.array(given.values, given.kind)
    return column.isin(values) if given.operator == "in" else _COMPARED[given.operator](column, values[0])


_ICEBERG: dict[str, Callable[..., Any]] = {
    "=": ice.EqualTo, "!=": ice.NotEqualTo, "<": ice.LessThan, "<=": ice.LessThanOrEqual, ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual, "in": ice.In, "is null": ice.IsNull, "is not null": ice.NotNull, "is nan": ice.IsNaN,
}  # fmt: skip


def by_pyiceberg(table: Table, filters: Sequence[Filter]) -> list[Counts]:
    # Each scan opens each file; so most filters only ask which files it would open.
    rows = {task.file.file_path: _read(table, task) for task in table.scan().plan_files()}
    found = []
    for number, each in enumerate(filters):
        condition = iceberg_condition(each)
        judged = expression_to_pyarrow(bind(table.schema(), condition, True), table.schema())
        scan = table.scan(row_filter=condition, selected_fields=("number",))
        if number % 25 == 0:
            counted = scan.to_arrow().num_rows
        else:
            counted = sum(rows[task.file.file_path].filter(judged).num_rows for task in scan.plan_files())
        found.append((counted, sum(some.filter(judged).num_rows for some in rows.values())))
    return found


def _read(table: Table, task: FileScanTask) -> pa.Table:
    return ArrowScan(table.metadata, table.io, table.schema(), ice.AlwaysTrue()).to_table([task])


def iceberg_condition(given: Filter) -> Any:
    """Return a filter of pyiceberg."""
    values = [str(value) if pa.types.is_time(given.kind) else value for value in given.values]
    arguments: list[Any] = [values] if given.operator == "in" else values
    return _ICEBERG[given.operator](".".join(given.path), *arguments)


def by_duck(duck: Duck, scan: str, filters: Sequence[Filter]) -> list[Counts]:
    duck.query("SET TimeZone = 'UTC'")
    duck.query(f"CREATE OR REPLACE TEMP TABLE unfiltered AS SELECT * FROM {scan}")
    conditions = [sql_condition(each, duck_literal, "isnan") for each in filters]
    return list(_pruned_and_not(lambda text: duck.query(text)[0], scan, "unfiltered", conditions))


def by_datafusion(table: DeltaTable, filters: Sequence[Filter]) -> list[Counts]:
    builder = QueryBuilder().register("t", table)

    def query(text: str) -> Sequence[Any]:
        return list(pa.table(builder.execute(text).read_all()).to_pylist()[0].values())

    return list(
        _pruned_and_not(query, "t", "t", [sql_condition(each, datafusion_literal, "isnan") for each in filters])
    )


def _some(conditions: Sequence[str], number: int) -> Iterator[Sequence[str]]:
    return (conditions[start : start + number] for start in range(0, len(conditions), number))


def _pruned_and_not(
    query: Callable[[str], Sequence[Any]], scan: str, rows: str, conditions: Sequence[str]
) -> Iterator[Counts]:
    for some in _some(conditions, 100):
        # A condition in the result skips nothing.
        summed = ", ".join(f"sum(CASE WHEN {each} THEN 1 ELSE 0 END) AS c{at}" for at, each in enumerate(some))
        for each, wanted in zip(some, query(f"SELECT {summed} FROM {rows}"), strict=True):
            yield int(query(f"SELECT count(*) AS c FROM {scan} WHERE {each}")[0]), int(wanted)


def by_spark(rows: DataFrame, filters: Sequence[Filter]) -> list[Counts]:
    conditions = [sql_condition(each, spark_literal, "isnan", quote="`") for each in filters]
    found: list[Counts] = []
    for some in _some(conditions, 50):
        wanted = rows.selectExpr(*(f"sum(CASE WHEN {each} THEN 1 ELSE 0 END)" for each in some)).first()
        matching = (rows.where(each).selectExpr(f"{at} AS at") for at, each in enumerate(some))
        counted = reduce(DataFrame.unionAll, matching).groupBy("at").count().collect()
        by_number = {row["at"]: row["count"] for row in counted}
        assert wanted is not None
        found += [(by_number.get(at, 0), int(each)) for at, each in enumerate(wanted)]
    return found


def sql_condition(given: Filter, literal: Callable[[Any, pa.DataType], str], nan: str, quote: str = '"') -> str:
    """Return a filter in SQL."""
    column = ".".join(f"{quote}{name}{quote}" for name in given.path)
    values = [literal(value, given.kind) for value in given.values]
    if given.operator == "is nan":
        return f"{nan}({column})"
    if given.operator == "in":
        return f"{column} IN ({', '.join(values)})"
    return " ".join([column, given.operator.upper(), *values])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))
    return f"{value:f}" if hasattr(value, "scaleb") else str(value)


_DUCK = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER", pa.uint64(): "UBIGINT", pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.date32(): "DATE", pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ", pa.timestamp("ms"): "TIMESTAMP", pa.time64("us"): "TIME",
}  # fmt: skip


def duck_literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    if isinstance(value, str):
        return " || ".join(f"'{part}'" for part in value.split("\0")).replace(" || ", " || chr(0) || ")
    return f"CAST('{_text(value)}' AS {_DUCK.get(_in_utc(kind)) or _decimal(kind)})"


def _in_utc(kind: Any) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _decimal(kind: Any) -> str:
    return f"DECIMAL({kind.precision}, {kind.scale})"


_SPARK = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT", pa.uint8(): "SMALLINT",
    pa.uint16(): "INT", pa.uint32(): "BIGINT", pa.uint64(): "DECIMAL(20, 0)", pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.date32(): "DATE", pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.timestamp("us", "UTC"): "TIMESTAMP", pa.timestamp("ms"): "TIMESTAMP_NTZ",
}  # fmt: skip


def spark_literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    return f"CAST('{_text(value)}' AS {_SPARK.get(_in_utc(kind)) or _decimal(kind)})"


_DATAFUSION = {
    pa.int8(): "Int8", pa.int16(): "Int16", pa.int32(): "Int32", pa.int64(): "Int64", pa.float32(): "Float32",
    pa.float64(): "Float64", pa.bool_(): "Boolean", pa.date32(): "Date32",
    pa.timestamp("us"): "Timestamp(Microsecond, None)", pa.timestamp("ms"): "Timestamp(Microsecond, None)",
    pa.timestamp("us", "UTC"): 'Timestamp(Microsecond, Some("UTC"))',
}  # fmt: skip


def datafusion_literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, float):
        value = {"Infinity": "inf", "-Infinity": "-inf"}.get(_text(value), value)
    name = _DATAFUSION.get(kind) or f"Decimal128({kind.precision}, {kind.scale})"
    return f"arrow_cast('{_text(value)}', '{name}')"
