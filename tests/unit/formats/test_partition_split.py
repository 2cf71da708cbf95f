"""Splitting a batch: every row once, in its bucket, in its order."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.formats.partition_paths import PartitionOptions, PartitionPaths
from outfall.formats.partition_paths.directory_names import Distinct, combined

NOW = datetime(2026, 11, 21, 23, 59, tzinfo=UTC)
PARIS = ZoneInfo("Europe/Paris")
NULL = "__HIVE_DEFAULT_PARTITION__"


def split(batch: pa.RecordBatch, **options: Any) -> list[tuple[str, pa.RecordBatch]]:
    return list(PartitionPaths(PartitionOptions(**options)).split(batch, NOW))


def naive_value(value: Any) -> str:
    """One value, in plain Python."""
    if value is None or value == "":
        return NULL
    text = str(value).lower() if isinstance(value, bool) else str(value)
    odd = "\"#%'*/:=?\\{[]^" + "".join(map(chr, [*range(1, 32), 127]))
    return "".join(f"%{ord(character):02X}" if character in odd else character for character in text)


def naive_time(value: datetime | None) -> str:
    if value is None:
        return f"dt={NULL}/hm={NULL}"
    return f"dt={value.astimezone(PARIS):%d.%m/hm=%H%%3A%M}"


VALUES = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3)
ROW = st.tuples(
    VALUES,
    st.none() | st.integers(-2, 2),
    st.none() | st.booleans(),
    st.none() | st.sampled_from([date(2026, 11, 21), date(1969, 12, 31)]),
    # Around 1970 too, where integers are rounded towards zero and times must not be.
    st.none()
    | st.datetimes(datetime.fromisoformat("1969-12-31"), datetime.fromisoformat("1970-01-02"), timezones=st.just(UTC)),
)
KINDS = [pa.string(), pa.int32(), pa.bool_(), pa.date32(), pa.timestamp("us", "Europe/Paris")]
NAMES = ["s", "i", "b", "d", "t"]


@pytest.mark.thorough
@settings(deadline=None, max_examples=200)
@given(
    st.lists(ROW, max_size=30),
    st.lists(st.sampled_from(NAMES[:4]), max_size=4, unique=True),
    st.booleans(),
    st.integers(0, 2),
)
def test_each_row_is_once_in_its_bucket_and_in_its_order(
    rows: list[Any], columns: list[str], timed: bool, offset: int
) -> None:
    arrays = [
        pa.array(values, kind) for values, kind in zip([[r[i] for r in rows] for i in range(5)], KINDS, strict=True)
    ]
    batch = pa.record_batch([*arrays, pa.array(range(len(rows)))], [*NAMES, "row"]).slice(offset)
    options: dict[str, Any] = {"partition_by": columns}
    if timed or not columns:
        options |= {"directory_pattern": "'dt='dd.MM/'hm='HH:mm", "directory_time": "t"}
    found = split(batch, **options)
    expected: dict[str, list[int]] = {}
    for number, row in list(enumerate(rows))[offset:]:
        path = [f"{name}={naive_value(row[NAMES.index(name)])}" for name in columns]
        if "directory_time" in options:
            path.append(naive_time(row[4]))
        expected.setdefault("/".join(path), []).append(number)
    # As lists: buckets come in the order of their first rows.
    assert [(path, part.column("row").to_pylist()) for path, part in found] == list(expected.items())
    kept = [name for name in batch.schema.names if name not in columns]
    for _, part in found:
        assert part.schema.equals(batch.select(kept).schema)
        numbers = part.column("row").to_pylist()
        assert part.column("t").to_pylist() == [rows[number][4] for number in numbers]


def test_an_empty_batch_has_no_bucket() -> None:
    assert split(pa.record_batch({"a": pa.array([], pa.int8()), "b": pa.array([], pa.int8())}), partition_by="a") == []


def test_values_that_share_a_directory_are_one_bucket() -> None:
    batch = pa.record_batch({"a": ["", None, "x", ""], "n": [0, 1, 2, 3]})
    assert [(path, part.to_pydict()["n"]) for path, part in split(batch, partition_by="a")] == [
        (f"a={NULL}", [0, 1, 3]),
        ("a=x", [2]),
    ]
    assert [path for path, _ in split(batch.slice(0, 2), partition_by="a")] == [f"a={NULL}"]


@pytest.mark.parametrize("values", [["x"] * 4, ["x", "x", "y", "y"]])
def test_rows_that_stand_together_are_not_copied(values: list[str]) -> None:
    batch = pa.record_batch({"a": values, "n": pa.array([0, 1, 2, 3])})
    data = batch.column("n").buffers()[1].address
    assert [part.column("n").buffers()[1].address for _, part in split(batch, partition_by="a")] == [data] * len(
        set(values)
    )


def test_thousands_of_buckets_in_one_batch() -> None:
    count = 5000
    order = [(row * 7919) % count for row in range(count)] * 2
    found = split(
        pa.record_batch({"a": order, "b": [f"b{row}" for row in order], "n": range(2 * count)}), partition_by="b,a"
    )
    assert [path for path, _ in found] == [f"b=b{row}/a={row}" for row in order[:count]]
    assert [part.column("n").to_pylist() for _, part in found] == [[row, row + count] for row in range(count)]


def test_nested_columns_go_along() -> None:
    batch = pa.record_batch({"a": [1, 2, 1], "l": [[1], None, [2, 3]], "s": [{"x": "p"}, {"x": None}, None]})
    assert [(path, part.to_pylist()) for path, part in split(batch, partition_by="a")] == [
        ("a=1", [{"l": [1], "s": {"x": "p"}}, {"l": [2, 3], "s": None}]),
        ("a=2", [{"l": None, "s": {"x": None}}]),
    ]


def test_nothing_has_been_given_when_a_row_is_refused() -> None:
    rows = PartitionPaths(PartitionOptions(partition_by=("a",))).split(
        pa.record_batch({"a": ["x", "\0"], "n": [0, 1]}), NOW
    )
    with pytest.raises(Exception, match="NUL"):
        next(rows)


def test_combinations_beyond_64_bits_are_numbered_all_the_same() -> None:
    # Nine columns of 256 values each: in 64 bits the first column would not count. The last row differs there only.
    first, others = [*range(256), 1], [*range(256), 0]
    rows = combined([Distinct.of(pa.array(values)) for values in [first, *[others] * 8]])
    assert rows is not None
    assert rows.to_pylist() == list(range(257))
