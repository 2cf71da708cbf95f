"""Rows with a key, an order and a mark of removal, for tables of both formats that are merged into."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.integration.support.batch_driver import BatchDriver
from tests.integration.support.delta_epochs import Shore
from tests.integration.support.iceberg_epochs import Lake

Place = Shore | Lake

COLUMNS = {"id": "long", "part": "string", "seq": "long", "text": "string"}
SCHEMA = pa.schema(
    [("id", pa.int64()), ("part", pa.string()), ("seq", pa.int64()), ("text", pa.string()), ("gone", pa.bool_())]
)

Row = dict[str, Any]

UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id", "order_column": "seq", "delete_marker": "gone"}


def rows(*given: Row) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"part": "a", **row} for row in given], schema=SCHEMA)


def row(number: int, seq: int | None = 1, part: str | None = "a", gone: bool | None = None, text: str = "") -> Row:
    return {"id": number, "seq": seq, "part": part, "gone": gone, "text": text or f"t{number}"}


def upserting(place: Place, recovery: str | None = None, **options: Any) -> BatchDriver:
    return place.driver(recovery, **{**UPSERT, **options})
