"""Which rows fit into which columns of an Iceberg table. Integration tests read back what does."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from outfall.errors import ConfigurationError
from outfall.iceberg.columns import file_schema, identities, lacking, new_schema

POINT = StructType(
    NestedField(101, "x", IntegerType(), required=False), NestedField(102, "y", StringType(), required=False)
)

REFUSED: list[tuple[IcebergType, pa.DataType, str]] = [
    (IntegerType(), pa.int64(), "v is bigint, and int in the table"),
    (LongType(), pa.uint64(), "v is uint64, and bigint in the table"),
    (FloatType(), pa.float64(), "v is double, and float in the table"),
    (DoubleType(), pa.int64(), "v is bigint, and double in the table"),
    (DecimalType(5, 2), pa.decimal128(6, 2), r"v is decimal\(6,2\), and decimal\(5,2\) in the table"),
    (DecimalType(9, 2), pa.decimal128(9, 3), "v is decimal"),
    (TimestampType(), pa.timestamp("us", "UTC"), "v is timestamp, and timestamp_ntz in the table"),
    (TimestamptzType(), pa.timestamp("us"), "v is timestamp_ntz, and timestamp in the table"),
    (TimestampType(), pa.timestamp("ns"), "it may have nanoseconds, and the table stores microseconds"),
    (StringType(), pa.int32(), "v is int, and string in the table"),
    (UUIDType(), pa.string(), "v is string, and uuid in the table"),
    (FixedType(3), pa.binary(4), r"v is fixed_size_binary\[4\], and fixed\[3\] in the table"),
    (POINT, pa.struct({"x": pa.int32(), "z": pa.int32()}), "v.z is not in the table"),
    (POINT, pa.struct({"x": pa.int64()}), "v.x is bigint"),
    (POINT, pa.struct({"x": pa.int32(), "X": pa.int32()}), "v.X differs only in case from v.x"),
    (ListType(101, IntegerType(), element_required=True), pa.list_(pa.int32()), "v.element may be NULL"),
    (StructType(NestedField(101, "x", IntegerType(), required=True)), pa.struct({"x": pa.int32()}), "v.x may be NULL"),
    (StructType(NestedField(101, "x", LongType(), required=True), NestedField(102, "y", IntegerType(), required=False)),
     pa.struct({"y": pa.int32()}), "v.x is missing, and the table requires it"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "why"), REFUSED, ids=[f"{kind}-{given}" for kind, given, _ in REFUSED])
def test_what_a_cast_would_change_is_refused_by_name(kind: IcebergType, given: pa.DataType, why: str) -> None:
    schema = Schema(NestedField(1, "v", kind, required=False), NestedField(2, "w", LongType(), required=False))
    with pytest.raises(ConfigurationError, match=f"(?s){why}.*What to do: "):
        file_schema(schema, pa.schema({"v": given}), ())


def test_every_column_that_does_not_fit_is_named_at_once() -> None:
    schema = Schema(NestedField(1, "a", LongType(), required=True), NestedField(2, "b", LongType(), required=False))
    with pytest.raises(ConfigurationError) as caught:
        file_schema(schema, pa.schema({"b": pa.string(), "c": pa.int64()}), {2})
    problems = "b is string, and bigint in the table; c is not in the table; a is missing, and the table requires it"
    assert problems in str(caught.value)
    with pytest.raises(ConfigurationError, match="b is missing, and the table is partitioned by it"):
        file_schema(schema, pa.schema({"a": pa.int64()}), {2})


def test_a_file_has_the_columns_of_the_rows_in_the_order_of_the_table_each_with_its_number() -> None:
    kind = ListType(5, POINT, element_required=False)
    schema = Schema(
        NestedField(1, "Id", LongType(), required=True),
        NestedField(2, "gone", StringType(), required=False),
        NestedField(3, "points", kind, required=False),
        NestedField(4, "m", MapType(6, StringType(), 7, LongType(), value_required=False), required=False),
    )
    rows = pa.schema(
        {
            "m": pa.map_(pa.string(), pa.int32()),
            "points": pa.list_(pa.struct({"y": pa.string(), "X": pa.int8()})),
            "ID": pa.int32(),
        }
    )
    made = file_schema(schema, rows, ())
    assert made.names == ["Id", "points", "m"]
    assert [field.nullable for field in made] == [False, True, True]
    inner = made.field("points").type.value_field
    fields = [*made, inner, *inner.type, made.field("m").type.key_field, made.field("m").type.item_field]
    assert [(field.name, int(field.metadata[b"PARQUET:field_id"])) for field in fields] == [
        ("Id", 1), ("points", 3), ("m", 4), ("element", 5), ("y", 102), ("X", 101), ("key", 6), ("value", 7),
    ]  # fmt: skip
    assert made.field("m").type.item_type == pa.int64()


def test_a_table_for_rows_takes_these_rows() -> None:
    rows = pa.schema(
        {
            "small": pa.int8(), "id": pa.uint32(), "half": pa.float16(), "d": pa.decimal128(9, 2), "f": pa.binary(3),
            "t": pa.timestamp("ms"), "z": pa.timestamp("us", "Europe/Berlin"), "u": pa.uuid(),
            "s": pa.struct({"l": pa.list_(pa.map_(pa.string(), pa.date32()))}),
        }
    )  # fmt: skip
    schema = new_schema(rows)
    assert len(set(schema.field_ids)) == len(schema.field_ids) == 13
    assert [str(field.field_type) for field in schema.fields][:8] == [
        "int", "long", "float", "decimal(9, 2)", "fixed[3]", "timestamp", "timestamptz", "uuid",
    ]  # fmt: skip
    assert not any(field.required for field in schema.fields)
    assert file_schema(schema, rows, ()).names == rows.names
    # pyiceberg's own view of it, which readers share.
    assert schema_to_pyarrow(schema).names == rows.names


def test_a_field_without_a_type_is_named_inside_a_list() -> None:
    with pytest.raises(ConfigurationError, match=r"l\.element.d: Iceberg has no type for duration"):
        new_schema(pa.schema({"l": pa.list_(pa.struct({"d": pa.duration("s")}))}))


@pytest.mark.parametrize("names", [("a", "A"), ("A", "a")])
def test_no_table_is_made_of_names_that_differ_only_in_case(names: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=f"{names[1]} differs only in case from {names[0]}"):
        new_schema(pa.schema([(name, pa.int64()) for name in names]))


def test_a_missing_partition_column_inside_a_struct_is_named() -> None:
    schema = Schema(NestedField(1, "p", POINT, required=False), NestedField(2, "w", LongType(), required=False))
    with pytest.raises(ConfigurationError, match=r"p\.y is missing, and the table is partitioned by it"):
        file_schema(schema, pa.schema({"p": pa.struct({"x": pa.int32()})}), {102})
    with pytest.raises(ConfigurationError, match="p is missing, and the table is partitioned by it"):
        file_schema(schema, pa.schema({"w": pa.int64()}), {102})


def test_a_comment_of_a_column_is_not_in_the_file() -> None:
    schema = Schema(NestedField(1, "v", LongType(), required=False, doc="a comment"))
    assert file_schema(schema, pa.schema({"v": pa.int64()}), ()).field("v").metadata == {b"PARQUET:field_id": b"1"}


def test_what_a_table_lacks_is_found_in_structs_lists_and_maps() -> None:
    wide = pa.struct({"x": pa.int32(), "new": pa.int64()})
    schema = Schema(
        NestedField(1, "p", POINT, required=False),
        NestedField(2, "l", ListType(10, POINT, element_required=False), required=False),
        NestedField(3, "m", MapType(11, StringType(), 12, POINT, value_required=False), required=False),
    )
    rows = pa.schema({"P": wide, "l": pa.list_(wide), "m": pa.map_(pa.string(), wide), "n": pa.string()})
    assert [path for path, _ in lacking(schema, rows)] == [
        ("p", "new"), ("l", "element", "new"), ("m", "value", "new"), ("n",),
    ]  # fmt: skip

    assert lacking(schema, pa.schema({"p": pa.struct({"x": pa.int64()})})) == []


def test_a_new_column_that_differs_only_in_case_is_refused() -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    for names in (["id", "ID"], ["new", "NEW"]):
        with pytest.raises(ConfigurationError, match=f"{names[1]} differs only in case from"):
            lacking(schema, pa.schema([(name, pa.int64()) for name in names]))


def test_what_iceberg_promotes_keeps_a_columns_identity_and_all_else_changes_it() -> None:
    def of(kind: IcebergType, number: int = 1, *, required: bool = False) -> dict[str, str]:
        return identities(Schema(NestedField(number, "v", kind, required=required)))

    assert of(IntegerType()) == of(LongType())
    assert of(FloatType()) == of(DoubleType())
    assert of(DecimalType(9, 2)) == of(DecimalType(18, 2))
    different = [
        of(LongType()), of(LongType(), 2), of(LongType(), required=True), of(StringType()), of(DecimalType(9, 3)),
        of(DecimalType(9, 2)), of(TimestampType()), of(TimestamptzType()), of(FixedType(2)), of(FixedType(3)),
        of(UUIDType()), of(POINT),
    ]  # fmt: skip
    assert all(different.count(each) == 1 for each in different)


@pytest.mark.parametrize("turned", [False, True])
def test_two_columns_of_one_name_in_iceberg_are_refused(turned: bool) -> None:
    columns = [pa.field("a.b", pa.float64()), pa.field("a", pa.struct([("b", pa.float64())]))]
    old, new = reversed(columns) if turned else columns
    wanted = r"(?s)'a\.b' and a field inside the column 'a' .*What to do: rename one of them, .*'a_b'"
    with pytest.raises(ConfigurationError, match=wanted):
        new_schema(pa.schema(columns))
    with pytest.raises(ConfigurationError, match=wanted):
        lacking(new_schema(pa.schema([old])), pa.schema([old, new]))
