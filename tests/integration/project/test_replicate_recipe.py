"""The recipe for a whole database is followed to the letter."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from outfall.recovery import history
from tests.integration.project.test_recipes import dsn, put, recorded, select, warehouse
from tests.integration.support.recipe import Recipe

__all__ = ["dsn"]

KEYS = """SELECT conrelid::regclass::text, attname FROM pg_constraint JOIN pg_attribute ON attrelid = conrelid
AND attnum = ANY (conkey) WHERE contype = 'p' AND connamespace = 'replica'::regnamespace ORDER BY 1"""

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def of_orders(operation: str, number: int, customer: int | None, total: str | None, offset: int) -> dict[str, Any]:
    """A record like those of customers, of another table in another topic."""
    found = recorded((operation, number, None, offset))
    value = json.loads(found["value"])
    row = {"id": number, "customer": customer, "total": total}
    value["before" if operation == "d" else "after"] = row
    value["source"]["table"] = "orders"
    return found | {"value": json.dumps(value), "topic": "shop.public.orders"}


def test_replicating_a_database(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    recipe = Recipe("replicate-a-database.md", tmp_path, warehouse(dsn))
    source = tmp_path / "in" / "records"
    recipe.follow("The tables")
    columns = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"
    recipe.names["order"] = {"shop.public.customers": 1, "shop.public.orders": 2}
    orders = [of_orders("c", 7, 1, "12.50", 0), of_orders("c", 8, 1, "3.00", 1)]
    put(source, "0.json", *orders, recorded(("c", 1, "Oslo", 0)), recorded(("c", 2, "Rome", 1)))
    recipe.names["records"] = spark.readStream.schema(columns).json(str(source))
    recipe.follow("Code")
    # Offsets of topics are not compared with each other, and a late change of an older one changes nothing.
    put(source, "1.json", of_orders("d", 8, None, None, 2), recorded(("u", 1, "Bergen", 3)), recorded(("u", 1, "x", 2)))
    recipe.follow("Code")
    recipe.follow("Result")
    assert select(dsn, "SELECT id, city FROM customers ORDER BY id") == [(1, "Bergen"), (2, "Rome")]
    assert [epoch.tables for epoch in history(f"{tmp_path}/chk/shop")] == [
        {"customers": 2, "orders": 2}, {"customers": 2, "orders": 1}
    ]  # fmt: skip
    known = tmp_path / "in" / "known"
    put(
        known,
        "0.json",
        with_schema(of_orders("c", 7, 1, "12.50", 0), id="int64", customer="int64", total="string"),
        with_schema(recorded(("c", 1, "Oslo", 0)), id="int64", city="string"),
    )
    recipe.names["known"] = spark.read.schema(columns).json(str(known))
    recipe.names["records"] = spark.readStream.schema(columns).json(str(known))
    recipe.follow("Let the sink create the tables")
    assert select(dsn, "SELECT id, customer, total, seq FROM replica.orders") == [
        (7, 1, Decimal("12.50"), Decimal(2 * 10**28))
    ]
    assert select(dsn, "SELECT id, city, seq FROM replica.customers") == [(1, "Oslo", Decimal(10**28))]
    assert select(dsn, KEYS) == [("replica.customers", "id"), ("replica.orders", "id")]
    recipe.follow("Into a lake")
    lake = {name: DeltaTable(str(tmp_path / "lake" / f"public.{name}")) for name in ("customers", "orders")}
    assert lake["customers"].to_pyarrow_table().to_pylist() == [
        {"id": 1, "city": "Oslo", "seq": Decimal(10**28), "deleted": False}
    ]
    assert [field.name for field in lake["orders"].schema().fields] == ["id", "customer", "total", "seq", "deleted"]
    recipe.check_all_was_tried()


def with_schema(record: dict[str, Any], **kinds: str) -> dict[str, Any]:
    """Return a record as a converter with schemas writes it."""
    fields = [{"field": name, "type": kind, "optional": True} for name, kind in kinds.items()]
    for field in fields:
        if field["field"] == "total":
            source = "__debezium.source.column."
            field["parameters"] = {f"{source}type": "NUMERIC", f"{source}length": "10", f"{source}scale": "2"}
    rows = [{"field": part, "type": "struct", "fields": fields} for part in ("before", "after")]
    value = {"schema": {"type": "struct", "fields": rows}, "payload": json.loads(record["value"])}
    return record | {"value": json.dumps(value)}
