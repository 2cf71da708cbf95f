"""The last step by which a lake's table is made like its source again, as the page about change data has it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from outfall.testing import MemoryRecoveryConfig
from tests.documents import RECIPES
from tests.integration.support.batch_driver import BatchDriver
from tests.integration.support.recipe import sections

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("seq", pa.decimal128(38, 0)), ("deleted", pa.bool_())])
UPSERT: dict[str, Any] = {
    "write_mode": "upsert", "key_columns": "id", "order_column": "seq", "create_table": "if_missing",
}  # fmt: skip
BLOCKS = [
    block.text
    for block in sections((RECIPES / "cdc.md").read_text())["Make the table like the source again"]
    if block.language == "python"
]


def delta(home: Path) -> tuple[DeltaSink, Callable[[], pa.Table]]:
    path = str(home / "tables" / "customers")
    return DeltaSink(path, **UPSERT), lambda: pa.table(DeltaTable(path).to_pyarrow_table())


def iceberg(home: Path) -> tuple[IcebergSink, Callable[[], pa.Table]]:
    options = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
    load_catalog("default", **options).create_namespace("db")
    sink = IcebergSink("db.customers", catalog_options=options, partition_by="bucket(16, id)", **UPSERT)
    return sink, lambda: load_catalog("default", **options).load_table("db.customers").scan().to_arrow()


def changes(*rows: tuple[int, int, int, bool]) -> pa.RecordBatch:
    """Changes by key, generation, offset, and whether they delete."""
    made = [
        {"id": key, "city": str(offset), "seq": Decimal(generation * 10**28 + offset * 10**9), "deleted": deleted}
        for key, generation, offset, deleted in rows
    ]
    return pa.RecordBatch.from_pylist(made, SCHEMA)


@pytest.mark.parametrize(("make", "block"), [(delta, 0), pytest.param(iceberg, 1, marks=pytest.mark.thorough)])
def test_rows_that_the_source_has_no_more_are_deleted(
    make: Callable[[Path], tuple[Any, Callable[[], pa.Table]]], block: int, tmp_path: Path
) -> None:
    sink, table = make(tmp_path)
    driver = BatchDriver(sink, MemoryRecoveryConfig())
    driver.write(0, changes((1, 1, 0, False), (2, 1, 1, False), (3, 1, 2, False)))
    driver.write(1, changes((1, 2, 3, False), (2, 2, 4, False)))  # the snapshot, without 3
    exec(BLOCKS[block].replace("/data/", f"{tmp_path}/"), {})
    driver.write(2, changes((3, 1, 1, False), (1, 2, 5, False)))  # one comes late
    found = {row["id"]: (row["city"], row["deleted"]) for row in table().to_pylist()}
    assert found == {1: ("5", False), 2: ("4", False), 3: ("2", True)}
