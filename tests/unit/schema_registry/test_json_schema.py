"""Rows as JSON messages: what a JSON schema shows of columns, and what it allows of values."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.schema_registry.encoding.json_schema import (
    JsonSchemaEncoder,
    JsonSchemaKeyEncoder,
    json_schema_of,
    json_schema_of_value,
)
from outfall.schema_registry.schemas import RegisteredSchema, Schema

HEAD = b"\0\0\0\0\7"


def registered(schema: Any) -> RegisteredSchema:
    return RegisteredSchema(7, Schema(json.dumps(schema), "JSON"))


def encoded(schema: Any, batch: pa.RecordBatch) -> list[Any]:
    messages = [bytes(one) for one in JsonSchemaEncoder(registered(schema), batch.schema).encode(batch).to_pylist()]
    assert all(message.startswith(HEAD) for message in messages)
    return [json.loads(message[5:]) for message in messages]


def test_the_derived_schema_is_a_closed_object_that_allows_the_rows() -> None:
    columns = {
        "id": pa.array([1, 2]), "price": pa.array([Decimal("1.50"), None]), "name": pa.array(["a", None]),
        "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "raw": pa.array([b"\xff", None]), "tags": pa.array([["x", None], []]),
        "counts": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "inner": pa.array([{"x": 1.5}, None]),
    }  # fmt: skip
    fields = [pa.field(name, array.type, name != "id") for name, array in columns.items()]
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))
    schema = json.loads(json_schema_of(batch.schema, "com.example.Row").text)
    assert (schema["title"], schema["required"], schema["additionalProperties"]) == ("com.example.Row", ["id"], False)
    rows = encoded(schema, batch)
    assert rows[1] == {"id": 2, "tags": []}
    for row in rows:
        jsonschema.Draft7Validator(schema).validate(row)


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "column", "message"),
    [
        (an_object(y={}) | {"additionalProperties": False, "title": "R"}, pa.array([1]), "the column 'x' is not in"),
        (an_object() | {"required": ["y"]}, pa.array([1]), "the property 'y' is required and has no column"),
        (an_object(x={"type": "string"}), pa.array([1]), "'x' of type bigint does not fit the JSON type string"),
        (an_object(x={"type": ["null", "integer"]}), pa.array([1.5]), "does not fit the JSON type integer or null"),
        (an_object(x={"oneOf": [{"type": "null"}, {"type": "integer"}]}), pa.array(["a"]), "integer or null"),
        (an_object(x=an_object(z={"type": "string"})), pa.array([{"z": 1}]), "column 'x.z'"),
        (an_object(x={"type": "array", "items": {"type": "string"}}), pa.array([[1]]), "column 'x.element'"),
        ({"type": "string"}, pa.array(["a"]), "is not that of an object"),
        (an_object(), pa.array([1], pa.duration("s")), "JSON does not support column 'x'"),
    ],
)
def test_a_column_that_does_not_fit_is_an_error_before_the_first_row(
    schema: Any, column: pa.Array, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        JsonSchemaEncoder(registered(schema), pa.schema([("x", column.type)]))


@pytest.mark.parametrize(
    ("schema", "column", "message"),
    [
        (an_object(x={}) | {"required": ["x"]}, pa.array([1, None]), "'x' is NULL, in row 1"),
        (an_object(x={"enum": ["a", 1]}), pa.array(["a", "b"]), "'x' is not in the enum, in row 1"),
        (an_object(x={"type": "number"}), pa.array([None, float("inf")]), "'x' is NaN or infinite, in row 1"),
        (an_object() | {"required": ["x"]}, pa.array([1, None]), "'x' is NULL, in row 1"),
        (an_object(x=an_object(z={}) | {"required": ["z"]}), pa.array([None, {"z": None}, {"z": 1}]), "'x.z' is NULL"),
        (
            an_object(x={"type": "array", "items": {"enum": ["a"]}}),
            pa.array([["a"], None, ["b"]]),
            "'x.element' is not",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused(schema: Any, column: pa.Array, message: str) -> None:
    with pytest.raises(ValueRefusedError, match=message):
        encoded(schema, pa.RecordBatch.from_pydict({"x": column}))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0], [float("nan")]]),
        pa.array([[("k", 1.0)], [("k", float("inf"))]], pa.map_(pa.string(), pa.float64())),
        pa.array([[{"f": 1.0}], [{"f": float("nan")}]]),
    ],
    ids=["array", "map", "structs"],
)
def test_nan_inside_of_a_value_is_refused_by_the_derived_schema_too(column: pa.Array) -> None:
    schema = json.loads(json_schema_of(pa.schema([("x", column.type)]), "R").text)
    batch = pa.RecordBatch.from_pydict({"x": column})
    assert len(encoded(schema, batch.slice(0, 1))) == 1
    with pytest.raises(ValueRefusedError, match="NaN or infinite"):
        encoded(schema, batch)


def test_what_a_schema_does_not_say_is_allowed() -> None:
    batch = pa.RecordBatch.from_pydict({"x": ["a", None], "y": [float("nan"), 1.0], "z": pa.array([1, 2], pa.int32())})
    schema = an_object(x={"$ref": "#/definitions/x"}, y={"type": ["string", "number"]}, z={"type": "number"})
    assert encoded(schema, batch) == [{"x": "a", "y": "NaN", "z": 1}, {"y": 1.0, "z": 2}]
    assert encoded({}, batch.select(["z"])) == [{"z": 1}, {"z": 2}]


def test_keys_are_values_of_their_own() -> None:
    column = pa.array(["ä", None])
    schema = json.loads(json_schema_of_value(pa.field("k", column.type), "Key").text)
    assert schema == {"title": "Key", "type": "string"}
    encoder = JsonSchemaKeyEncoder(registered(schema), pa.field("k", column.type))
    assert encoder.encode(column).to_pylist() == [HEAD + '"ä"'.encode(), None]
    with pytest.raises(ConfigurationError, match="JSON type integer"):
        JsonSchemaKeyEncoder(registered({"type": "integer"}), pa.field("k", column.type))
