"""T3: partitions of every transform, with values that paths and texts break on, as other readers prune them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

from outfall.errors import ConfigurationError, TargetError, ValueRefusedError
from tests.integration.support.batch_driver import batch
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_epochs import Lake
from tests.integration.support.iceberg_reader import metadata_location

pytestmark = pytest.mark.thorough

ODD = ["a/b=c", "", "ä€𝄞 %2F\n", "__HIVE_DEFAULT_PARTITION__", "..", None, "a/b=c"]
SIZE = len(ODD)
AT = [
    datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
    *(datetime(2026, 1, 1 + n, n, tzinfo=UTC) for n in range(SIZE - 2)),
    None,
]

COLUMNS: dict[str, pa.Array] = {
    "s": pa.array(ODD),
    "b": pa.array([b"\0\xff/", b"", None, *[b"abcdef"] * (SIZE - 3)]),
    "i": pa.array([-5, 0, None, 7, 8, 2**31 - 1, -(2**31)], pa.int32()),
    "l": pa.array([-5, 0, None, 7, 8, 2**40, -(2**40)]),
    "d": pa.array([date(1969, 12, 31), None, *[date(2026, 2, 28)] * (SIZE - 2)]),
    "m": pa.array([Decimal("-1.25"), Decimal("0.00"), None, *[Decimal("99999.99")] * (SIZE - 3)], pa.decimal128(7, 2)),
    "at": pa.array(AT, pa.timestamp("us", "UTC")),
    "ntz": pa.array([each and each.replace(tzinfo=None) for each in AT], pa.timestamp("us")),
    "f": pa.array([0.1, -0.0, float("nan"), float("inf"), None, 1.5, 0.1]),
    "yes": pa.array([True, False, None, True, False, True, False]),
    "at_place": pa.array([{"city": "NYC"}, {"city": None}, None, *[{"city": "a/b"}] * (SIZE - 3)]),
}
TERMS = [
    "s", "truncate[3]: s", "bucket[8]: s", "b", "truncate[2]: b", "bucket[8]: b", "i", "truncate[10]: i",
    "bucket[8]: i", "l", "truncate[10]: l", "bucket[8]: l", "d", "year: d", "month: d", "day: d", "bucket[8]: d",
    "truncate[50]: m", "bucket[8]: m", "at", "year: at", "month: at", "day: at", "hour: at", "bucket[8]: at", "ntz",
    "day: ntz", "hour: ntz", "yes",
]  # fmt: skip
"""All but floats."""
SIDE_BY_SIDE = {f"c{number}": COLUMNS[term.rpartition(": ")[2]] for number, term in enumerate(TERMS)}
"""A column for each term, as pyiceberg takes one partition of a column."""


def partitions(table: Table) -> dict[int, dict[str, str]]:
    """The partition of each row, as pyiceberg reads it from manifest and file."""
    names = [field.name for field in table.spec().fields]
    found: dict[int, dict[str, str]] = {}
    for task in table.scan().plan_files():
        ids = pq.read_table(task.file.file_path.removeprefix("file://"), columns=["id"], partitioning=None)
        values = (repr(task.file.partition[index]) for index in range(len(names)))
        known = dict(zip(names, values, strict=True))
        found |= {row: dict(known) for row in ids.column("id").to_pylist()}
    return found


def test_each_row_has_the_partition_that_another_writer_gives_it(lake: Lake) -> None:
    terms = [f"{term.rpartition(' ')[0]} c{number}".lstrip() for number, term in enumerate(TERMS)]
    rows = batch(id=pa.array(range(SIZE)), place=COLUMNS["at_place"], **SIDE_BY_SIDE)
    lake.create(rows.schema, *terms)
    lake.append(rows)
    expected = partitions(lake.table)
    lake.catalog.drop_table("db.flights")
    # Inside a struct pyiceberg does not partition by itself.
    lake.create(rows.schema, *terms, "place.city")
    driver = lake.driver(write_mode="overwrite_partitions")
    driver.write(0, rows)
    found = partitions(lake.table)
    cities = [each.pop("place.city") for _, each in sorted(found.items())]
    assert cities == ["'NYC'", "None", "None", *["'a/b'"] * (SIZE - 3)]
    assert found == expected
    assert all("a/b" not in str(path) for path in lake.head().paths)
    # The same rows replace themselves: each partition is found again by its text.
    driver.write(1, rows)
    assert lake.rows("id") == list(range(SIZE))


def test_two_partitions_of_one_decimal_type_are_refused(lake: Lake) -> None:
    """Of such a table pyiceberg's own writer makes one that no other engine reads."""
    lake.create(pa.schema({"a": pa.decimal128(7, 2), "b": pa.decimal128(7, 2)}), "a", "b")
    with pytest.raises(ConfigurationError, match=r"two partition fields of type decimal\(7, 2\)"):
        lake.driver().write(0, batch(a=COLUMNS["m"], b=COLUMNS["m"]))


