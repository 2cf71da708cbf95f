"""Protobuf by `.proto` text: columns become messages and messages columns, with all that Protobuf has for types."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, TransientError, ValueRefusedError
from outfall.schema_registry.decoding.by_value import UnreadableTypeError
from outfall.schema_registry.decoding.protobuf import ProtobufDecoder, protobuf_decoder, protobuf_reader
from outfall.schema_registry.encoding.protobuf import ProtobufEncoder, ProtobufKeyEncoder
from outfall.schema_registry.protobuf_schema import compiled, message_class, protobuf_of
from outfall.schema_registry.schemas import RegisteredSchema, Schema, WholeSchema
from outfall.schema_registry.wire import HEAD_SIZE, index_bytes, message_indexes

ALL = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "shared/place.proto";

message All {
  bool a = 1; int32 b = 2; sint32 c = 3; sfixed32 d = 4; uint32 e = 5; fixed32 f = 6;
  int64 g = 7; sint64 h = 8; sfixed64 i = 9; uint64 j = 10; fixed64 k = 11;
  float l = 12; double m = 13; string n = 14; bytes o = 15;
  enum Color { NONE = 0; RED = 5; }
  message Inner { optional int32 x = 1; repeated string y = 2; }
  Color p = 16; Inner q = 17; repeated int64 r = 18; map<string, Inner> s = 19; map<int32, double> t = 20;
  google.protobuf.Timestamp u = 21; google.protobuf.Duration v = 22; google.protobuf.Int64Value w = 23;
  other.Place x = 24; repeated Inner y = 25; optional int32 z = 26;
  oneof choice { string first = 27; int32 second = 28; }
}
"""
PLACE = """
syntax = "proto2"; package other;
message Place { required string code = 1; optional int32 level = 2 [default = 7]; }
"""
ROW: dict[str, Any] = {
    "a": True, "b": -(2**31), "c": -1, "d": 2**31 - 1, "e": 2**32 - 1, "f": 2**32 - 1, "g": -(2**63), "h": -1,
    "i": 2**63 - 1, "j": Decimal(2**64 - 1), "k": Decimal(0), "l": 0.5, "m": 0.1, "n": "é😀", "o": b"\0\xff",
    "p": "RED", "q": {"x": 0, "y": ["a", ""]}, "r": [1, -1], "s": [("k", {"x": None, "y": []})], "t": [(-1, 0.5)],
    "u": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "v": timedelta(microseconds=-1_500_000), "w": 0,
    "x": {"code": "JFK", "level": 7}, "y": [{"x": 1, "y": []}], "z": None, "first": None, "second": 0,
}  # fmt: skip


def whole(text: str, **referenced: str) -> WholeSchema:
    return WholeSchema(
        Schema(text, "PROTOBUF"),
        tuple((f"shared/{name}.proto", Schema(each, "PROTOBUF")) for name, each in referenced.items()),
    )


def proto3(body: str) -> str:
    return f'syntax = "proto3"; {body}'


def encoder(text: str, columns: pa.Schema, **more: Any) -> ProtobufEncoder:
    found = whole(text, **more.pop("referenced", {}))
    return ProtobufEncoder(RegisteredSchema(1, found.schema), dict(found.referenced), columns, **more)


def batch(columns: pa.Schema, *rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=columns)


def encoded(text: str, columns: pa.Schema, *rows: dict[str, Any], **more: Any) -> list[bytes]:
    """Messages without the head."""
    found = encoder(text, columns, **more).encode(batch(columns, *rows))
    return [each[HEAD_SIZE:] for each in found.to_pylist()]


def decoder(writer: WholeSchema, reader: WholeSchema | None = None, message: str | None = None) -> ProtobufDecoder:
    found = protobuf_decoder(writer, protobuf_reader(reader or writer, message))
    assert isinstance(found, ProtobufDecoder), found
    return found


def test_every_type_comes_back_as_it_was_written() -> None:
    schema = whole(ALL, place=PLACE)
    kind = protobuf_reader(schema, None).type
    assert kind.field("j").type == pa.decimal128(20, 0)
    values = encoded(ALL, pa.schema(list(kind)), ROW, referenced={"place": PLACE})
    column, errors = decoder(schema).column(values)
    assert (column.to_pylist(), errors, column.type) == ([ROW], {}, kind)


