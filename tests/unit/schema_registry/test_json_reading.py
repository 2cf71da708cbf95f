"""JSON becomes columns by the types of a JSON Schema; what it does not allow is an error of the value."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from outfall.schema_registry.decoding.by_value import UnreadableTypeError
from outfall.schema_registry.decoding.json_schema import JsonReader
from outfall.schema_registry.schemas import Schema, WholeSchema

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def reader(schema: Any, **others: Any) -> JsonReader:
    referenced = tuple((name, Schema(json.dumps(each), "JSON")) for name, each in others.items())
    return JsonReader(WholeSchema(Schema(json.dumps(schema), "JSON"), referenced))


def record(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "text", "kind", "value"),
    [
        ({"type": "boolean"}, "true", pa.bool_(), True),
        (INTEGER, "-9223372036854775808", pa.int64(), -(2**63)),
        (INTEGER, "1e3", pa.int64(), 1000),
        ({"type": "number"}, "1", pa.float64(), 1.0),
        (TEXT, r'"\u00e9"', pa.string(), "é"),
        ({"enum": ["A", "B"]}, '"B"', pa.string(), "B"),
        ({"type": ["null", "integer"]}, "null", pa.int64(), None),
        ({"anyOf": [{"type": "null"}, INTEGER]}, "null", pa.int64(), None),
        ({"type": "array", "items": record(x=TEXT)}, '[{"x": "a"}, {}]', pa.list_(pa.struct([("x", pa.string())])),
         [{"x": "a"}, {"x": None}]),
        ({"type": "object", "additionalProperties": INTEGER}, '{"b": 1, "a": 2}', pa.map_(pa.string(), pa.int64()),
         [("b", 1), ("a", 2)]),
        (record(x=INTEGER, y=TEXT), ' {"z": 1, "x": null} ', pa.struct([("x", pa.int64()), ("y", pa.string())]),
         {"x": None, "y": None}),
    ],
)  # fmt: skip
def test_a_value_becomes_one_of_the_schemas_type(schema: Any, text: str, kind: Any, value: Any) -> None:
    found = reader(schema)
    assert found.type == kind
    column, errors = found.column([text.encode()])
    assert (column.to_pylist(), column.type, errors) == ([value], kind, {})


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        (INTEGER, "1.5", "the value is a number, and the reader's schema has an integer"),
        (INTEGER, "true", "the value is a boolean, and the reader's schema has an integer"),
        (INTEGER, "9223372036854775808", "the value is larger than a bigint"),
        (INTEGER, "9007199254740993.0", "the value is an integer with a fraction or an exponent, beyond 2^53"),
        ({"type": "number"}, "1e999", "the value is larger than a double"),
        ({"type": "number"}, "NaN", "it is not JSON: NaN is no number of JSON"),
        ({"type": "number"}, "1" + "0" * 400, "the value is larger than a double"),
        (TEXT, "null", "the value is null, which the reader's schema does not allow"),
        (TEXT, "", "it is not JSON: Expecting value"),
        (TEXT, "[" * 100_000, "it is not JSON: it is nested too deeply"),
        ({"enum": ["A"]}, '"B"', "the value is not in the enum of the reader's schema"),
        (record(("x",), x=INTEGER), "{}", "x is absent, and the reader's schema requires it"),
        (record(("x",), x=INTEGER), '{"x": null}', "x is null, and the reader's schema requires it"),
        (record(x=record(y=INTEGER)), '{"x": {"y": "1"}}', "x.y is a string, and the reader's schema has an integer"),
        (record(x={"type": "array", "items": INTEGER}), '{"x": [1, null]}', "x[] is null"),
        (record(x=TEXT), '[{"x": "a"}]', "the value is an array, and the reader's schema has an object"),
        (TEXT, r'"\ud800"', "UnicodeEncodeError"),
    ],
)
def test_a_value_that_does_not_fit_is_alone_without_one(schema: Any, text: str, reason: str) -> None:
    column, errors = reader(schema).column([text.encode(), text.encode()])
    assert column.null_count == 2
    assert errors[0].startswith(reason)
    assert errors[0] == errors[1]


def test_values_that_are_not_utf8_or_follow_wrong_ones() -> None:
    column, errors = reader(TEXT).column([b'"a"', b'"\xff"', b'"b"'])
    assert (column.to_pylist(), errors) == (["a", None, "b"], {1: "it is not UTF-8"})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({}, "the schema may be anything"),
        (record(x=True), "x may be anything"),
        (record(x={"type": ["string", "integer"]}), "x may be integer or string"),
        (record(x={"oneOf": [TEXT, INTEGER]}), "x is oneOf of 2 schemas"),
        ({"allOf": [record(x=TEXT)], "properties": {"y": TEXT}}, "the schema has properties beside allOf"),
        (record(x={"type": "array"}), r"x\[\] may be anything"),
        (record(x={"type": "object"}), "x is an object without properties"),
        (record(x={"$ref": "#/definitions/no"}), "x refers to #/definitions/no, which there is not"),
        (record(x={"$ref": "other.json"}), "x refers to other.json"),
        (record(x={"$ref": "#"}), "x.x contains itself"),
        (record(x={"type": "text"}), "unknown type text"),
    ],
)
def test_a_schema_without_columns_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(UnreadableTypeError, match=reason):
        reader(schema)


def test_references_lead_into_other_schemas_and_on_from_there() -> None:
    first = {"properties": {"x": {"$ref": "b.json#/$defs/n"}, "y": {"$ref": "#/$defs/t"}}, "$defs": {"t": TEXT}}
    found = reader(record(a={"$ref": "a.json"}), **{"a.json": first, "b.json": {"$defs": {"n": INTEGER}}})
    assert found.column([b'{"a": {"x": 1, "y": "z"}}'])[0].to_pylist() == [{"a": {"x": 1, "y": "z"}}]