def test_floats_are_partitions_too_and_only_cannot_be_replaced(lake: Lake) -> None:
    rows = batch(id=pa.array(range(SIZE)), f=COLUMNS["f"])
    lake.create(rows.schema, "f")
    lake.driver().write(0, rows)
    written = sorted(str(file["partition"]["f"]) for file in lake.head().files)
    assert written == ["-0.0", "0.1", "1.5", "None", "inf", "nan"]
    with pytest.raises(ConfigurationError, match="is or was partitioned by a floating-point column"):
        lake.driver(write_mode="overwrite_partitions").write(0, rows)


def test_readers_prune_by_what_manifests_say_and_find_each_row(lake: Lake, duck: Duck) -> None:
    lake.create(
        pa.schema({"id": pa.int64(), "s": pa.string(), "ntz": pa.timestamp("us")}), "s", "day: ntz", "bucket[4]: id"
    )
    lake.driver().write(0, batch(id=pa.array(range(SIZE)), s=COLUMNS["s"], ntz=COLUMNS["ntz"]))
    location = metadata_location(lake.directory / "catalog.db", "db.flights")
    table = lake.table
    for number, name in enumerate(ODD):
        where = "s IS NULL" if name is None else f"s = '{name}'"
        wanted = [(each,) for each in range(SIZE) if ODD[each] == name]
        assert sorted(duck.query(f"SELECT id FROM iceberg_scan('{location}') WHERE {where}")) == wanted
        assert duck.query(f"SELECT s FROM iceberg_scan('{location}') WHERE id = {number}") == [(name,)]
        assert len(list(table.scan(f"id = {number}").plan_files())) == 1
    wanted = [
        (number,) for number in range(SIZE) if (at := AT[number]) is not None and at >= datetime(2026, 1, 3, tzinfo=UTC)
    ]
    assert sorted(duck.query(f"SELECT id FROM iceberg_scan('{location}') WHERE ntz >= '2026-01-03'")) == wanted


def test_rows_without_what_the_table_is_partitioned_by_are_refused(lake: Lake) -> None:
    lake.create(pa.schema({"id": pa.int64(), "place": pa.struct({"city": pa.string(), "x": pa.int32()})}), "place.city")
    sink = lake.driver().sink
    for columns in ({"id": pa.int64()}, {"id": pa.int64(), "place": pa.struct({"x": pa.int32()})}):
        with pytest.raises(ConfigurationError, match="missing, and the table is partitioned by it"):
            sink.check_schema(pa.schema(columns))


def test_a_moment_beyond_the_calendar_of_python_is_written(lake: Lake, duck: Duck) -> None:
    lake.create(pa.schema({"id": pa.int64(), "ntz": pa.timestamp("us")}), "year: ntz")
    lake.driver().write(0, batch(id=pa.array([1]), ntz=pa.array([2**58], pa.timestamp("us"))))
    location = metadata_location(lake.directory / "catalog.db", "db.flights")
    assert duck.iceberg(location, "id, year(ntz)") == [(1, 11103)]
    assert partitions(lake.table) == {1: {"year_ntz": "9133"}}