def test_what_is_absent_is_null_only_where_protobuf_knows_it() -> None:
    column, errors = decoder(whole(ALL, place=PLACE)).column([b"\0"])
    assert errors == {}
    assert column.to_pylist() == [
        {"a": False, "b": 0, "c": 0, "d": 0, "e": 0, "f": 0, "g": 0, "h": 0, "i": 0, "j": 0, "k": 0, "l": 0.0, "m": 0.0,
         "n": "", "o": b"", "p": "NONE", "q": None, "r": [], "s": [], "t": [], "u": None, "v": None, "w": None,
         "x": None, "y": [], "z": None, "first": None, "second": None}
    ]  # fmt: skip


def test_messages_that_contain_themselves_are_json() -> None:
    text = proto3('import "google/protobuf/struct.proto"; message M { google.protobuf.Struct s = 1; }')
    made = message_class(compiled(whole(text)).message(None))()
    made.s.update({"a": [1, None]})
    column, errors = decoder(whole(text)).column([b"\0" + made.SerializeToString()])
    assert (column.to_pylist(), errors) == ([{"s": '{"a": [1.0, null]}'}], {})


TWO = proto3("message A { map<string, int32> m = 1; message B { int32 x = 1; } } message C { int32 x = 1; }")


@pytest.mark.parametrize(
    ("indexes", "data"),
    [([0], b"\0"), ([1], b"\2\2"), ([0, 1], b"\4\0\2"), ([300, 2], b"\4\xd8\4\4")],
    ids=str,
)
def test_the_positions_of_a_message_are_zigzag_numbers(indexes: list[int], data: bytes) -> None:
    assert index_bytes(indexes) == data
    assert message_indexes(data + b"x") == (tuple(indexes), len(data))


def test_a_message_is_known_by_its_positions() -> None:
    reader = decoder(whole(TWO), message="C")
    values = [b"\2\2" + b"\x08\1", b"\0" + b"\x08\1", b"\2\4", b"\2", b"\1", b"\2\2\x08", b"\2\2\xff"]
    column, errors = reader.column(values)
    assert column.to_pylist() == [{"x": 1}] + [None] * 6
    assert errors[1] == "its message is A, and the reader's is C"
    assert errors[2] == "its message is none of the schema, and the reader's is C"
    assert errors[3] == "the positions of the message end early"
    assert errors[4] == "the message is at -1 positions"
    assert errors[5].startswith("it is no message of Protobuf")


def test_clients_that_count_the_entries_of_maps_and_those_that_do_not_are_understood() -> None:
    reader = decoder(whole(TWO), message="A.B")
    column, errors = reader.column([b"\4\0\0\x08\1", b"\4\0\2\x08\1"])
    assert (column.to_pylist(), errors) == ([{"x": 1}] * 2, {})
    with pytest.raises(ConfigurationError, match=r"would not agree on the position of the message A\.B"):
        encoder(TWO, pa.schema([("x", pa.int32())]), message="A.B")
    assert encoded(TWO, pa.schema([("x", pa.int32())]), {"x": 1}, message="C") == [b"\2\2\x08\1"]


