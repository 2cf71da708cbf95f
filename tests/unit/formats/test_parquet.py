"""Parquet: what `pyarrow.parquet` reads back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError
from outfall.formats import FormatOptions, can_grow, check_schema, encoder, parquet, suffix


def encode(*batches: pa.RecordBatch, **options: Any) -> pa.Buffer:
    made = encoder(FormatOptions(format="parquet", **options), batches[0].schema)
    return pa.py_buffer(b"".join([*(made.encode(batch) for batch in batches), made.finish()]))


def read(data: pa.Buffer) -> pa.Table:
    return pq.read_table(pa.BufferReader(data))


TYPES: dict[str, tuple[Any, Any]] = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "s": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    "b": (pa.binary(), st.binary(max_size=4)),
    "f": (pa.float32(), st.floats(allow_nan=False, width=32)),
    "d": (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    "t": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "n": (pa.timestamp("us"), st.datetimes()),
    "y": (pa.date32(), st.dates()),
    "l": (pa.list_(pa.string()), st.lists(st.none() | st.text("a", max_size=2), max_size=3)),
    "m": (
        pa.map_(pa.int32(), pa.bool_()),
        st.lists(st.tuples(st.integers(0, 9), st.none() | st.booleans()), max_size=2),
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}), max_size=6)


@settings(deadline=None)
@given(ROWS, st.integers(0, 3), st.sampled_from(["none", "snappy", "gzip", "zstd"]))
def test_every_row_reads_back(rows: list[dict[str, Any]], skipped: int, compression: str) -> None:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    found = read(encode(batch.slice(0, skipped), batch.slice(skipped), compression=compression))
    assert found.to_pylist() == rows
    assert found.schema.remove_metadata().equals(SCHEMA)


@pytest.mark.parametrize(
    ("compression", "end", "codec"),
    [(None, ".snappy.parquet", "SNAPPY"), ("none", ".parquet", "UNCOMPRESSED"), ("gzip", ".gz.parquet", "GZIP"),
     ("zstd", ".zstd.parquet", "ZSTD")],
)  # fmt: skip
def test_names_and_codecs_are_sparks(compression: Any, end: str, codec: str) -> None:
    options = FormatOptions(format="parquet", compression=compression)
    assert suffix(options) == end
    assert not can_grow(options)
    data = encode(pa.record_batch({"a": [1, 2]}), compression=compression)
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).compression == codec


def test_rows_leave_in_bounded_groups_and_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 10)
    batches = [pa.record_batch({"a": range(start, start + 4)}) for start in range(0, 48, 4)]
    made = encoder(FormatOptions(format="parquet"), batches[0].schema)
    sizes = [made.encode(batch).size > len(b"PAR1") for batch in batches]
    assert sizes == [False, False, True] * 4, "rows are kept for a group, and no longer"
    data = encode(*batches)
    groups = pq.ParquetFile(pa.BufferReader(data)).metadata
    assert all(groups.row_group(index).num_rows <= 10 for index in range(groups.num_row_groups))
    assert read(data)["a"].to_pylist() == list(range(48))


def test_a_group_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 100)
    made = encoder(FormatOptions(format="parquet"), pa.schema([("a", pa.string())]))
    assert made.encode(pa.record_batch({"a": ["x" * 200]})).size > len(b"PAR1")


def test_columns_have_a_dictionary_if_it_is_smaller_than_their_values() -> None:
    count = 1000
    numbers = range(count)
    point = pa.struct({"id": pa.int64(), "kind": pa.string()})
    batch = pa.record_batch(
        {
            "unique": [f"{number:08}" for number in numbers],
            "few": [f"name-{number % 10}" for number in numbers],
            "small": pa.array([number % 127 for number in numbers], pa.int8()),
            "missing": pa.nulls(count, pa.int64()),
            "points": pa.array([[{"id": number, "kind": "a"}] for number in numbers], pa.list_(point)),
            "x": [float(number) for number in numbers],
        }
    )
    nan = batch.set_column(5, "x", pa.array([float("nan")] * count))
    groups = parquet.RowGroups(batch.schema, "none")
    pieces = []
    for each in (batch, nan):  # another writer continues the file
        pieces += [groups.write(each), groups.spill()]
    footer = groups.finish()[1]
    for number in range(2):
        group = footer.row_group(number)
        columns = map(group.column, range(group.num_columns))
        found = {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}
        assert found == {"few", "small", "missing", "points.list.element.kind"}


@pytest.mark.parametrize(("codec", "level", "other"), [("zstd", 3, 1), ("gzip", 6, 9)])
def test_the_level_of_a_compression_is_the_one_of_sparks_writer(codec: str, level: int, other: int) -> None:
    batch = pa.record_batch({"a": [f"{number * number}" for number in range(20_000)]})

    def size(*levels: int) -> int:
        groups = parquet.RowGroups(batch.schema, codec, *levels)
        return sum(each.size for each in (groups.write(batch), groups.finish()[0]))

    assert size() == size(level) != size(other)


def test_intervals_are_the_integers_that_spark_keeps_wherever_they_stand() -> None:
    day = timedelta(days=1)
    second = pa.duration("us")
    batch = pa.record_batch(
        {
            "d": pa.array([day, None], second),
            "l": pa.array([[day], None], pa.list_(second)),
            "s": pa.array([{"x": day}, None], pa.struct([pa.field("x", second, False)])),
            "m": pa.array([[("k", day)], []], pa.map_(pa.string(), second)),
        }
    )
    micros = 86_400_000_000
    assert read(encode(batch)).to_pylist() == [
        {"d": micros, "l": [micros], "s": {"x": micros}, "m": [("k", micros)]},
        {"d": None, "l": None, "s": None, "m": []},
    ]


def test_fields_that_are_never_null_may_stand_below_a_struct_that_is() -> None:
    kind = pa.struct([pa.field("x", pa.int8(), False)])
    batch = pa.record_batch(
        {"s": pa.array([{"x": 1}, None], kind), "l": pa.array([[None], [{"x": 2}]], pa.list_(kind))}
    )
    assert read(encode(batch)).to_pylist() == batch.to_pylist()


def test_the_layout_is_sparks() -> None:
    batch = pa.record_batch(
        {"d": pa.array([Decimal("1.5")], pa.decimal128(5, 1)), "t": pa.array([datetime(2026, 1, 1, tzinfo=UTC)])}
    )
    file = pq.ParquetFile(pa.BufferReader(encode(batch)))
    assert file.schema.column(0).physical_type == "INT32"
    assert b"ARROW:schema" not in (file.metadata.metadata or {})


@pytest.mark.parametrize(
    ("kind", "named"),
    [(pa.null(), "c"), (pa.timestamp("ns"), "c"), (pa.month_day_nano_interval(), "c"), (pa.time64("ns"), "c"),
     (pa.float16(), "c"), (pa.struct([]), "c"), (pa.list_(pa.null()), "c.element"), (pa.duration("s"), "c"),
     (pa.map_(pa.string(), pa.timestamp("ns")), "c.value"), (pa.struct([("x", pa.null())]), "c.x"),
     (pa.struct([("x", pa.int8()), ("x", pa.int8())]), "c"), (pa.dictionary(pa.int8(), pa.string()), "c")],
)  # fmt: skip
def test_types_that_parquet_does_not_carry_are_refused_by_name(kind: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{named}'") as caught:
        check_schema(FormatOptions(format="parquet"), pa.schema([("good", pa.int8()), ("c", kind)]))
    assert "What to do" in str(caught.value)


def test_columns_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="have the name 'a'"):
        check_schema(FormatOptions(format="parquet"), pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    with pytest.raises(ConfigurationError, match="without columns"):
        check_schema(FormatOptions(format="parquet"), pa.schema([]))


def test_a_small_slice_does_not_keep_its_batch_in_memory() -> None:
    batch = pa.record_batch({"id": pa.array(range(10_000), pa.int64())})
    kept = encoder(FormatOptions(format="parquet"), batch.schema)
    kept.encode(batch.slice(5_000, 10))
    (rows,) = kept._groups._batches  # type: ignore[attr-defined] # what it keeps is what is asked
    assert rows.get_total_buffer_size() < 1_000
    assert rows.to_pydict() == {"id": list(range(5_000, 5_010))}


def test_a_column_that_is_said_to_hold_no_null_may_hold_one_as_in_sparks_files() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), False), pa.field("d", pa.duration("us"), False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None]), pa.array([None, 2], pa.duration("us"))], schema=schema)
    found = read(encode(batch))
    assert found.to_pylist() == [{"a": 1, "d": None}, {"a": None, "d": 2}]
    assert all(field.nullable for field in found.schema)