def test_a_value_without_a_partition_is_an_error_of_its_row(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create(pa.schema({"id": pa.int64()}), "bucket[4]: id")

    def broken(*_: Any) -> Any:
        raise RuntimeError("no hash of it")

    monkeypatch.setattr(BucketTransform, "pyarrow_transform", lambda *_: broken)
    with pytest.raises(ValueRefusedError, match=r"column 'id' has a value without a partition for bucket\[4\]"):
        lake.driver().write(0, batch(id=pa.array([1])))
    assert lake.files.history() == []


def test_a_table_is_made_with_the_partitions_that_spark_would_name(lake: Lake) -> None:
    driver = lake.driver(
        create_table="if_missing",
        partition_by="days(at), bucket(16, id), truncate(4, `odd, name`), carrier, hours(ntz)",
    )
    names = ["id", "odd, name", "carrier", "at", "ntz"]
    columns = [pa.array([1]), pa.array(["abcdef"]), pa.array(["UA"]), COLUMNS["at"][:1], COLUMNS["ntz"][:1]]
    driver.write(0, pa.RecordBatch.from_arrays(columns, names))
    fields = {field.name: str(field.transform) for field in lake.table.spec().fields}
    assert fields == {
        "at_day": "day", "id_bucket": "bucket[16]", "odd, name_trunc": "truncate[4]", "carrier": "identity",
        "ntz_hour": "hour",
    }  # fmt: skip
    assert lake.rows("carrier") == ["UA"]
    # Another driver has made it meanwhile.
    lake.sink(create_table="if_missing").create(pa.schema({"id": pa.int64()}))


NEW = pa.schema({"id": pa.int64(), "at": pa.timestamp("us")})


@pytest.mark.parametrize(
    ("terms", "rows", "why"),
    [
        ("nope", NEW, "there is no column 'nope'"),
        ("hours(id)", NEW, "'id' is long, which has no hour"),
        ("at, identity(at)", NEW, "two terms have the name 'at'"),
        ("", pa.schema({"n": pa.null()}), "n: it has no type, because all its values are NULL"),
        ("", pa.schema({"n": pa.uint64()}), "n: Iceberg has no type for uint64"),
        (
            "",
            pa.schema({"s": pa.struct({"d": pa.duration("us")})}),
            "s.d: Iceberg has no type for interval day to second",
        ),
        ("", pa.schema({"a": pa.int64(), "A": pa.int64()}), "A differs only in case from a"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_before_the_first_row(
    lake: Lake, terms: str, rows: pa.Schema, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        lake.sink(create_table="if_missing", partition_by=terms).check_schema(rows)
    assert not lake.catalog.table_exists("db.flights")


def test_columns_are_added_where_that_is_asked_for_and_never_changed(lake: Lake) -> None:
    place = pa.struct({"city": pa.string()})
    lake.create(
        pa.schema({"id": pa.int64(), "place": place, "list": pa.list_(place), "map": pa.map_(pa.string(), place)})
    )
    more = pa.struct({"city": pa.string(), "zip": pa.int32()})
    wider = batch(
        id=pa.array([1]), place=pa.array([{"city": "a", "zip": 1}], more), new=pa.array(["x"]),
        list=pa.array([[{"city": "b", "zip": 2}]], pa.list_(more)),
        map=pa.array([[("k", {"city": "c", "zip": 3})]], pa.map_(pa.string(), more)),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"place\.zip is not in the table; new is not in the table|new is not"):
        lake.driver().write(0, wider)
    driver = lake.driver(schema_evolution="add_columns")
    driver.write(0, batch(id=pa.array([0])))
    driver.write(1, wider)
    driver.write(2, batch(id=pa.array([2])))
    assert lake.files.rows()[1] == {
        "id": 1, "place": {"city": "a", "zip": 1}, "new": "x", "list": [{"city": "b", "zip": 2}],
        "map": {"k": {"city": "c", "zip": 3}},
    }  # fmt: skip
    assert [row["new"] for row in lake.files.rows()] == [None, "x", None]
    for rows, why in [
        (pa.schema({"ID": pa.int64(), "id": pa.int64()}), "ID differs only in case"),
        (pa.schema({"id": pa.string()}), "id is string, and bigint in the table"),
        (pa.schema({"id": pa.int64(), "n": pa.null()}), "n: it has no type"),
    ]:
        with pytest.raises(ConfigurationError, match=why):
            driver.sink.check_schema(rows)
    # Two drivers add the same column, one after the other.
    stale = lake.sink(schema_evolution="add_columns").load()
    assert stale is not None
    lake.sink().load().add_columns(pa.schema({"twice": pa.int64()}))  # type: ignore[union-attr]
    stale.add_columns(pa.schema({"twice": pa.int64(), "other": pa.int64()}))
    assert {"twice", "other"} <= set(lake.table.schema().column_names)


def test_a_branch_is_written_and_main_is_not(lake: Lake) -> None:
    lake.create(pa.schema({"id": pa.int64()}))
    with pytest.raises(TargetError, match="has no branch 'audit'"):
        lake.driver(branch="audit").write(0, batch(id=pa.array([1])))
    lake.append(batch(id=pa.array([0])))
    lake.table.manage_snapshots().create_branch(lake.head().id, "audit").create_tag(lake.head().id, "v1").commit()
    with pytest.raises(TargetError, match="has a tag 'v1'"):
        lake.driver(branch="v1").write(0, batch(id=pa.array([1])))
    driver = lake.driver(branch="audit")
    driver.write(0, batch(id=pa.array([1])))
    lake.append(batch(id=pa.array([5])))
    driver.write(1, batch(id=pa.array([2])))
    assert lake.rows("id") == [0, 5]
    assert sorted(row["id"] for row in lake.files.rows(lake.head("audit"))) == [0, 1, 2]
    lake.table.manage_snapshots().remove_branch("audit").commit()
    with pytest.raises(TargetError, match="has no branch 'audit'"):
        driver.write(2, batch(id=pa.array([3])))