def test_proto2_knows_required_fields_and_defaults() -> None:
    reader = decoder(whole(PLACE))
    column, errors = reader.column([b"\0", b"\0\n\1x", b"\0\n\1x\x10\1"])
    assert column.to_pylist() == [None, {"code": "x", "level": 7}, {"code": "x", "level": 1}]
    assert errors == {0: "it lacks code"}
    columns = pa.schema([("code", pa.string()), ("level", pa.int64())])
    with pytest.raises(ValueRefusedError, match="'code' is NULL, in row 1"):
        encoded(PLACE, columns, {"code": "x", "level": None}, {"code": None, "level": 1})
    with pytest.raises(ConfigurationError, match=r"'code' of the message other\.Place is required"):
        encoder(PLACE, pa.schema([("level", pa.int64())]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("field", "kind", "value", "text"),
    [
        ("int32 x = 1;", pa.int64(), 2**31, "'x' is out of the range of the schema, in row 1"),
        ("uint32 x = 1;", pa.int64(), -1, "'x' is out of the range"),
        ("uint64 x = 1;", pa.decimal128(20, 0), Decimal(2**64), "'x' is out of the range"),
        ("int32 x = 1;", pa.int32(), None, "'x' is NULL, in row 1"),
        ("repeated int32 x = 1;", pa.list_(pa.int32()), None, "'x' is NULL, in row 1"),
        ("repeated int32 x = 1;", pa.list_(pa.int32()), [1, None], "'x.element' is NULL"),
        ("map<string, int32> x = 1;", pa.map_(pa.string(), pa.int32()), [("a", None)], "'x.value' is NULL"),
        ("enum E { A = 0; } optional E x = 1;", pa.string(), "B", "'x' is no symbol of the enum M.E"),
        ("message I { int32 y = 1; } I x = 1;", pa.struct([("y", pa.int32())]), {"y": None}, "'x.y' is NULL"),
        ("optional string x = 1;", pa.binary(), b"\xff", "not UTF-8, in row 1"),
        ("google.protobuf.Timestamp x = 1;", pa.timestamp("us", "UTC"), -(2**62), "'x' is outside of the years"),
        ("google.protobuf.Duration x = 1;", pa.duration("us"), 2**62, "'x' is longer than"),
    ],
    ids=str,
)
def test_a_value_that_the_schema_does_not_allow_is_refused(field: str, kind: Any, value: Any, text: str) -> None:
    imports = "".join(f'import "google/protobuf/{name}.proto"; ' for name in ("timestamp", "duration"))
    declared = pa.string() if kind == pa.binary() else kind
    good = {"M.E": "A"}.get(text[-3:], _some(kind))
    column = pa.array([good, value], kind)
    if declared != kind:
        column = pa.Array.from_buffers(declared, 2, column.buffers())
    made = encoder(proto3(f"{imports} message M {{ {field} }}"), pa.schema([("x", declared)]))
    with pytest.raises(ValueRefusedError, match=text):
        made.encode(pa.RecordBatch.from_arrays([column], names=["x"]))


def _some(kind: Any) -> Any:
    """A value that fits everywhere."""
    if pa.types.is_struct(kind):
        return {"y": 1}
    if pa.types.is_decimal(kind):
        return Decimal(1)
    return b"a" if kind == pa.binary() else [] if pa.types.is_nested(kind) else "A" if kind == pa.string() else 1


def test_only_one_field_of_a_oneof_has_a_value() -> None:
    text = proto3("message M { oneof c { string a = 1; int32 b = 2; } }")
    columns = pa.schema([("a", pa.string()), ("b", pa.int32())])
    rows: list[dict[str, Any]] = [{"a": "x", "b": None}, {"a": None, "b": 0}, {"a": None, "b": None}]
    assert decoder(whole(text)).column(encoded(text, columns, *rows))[0].to_pylist() == rows
    with pytest.raises(ValueRefusedError, match="several of a, b, which are a oneof, in row 1"):
        encoded(text, columns, rows[0], {"a": "x", "b": 1})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("field", "column", "text"),
    [
        ("int32 y = 1;", pa.field("x", pa.int32()), "the column 'x' is not in the schema"),
        ("int32 x = 1;", pa.field("x", pa.string()), "'x' of type string does not fit the Protobuf type int32 of M.x"),
        ("repeated int32 x = 1;", pa.field("x", pa.int32()), "does not fit the Protobuf type repeated of M.x"),
        ("map<string, int32> x = 1;", pa.field("x", pa.string()), "Protobuf type map"),
        ("message I {} I x = 1;", pa.field("x", pa.string()), r"Protobuf type M\.I"),
        ("message I {} I x = 1;", pa.field("x", pa.struct([("y", pa.int32())])), "'y' of 'x' is not in the schema"),
        ("google.protobuf.Timestamp x = 1;", pa.field("x", pa.timestamp("us")), "cast the column to timestamp"),
    ],
    ids=str,
)
def test_columns_and_fields_that_differ_are_named(field: str, column: pa.Field, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        encoder(proto3(f'import "google/protobuf/timestamp.proto"; message M {{ {field} }}'), pa.schema([column]))


def test_a_key_is_a_message_of_its_column_or_of_its_fields() -> None:
    schema = RegisteredSchema(1, Schema(proto3("message K { int64 id = 1; }"), "PROTOBUF"))
    alone = ProtobufKeyEncoder(schema, {}, pa.field("id", pa.int64())).encode(pa.array([1, None, 2]))
    kind = pa.struct([("id", pa.int64())])
    fields = ProtobufKeyEncoder(schema, {}, pa.field("k", kind)).encode(pa.array([{"id": 1}, None, {"id": 2}], kind))
    assert alone.to_pylist() == fields.to_pylist() == [b"\0\0\0\0\1\0\x08\1", None, b"\0\0\0\0\1\0\x08\2"]


COLUMNS = [
    pa.field("id", pa.int64(), False),
    pa.field("name", pa.string()),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("place", pa.struct([pa.field("x", pa.int16()), pa.field("tags", pa.list_(pa.string()))])),
    pa.field("counts", pa.map_(pa.int32(), pa.float64())),
    pa.field("took", pa.duration("us")),
]


def test_a_derived_schema_reads_back_the_columns() -> None:
    schema = protobuf_of(COLUMNS, "com.example.Flight", None)
    row = {"id": 1, "name": None, "at": datetime(2026, 1, 2, tzinfo=UTC), "place": {"x": 3, "tags": ["a"]},
           "counts": [(1, 0.5)], "took": timedelta(seconds=1)}  # fmt: skip
    values = encoded(schema.text, pa.schema(COLUMNS), row, message="com.example.Flight")
    assert decoder(WholeSchema(schema)).column(values)[0].to_pylist() == [row]


def test_a_derived_schema_keeps_the_numbers_of_the_former_one() -> None:
    first = protobuf_of(COLUMNS, "Flight", None)
    before = compiled(WholeSchema(first)).message("Flight")
    place = pa.field("place", pa.struct([pa.field("y", pa.int32()), pa.field("tags", pa.list_(pa.string()))]))
    second = protobuf_of([pa.field("new", pa.string()), place, COLUMNS[0]], "Flight", before)
    found = compiled(WholeSchema(second)).message("Flight")
    assert {field.name: field.number for field in found.fields} == {"new": 7, "place": 4, "id": 1}
    assert {each.name: each.number for each in found.fields_by_name["place"].message_type.fields} == {"y": 3, "tags": 2}
    for text in ("reserved 2;", "reserved 3;", 'reserved "name";', 'reserved "x";'):
        assert text in second.text
    # What was reserved stays so, also in the next version.
    third = protobuf_of([*COLUMNS[:1], pa.field("newest", pa.int32())], "Flight", found)
    numbers = {field.name: field.number for field in compiled(WholeSchema(third)).message("Flight").fields}
    assert numbers == {"id": 1, "newest": 8}
    assert "reserved 2 to 2;" in third.text


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.field("d", pa.decimal128(10, 2)), "Protobuf has no such type"),
        (pa.field("d", pa.date32()), "Protobuf has no such type"),
        (pa.field("d", pa.timestamp("us")), "Protobuf has no such type"),
        (pa.field("d", pa.list_(pa.list_(pa.int32()))), "put the inner array or map into a struct"),
        (pa.field("d", pa.map_(pa.float64(), pa.int32())), "cast the keys to strings"),
        (pa.field("a b", pa.int32()), "cannot be a field of a Protobuf message"),
    ],
)
def test_what_protobuf_does_not_have_is_not_derived(column: pa.Field, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        protobuf_of([column], "M", None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("writer", "reader", "text"),
    [
        ("int32 x = 1;", "int32 x = 2;", "x was written with the number 1, and the reader's schema has 2"),
        ("int64 x = 1;", "int32 x = 1;", "x was written as another type"),
        ("int32 x = 1;", "repeated int32 x = 1;", "x is repeated or a map in one of the schemas only"),
        ("message I { string y = 1; } I x = 1;", "message I { int32 y = 1; } I x = 1;", "x.y was written as another"),
        ("int32 x = 1; int32 y = 2;", "oneof o { int32 x = 1; int32 y = 2; }", "o is a oneof of the reader's schema"),
        ("optional int32 x = 1; oneof o { int32 y = 2; }", "oneof p { int32 x = 1; int32 y = 2; }", "p is a oneof"),
        (
            "enum E { A = 0; B = 1; } E x = 1;",
            "enum E { B = 0; A = 1; } E x = 1;",
            "x: B was written as 1, and .* has 0",
        ),
        ("google.protobuf.Timestamp x = 1;", "message I { int64 seconds = 1; } I x = 1;", "x is .* in the schemas"),
    ],
)
def test_a_writer_whom_the_reader_would_misread_is_refused(writer: str, reader: str, text: str) -> None:
    one, other = (
        whole(proto3(f'import "google/protobuf/timestamp.proto"; message M {{ {fields} }}'))
        for fields in (writer, reader)
    )
    with pytest.raises(UnreadableTypeError, match=text):
        ProtobufDecoder(compiled(one), protobuf_reader(other, None))


def test_another_version_is_read_by_numbers() -> None:
    old = whole(proto3("message M { int32 x = 1; string gone = 2; }"))
    new = whole(proto3("message M { int64 x = 1; optional bool more = 3; }"))
    values = encoded(old.schema.text, pa.schema([("x", pa.int32()), ("gone", pa.string())]), {"x": -1, "gone": "a"})
    assert decoder(old, new).column(values)[0].to_pylist() == [{"x": -1, "more": None}]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (proto3("message M { M m = 1; }"), "m contains itself"),
        (proto3("message M { }"), "which has no fields"),
        (proto3("enum E { A = 0; }"), "the schema has no message"),
        (proto3("message {"), "line:1:28: Expected message name"),
        (proto3('import "no.proto"; message M { int32 x = 1; }'), "no.proto"),
    ],
)
def test_a_schema_without_columns_is_refused(text: str, reason: str) -> None:
    with pytest.raises((ConfigurationError, UnreadableTypeError), match=reason):
        protobuf_reader(whole(text), None)


