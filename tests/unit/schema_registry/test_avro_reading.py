"""Avro values become columns as fastavro decodes and resolves them, whichever library decodes."""

from __future__ import annotations

import io
import json
import string
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError
from outfall.schema_registry.decoding.avro import AvroReader, AvroText, avro_reader
from outfall.schema_registry.decoding.avro_columns import check_defaults, column_type
from outfall.schema_registry.decoding.by_value import UnreadableTypeError

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
DOUBLES = st.floats(width=64, allow_nan=False)
SINGLES = st.floats(width=32, allow_nan=False)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(), "int": INTS, "long": LONGS, "float": SINGLES, "double": DOUBLES, "string": TEXTS,
}  # fmt: skip
HEAD = b"\0\xff\x80\x00\xff"
"""Of a message: an id whose bytes are no number of Avro."""
READ_AS = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
"""By type: the others that read it."""


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | more


class Case:
    """A writer's schema, a reader's schema that reads it, and values of the former."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._names = iter(f"N{number}" for number in range(1000))
        self.writer, self.reader, values = self._record("R", 0)
        self.values = draw(st.lists(values, max_size=6))

    def _record(self, name: str, depth: int) -> tuple[Any, Any, st.SearchStrategy[Any]]:
        written, read, values = [], [], {}
        for letter in string.ascii_lowercase[: self._draw(st.integers(1, 4))]:
            kind, wanted, some = self._type(depth)
            written.append(field(letter, kind))
            values[letter] = some
            if self._draw(st.integers(0, 3)):
                read.append(field(letter, wanted))
        if self._draw(st.booleans()) or not read:
            read.append(field("new", ["null", "long"], default=None))
            read.append(field("newer", "string", default="é"))
        return (
            record(*written, name=name),
            record(*self._draw(st.permutations(read)), name=name),
            st.fixed_dictionaries(values),
        )

    def _type(self, depth: int) -> tuple[Any, Any, st.SearchStrategy[Any]]:
        kinds = [*LEAVES, "enum", *(["array", "map", "record"] if depth < 2 else [])]
        kind = self._draw(st.sampled_from(kinds))
        if kind in LEAVES:
            made = kind, self._draw(st.sampled_from((kind, *READ_AS.get(kind, ())))), LEAVES[kind]
        elif kind == "enum":
            name, symbols = next(self._names), ["A", "B", "C"]
            enum = {"type": "enum", "name": name, "symbols": symbols}
            made = enum, enum | {"symbols": ["C", "B", "A", "D"]}, st.sampled_from(symbols)
        elif kind == "record":
            made = self._record(next(self._names), depth + 1)
        else:
            one, other, values = self._type(depth + 1)
            member = "items" if kind == "array" else "values"
            several = st.lists(values, max_size=3) if kind == "array" else st.dictionaries(TEXTS, values, max_size=3)
            made = {"type": kind, member: one}, {"type": kind, member: other}, several
        return self._nullable(*made)

    def _nullable(self, one: Any, other: Any, values: Any) -> tuple[Any, Any, st.SearchStrategy[Any]]:
        way = self._draw(st.integers(0, 4))
        if way == 0:
            return ["null", one], ["null", other], st.none() | values
        if way == 1:
            return [one, "null"], ["null", other], st.none() | values
        return one, ["null", other] if way == 2 else other, values


def encoded(schema: Any, values: list[Any]) -> list[bytes]:
    parsed, found = fastavro.parse_schema(schema), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        found.append(out.getvalue())
    return found


def text(schema: Any, *referenced: Any) -> AvroText:
    return AvroText(json.dumps(schema), tuple(json.dumps(each) for each in referenced))


def by_rows(column: pa.Array) -> list[Any]:
    return [plain(value) for value in column.to_pylist()]


def plain(value: Any) -> Any:
    """Return a value as fastavro has it: Arrow returns maps as pairs."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: plain(each) for name, each in value}
    return [plain(each) for each in value] if isinstance(value, list) else value