def test_a_reference_leaves_no_file_outside() -> None:
    evil = WholeSchema(Schema(proto3("message M { }"), "PROTOBUF"), (("../../evil.proto", Schema("", "PROTOBUF")),))
    with pytest.raises(ConfigurationError, match=r"refers to '\.\./\.\./evil\.proto'"):
        compiled(evil)


def test_a_reference_is_never_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    evil = Schema(f"open({str(trace)!r}, 'w')", "PROTOBUF")
    names = "json.py", "grpc_tools/__init__.py", "grpc_tools/protoc.py"
    compiled(WholeSchema(Schema(proto3("message M { int32 evil = 1; }"), "PROTOBUF"), tuple((n, evil) for n in names)))
    assert not trace.exists()


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("é" * 200,), ("outfall_schema.proto",), ("\ud800",)])
def test_a_reference_that_is_no_path_is_refused(names: tuple[str, ...]) -> None:
    wrong = WholeSchema(Schema("", "PROTOBUF"), tuple((each, Schema("", "PROTOBUF")) for each in names))
    with pytest.raises(ConfigurationError, match="the Protobuf schema refers to"):
        compiled(wrong)


def test_a_compiler_that_does_not_run_says_nothing_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = whole(proto3("message M { int32 killed = 1; }"))
    reader = protobuf_reader(whole(proto3("message M { int32 read = 1; }")), None)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TransientError, match="protoc did not run"):
        protobuf_decoder(schema, reader)
    monkeypatch.undo()
    assert isinstance(protobuf_decoder(schema, reader), ProtobufDecoder)


def test_two_texts_of_one_schema_are_the_same() -> None:
    one, other, third = (
        compiled(whole(proto3(text)))
        for text in (
            "message M { int32 x = 1; string y = 2; enum E { A = 0; } }",
            "\n// formatted\nmessage M {\n enum E { A = 0; }\n string y = 2;\n int32 x = 1;\n}",
            "message M { int32 x = 2; string y = 1; enum E { A = 0; } }",
        )
    )
    assert one.same(other)
    assert not one.same(third)


def test_a_number_that_the_enum_lacks_is_an_error_of_the_row() -> None:
    wrong = "e is 1, for which the reader's enum has no symbol"
    column, errors = decoder(whole(proto3("message M { enum E { A = 0; } E e = 1; }"))).column([b"\0\x08\1", b"\0"])
    assert (column.to_pylist(), errors) == ([None, {"e": "A"}], {0: wrong})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "field", ["optional E x = 1;", "optional E x = 1 [default = B];", "repeated E x = 1;", "map<string, E> x = 1;"]
)
def test_a_number_that_a_closed_enum_lacks_is_not_left_out(field: str) -> None:
    text = 'syntax = "proto2"; enum E { A = 0; B = 1; } message M { message I { FIELD } optional I i = 1; }'
    text = text.replace("FIELD", field)
    new = whole(text.replace("B = 1;", "B = 1; C = 2;"))
    written = b"\x0a\x05\x0a\x01k\x10\x02" if "map" in field else b"\x08\x02"
    value = b"\0\x0a" + bytes([len(written)]) + written
    column, errors = decoder(new, whole(text)).column([value])
    assert (column.to_pylist(), errors) == ([None], {0: "i.x has a number for which the reader's enum has no symbol"})
    assert decoder(new).column([value])[1] == {}


def test_positions_that_others_write_are_not_kept() -> None:
    found = decoder(whole(proto3("message M { int32 x = 1; }")))
    found.column([index_bytes([0]), *(index_bytes([number]) for number in range(1, 100))])
    assert found._indexes == {(0,)}


def test_of_several_symbols_of_a_number_the_first_one_is_read() -> None:
    text = proto3("message M { enum E { option allow_alias = true; A = 0; B = 0; } E e = 1; }")
    assert decoder(whole(text)).column([b"\0"])[0].to_pylist() == [{"e": "A"}]