def alike(one: Any, other: Any) -> bool:
    """Compare the rows of a column and of fastavro, which has no type for an empty map, and floats of 64 bits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or pa.scalar(other, pa.float32()).as_py() == one
    return bool(one == other) or (one in ([], {}) and other in ([], {}))


@pytest.mark.thorough
@given(st.data())
def test_both_libraries_read_what_the_reference_reads(data: st.DataObject) -> None:
    check_reading(data)


@pytest.mark.thorough
@settings(max_examples=500, deadline=None)
@given(st.data())
def test_both_libraries_read_what_the_reference_reads_often(data: st.DataObject) -> None:
    check_reading(data)


def check_reading(data: st.DataObject) -> None:
    case = Case(data.draw)
    values, parsed = encoded(case.writer, case.values), fastavro.parse_schema(case.reader)
    expected = [
        fastavro.schemaless_reader(io.BytesIO(each), fastavro.parse_schema(case.writer), parsed) for each in values
    ]
    reader = AvroReader(text(case.writer), text(case.reader))
    assert reader.is_fast
    fast, errors = reader.column(values)
    assert errors == {}
    messages = [HEAD + each for each in values]
    assert reader.column(messages, len(HEAD)) == (fast, {}) == reader.by_value(messages, len(HEAD))
    slow, errors = reader.by_value(values)
    assert errors == {}
    assert fast.equals(slow)
    fast.validate(full=True)
    assert fast.type == column_type(text(case.reader).type())
    assert all(map(alike, by_rows(fast), expected))


LOGICAL = {
    "date": ({"type": "int", "logicalType": "date"}, date(1969, 12, 31), pa.date32()),
    "timestamp-millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        datetime(1969, 12, 31, 23, 59, 59, 123000, UTC),
        pa.timestamp("us", "UTC"),
    ),
    "timestamp-micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        pa.timestamp("us", "UTC"),
    ),
    "local-timestamp-millis": (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        datetime(2026, 1, 2, 3, 4, 5, 678000, UTC).replace(tzinfo=None),
        pa.timestamp("us"),
    ),
    "local-timestamp-micros": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        datetime(2026, 1, 2, 3, 4, 5, 678901, UTC).replace(tzinfo=None),
        pa.timestamp("us"),
    ),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        Decimal("-12345.67"),
        pa.decimal128(10, 2),
    ),
    "fixed decimal": (
        {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 0},
        Decimal(10**38 - 1),
        pa.decimal128(38, 0),
    ),
    "bytes": ("bytes", b"\0\xff", pa.binary()),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"\0\xff", pa.binary()),
}


@pytest.mark.parametrize("name", LOGICAL)
def test_a_logical_type_becomes_a_type_of_spark(name: str) -> None:
    kind, value, expected = LOGICAL[name]
    schema = record(field("x", ["null", kind]))
    column, errors = AvroReader(text(schema), text(schema)).column(encoded(schema, [{"x": value}, {"x": None}]))
    assert errors == {}
    assert column.type == pa.struct([("x", expected)])
    assert column.to_pylist() == [{"x": value}, {"x": None}]


PAIR = record(field("a", "int"), field("b", "string"))
VALUE = encoded(PAIR, [{"a": 1, "b": "x"}])[0]


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        (PAIR, VALUE[:-1]),
        (PAIR, b""),
        (PAIR, b"\x02\x02\xff"),
        (PAIR, b"\x80\x80\x80\x80\x20" + VALUE[1:]),  # an int of 33 bits
        (record(field("a", "int"), field("b", ["null", "string"])), b"\x02\x04\x02x"),
        (record(field("a", "int"), field("b", ["null", "string"])), b"\x02\x01\x02x"),
        (PAIR, b"\x02\x01"),
    ],
    ids=[
        "short",
        "empty",
        "not UTF-8",
        "int of a long",
        "branch that there is not",
        "branch before the first one",
        "negative length",
    ],
)
def test_a_value_that_cannot_be_read_is_alone_without_a_value(schema: Any, wrong: bytes) -> None:
    good = encoded(schema, [{"a": 1, "b": "x"}])[0]
    column, errors = AvroReader(text(schema), text(schema)).column([good, wrong, good])
    assert column.to_pylist() == [{"a": 1, "b": "x"}, None, {"a": 1, "b": "x"}]
    assert list(errors) == [1]


@pytest.mark.parametrize("kind", ["string", "bytes"], ids=["fast", "by value"])
def test_a_value_that_ends_early_is_an_error_also_where_nothing_is_read(kind: str) -> None:
    writer, reader = record(field("a", "int"), field("b", kind)), record(field("a", "int"))
    (value,) = encoded(writer, [{"a": 1, "b": "xyz" if kind == "string" else b"xyz"}])
    found = AvroReader(text(writer), text(reader))
    column, errors = found.column([value, *(value[:end] for end in range(len(value)))])
    assert column.to_pylist() == [{"a": 1}] + [None] * len(value)
    assert list(errors) == list(range(1, len(value) + 1))


FIXED, EMPTY = {"type": "fixed", "name": "F", "size": 2}, {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize("kept", [True, False], ids=["read", "skipped"])
@pytest.mark.parametrize("items", ["null", "boolean", "float", "double", "bytes", FIXED, EMPTY], ids=str)
def test_a_forged_number_of_items_keeps_no_task_busy(items: Any, kept: bool) -> None:
    array = field("b", {"type": "array", "items": items})
    # Bytes go no fast way.
    writer = record(field("a", "bytes"), array)
    readable = kept and items not in ("null", EMPTY)
    reader = record(field("a", "bytes"), array) if readable else record(field("a", "bytes"))
    blocks = [b"\x80" * 8 + b"\x20", b"\xff" * 8 + b"\x1f\x02"]
    values = [b"\x02x" + block + b"\0" for block in blocks]
    (good,) = encoded(writer, [{"a": b"x", "b": []}])
    column, errors = AvroReader(text(writer), text(reader)).column([good, *values])
    assert [each is None for each in column.to_pylist()] == [False, True, True]
    assert set(errors.values()) <= {
        "the bytes end before the value does", "its arrays have more than 100,000 items without bytes"
    }  # fmt: skip


def test_many_arrays_of_items_without_bytes_keep_no_task_busy() -> None:
    rows = record(*(field(f"f{number}", "null") for number in range(99)), name="Rows")
    writer = record(field("a", "bytes"), field("b", {"type": "array", "items": {"type": "array", "items": rows}}))
    inner = b"\xb0\x09\0"  # 600 items of 100 types
    values = [b"\x02x" + count + inner * (count[0] // 2) + b"\0" for count in (b"\x02", b"\x04")]
    column, errors = AvroReader(text(writer), text(record(field("a", "bytes")))).column(values)
    assert column.to_pylist() == [{"a": b"x"}, None]
    assert errors == {1: "its arrays have more than 100,000 items without bytes"}


def test_a_short_schema_of_any_number_of_types_is_refused() -> None:
    kind: Any = record(field("a", "int"), name="N0")
    for number in range(60):
        kind = record(field("a", kind), field("b", f"N{number}"), name=f"N{number + 1}")
    found = avro_reader(text(record(field("x", "int"), field("y", kind))), text(record(field("x", "int"))))
    assert isinstance(found, str)
    assert "more than 50,000 types" in found


def test_a_decimal_without_bytes_is_not_zero() -> None:
    schema = record(field("d", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}))
    column, errors = AvroReader(text(schema), text(schema)).column([b"\x02\x64", b"\0"])
    assert (column.to_pylist(), errors) == ([{"d": Decimal("1.00")}, None], {1: "a decimal has no bytes"})


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    kind: Any = "int"
    for number in range(260):
        kind = record(field("a", kind), name=f"N{number}")
    found = avro_reader(text(record(field("x", "int"), field("y", kind))), text(record(field("x", "int"))))
    assert isinstance(found, str)
    assert "nested too deeply" in found or "cannot be parsed" in found


def test_an_enum_has_no_symbol_before_the_first_one() -> None:
    schema = record(field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}), field("f", "bytes"))
    column, errors = AvroReader(text(schema), text(schema)).column([b"\x02\0", b"\x01\0", b"\x04\0"])
    assert column.to_pylist() == [{"e": "B", "f": b""}, None, None]
    assert errors == {1: "the enum has no position -1", 2: "the enum has no position 2"}


def test_a_union_of_many_types_has_none_before_the_first_one() -> None:
    writer = record(field("a", "int"), field("b", ["null", "string", "bytes"]))
    column, errors = AvroReader(text(writer), text(record(field("a", "int")))).column(
        [b"\x02\x02\x02x", b"\x02\x03\x02x"]
    )
    assert (column.to_pylist(), errors) == ([{"a": 1}, None], {1: "the union has no position -2"})


def test_what_the_readers_schema_lacks_is_an_error_of_the_row() -> None:
    writer = record(field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}), field("n", ["null", "int"]))
    reader = record(field("e", {"type": "enum", "name": "E", "symbols": ["A"]}), field("n", "int"))
    values = encoded(writer, [{"e": "A", "n": 1}, {"e": "B", "n": 1}, {"e": "A", "n": None}])
    column, errors = AvroReader(text(writer), text(reader)).column(values)
    assert column.to_pylist() == [{"e": "A", "n": 1}, None, None]
    assert list(errors) == [1, 2]


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (PAIR, record(field("c", "int")), "without c, which has no default"),
        (PAIR, record(field("a", "string")), "a was written as int"),
        (PAIR, record(field("a", "int"), name="Other"), "written as R, and the reader's schema has Other"),
        (
            record(field("t", {"type": "long", "logicalType": "timestamp-millis"})),
            record(field("t", {"type": "long", "logicalType": "timestamp-micros"})),
            "t was written as timestamp-millis, and the reader's schema has timestamp-micros",
        ),
        (
            record(field("t", {"type": "long", "logicalType": "timestamp-nanos"})),
            record(field("t", {"type": "long", "logicalType": "timestamp-micros"})),
            "t was written as timestamp-nanos",
        ),
        (
            record(field("t", ["null", "string", {"type": "long", "logicalType": "timestamp-millis"}])),
            record(field("t", {"type": "long", "logicalType": "timestamp-micros"})),
            "t was written as timestamp-millis",
        ),
        (
            record(field("t", {"type": "long", "logicalType": "timestamp-millis"}), field("next", ["null", "R"])),
            record(field("t", {"type": "long", "logicalType": "timestamp-micros"})),
            "t was written as timestamp-millis",
        ),
    ],
    ids=["no default", "type", "name", "unit", "nanoseconds", "unit in a union", "unit beside itself"],
)
def test_a_writer_whom_the_reader_would_misread_is_refused(writer: Any, reader: Any, reason: str) -> None:
    assert reason in str(avro_reader(text(writer), text(reader)))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(field("x", ["int", "string"])), "x is a union"),
        (record(field("x", "null")), "x is a null"),
        (record(field("x", ["null", "R"])), "contains itself"),
        (record(field("x", "Missing")), "Missing"),
        (record(field("x", "int", default="1")), "Default value"),
        (record(field("x", "bytes", default="\xff")), "the default of the field x"),
        (record(), "no fields"),
        ({"type": "record"}, "cannot be parsed"),
    ],
    ids=["union", "null", "recursive", "unknown", "default", "bytes", "empty", "invalid"],
)
def test_a_readers_schema_without_columns_is_refused(schema: Any, reason: str) -> None:
    def check() -> None:
        kind = text(schema).type()
        column_type(kind)
        check_defaults(kind)

    with pytest.raises((ConfigurationError, UnreadableTypeError), match=reason):
        check()


def test_references_and_namespaces_are_resolved() -> None:
    airport = {"type": "record", "name": "a.Airport", "fields": [field("code", "string")]}
    route = {
        "type": "record",
        "name": "Route",
        "namespace": "a",
        "fields": [field("x", "Airport"), field("y", "a.Airport")],
    }
    value = {"x": {"code": "JFK"}, "y": {"code": "LAX"}}
    names: dict[str, Any] = {}
    fastavro.parse_schema(airport, named_schemas=names)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(route, named_schemas=names), value)
    reader = AvroReader(text(route, airport), text(route, airport))
    assert reader.column([out.getvalue()])[0].to_pylist() == [value]
    assert reader.by_value([out.getvalue()])[0].to_pylist() == [value]


def test_a_writer_that_contains_itself_is_read_without_the_part_that_does() -> None:
    writer = record(field("a", "int"), field("next", ["null", "R"]))
    values = encoded(writer, [{"a": 1, "next": {"a": 2, "next": None}}])
    assert AvroReader(text(writer), text(record(field("a", "long")))).column(values)[0].to_pylist() == [{"a": 1}]


@pytest.mark.parametrize("union", [["null", "string"], ["string", "null"]])
def test_valid_messages_of_a_fast_schema_are_decoded_together(union: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the reference would hide that whole batches are given up, at 20 times the CPU time.
    monkeypatch.setattr(AvroReader, "by_value", lambda *_: pytest.fail("the batch was decoded one by one"))
    schema = text(record(field("a", union), field("b", "int")))
    rows = [{"a": "x", "b": 1}, {"a": None, "b": 2}]
    values = encoded(json.loads(schema.text), rows)
    for head in (b"", HEAD):
        column, errors = AvroReader(schema, schema).column([head + each for each in values], len(head))
        assert (column.to_pylist(), errors) == (rows, {})
