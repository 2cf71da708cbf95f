"""T3: every type that Delta has and Spark or Arrow brings arrives unchanged, also as a partition and in structs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, ValueRefusedError
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.integration.support.duck import Duck

pytestmark = pytest.mark.thorough

MOMENT = datetime.fromisoformat("2026-03-29T01:59:59.999999")
DAY = date(1969, 12, 31)
STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "x", "type": "long", "nullable": True, "metadata": {}},
        {"name": "y", "type": "string", "nullable": True, "metadata": {}},
    ],
}
NTZ = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["timestampNtz"],
    "writerFeatures": ["timestampNtz"],
}

PLAIN: list[tuple[str, pa.DataType, list[Any]]] = [
    ("boolean", pa.bool_(), [True, False, None]),
    ("byte", pa.int8(), [-128, 127, None]),
    ("short", pa.int8(), [-128]),
    ("integer", pa.uint16(), [65_535]),
    ("long", pa.int64(), [-(2**63), 2**63 - 1]),
    ("float", pa.float32(), [0.5, float("-inf"), None]),
    ("double", pa.int32(), [2**31 - 1]),
    ("double", pa.float64(), [0.1, float("inf"), -0.0]),
    ("decimal(9,2)", pa.decimal128(5, 1), [Decimal("-1.2"), None]),
    ("decimal(38,10)", pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789")]),
    ("date", pa.date32(), [DAY, None]),
    ("timestamp", pa.timestamp("us", "Europe/Berlin"), [MOMENT.replace(tzinfo=UTC), None]),
    ("timestamp_ntz", pa.timestamp("us"), [MOMENT, None]),
    ("string", pa.string(), ["ä€𝄞", "a/b=%20 '\"\\", None]),
]
NESTED: list[tuple[Any, pa.DataType, list[Any]]] = [
    ("binary", pa.binary(), [b"\x00\xff", b"", None]),
    ("string", pa.string(), [""]),
    (STRUCT, pa.struct([("y", pa.string()), ("x", pa.int8())]), [{"y": "a", "x": 1}, None]),
    ({"type": "array", "elementType": STRUCT, "containsNull": True}, pa.list_(pa.struct([("x", pa.int64())])),
     [[{"x": 1}, None], [], None]),
    ({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
     pa.map_(pa.string(), pa.int32()), [[("k", 1)], [], None]),
]  # fmt: skip


def same(given: Any, found: Any) -> bool:
    if isinstance(given, dict) and isinstance(found, dict):
        return all(same(value, found.get(name)) for name, value in given.items())
    if isinstance(given, list) and isinstance(found, list):
        return len(given) == len(found) and all(map(same, given, found))
    if isinstance(given, datetime) and given.tzinfo is not None:
        return bool(found == given)
    return repr(given) == repr(found) or (isinstance(given, int | Decimal) and found == given)


@pytest.mark.parametrize(("kind", "given", "values"), [*PLAIN, *NESTED], ids=str)
def test_a_value_arrives_unchanged(shore: Shore, kind: Any, given: pa.DataType, values: list[Any]) -> None:
    shore.create({"id": "long", "v": kind}, protocol=NTZ if kind == "timestamp_ntz" else None)
    shore.driver().write(0, batch(id=list(range(len(values))), v=pa.array(values, given)))
    found = [row["v"] for row in sorted(shore.newest.rows(), key=lambda row: row["id"])]
    assert all(map(same, values, found)), found


@pytest.mark.parametrize(("kind", "given", "values"), PLAIN, ids=str)
def test_a_value_is_its_partition(shore: Shore, duck: Duck, kind: str, given: pa.DataType, values: list[Any]) -> None:
    shore.create({"id": "long", "v": kind}, "v", protocol=NTZ if kind == "timestamp_ntz" else None)
    rows = batch(id=list(range(len(values))), v=pa.array(values, given))
    shore.driver().write(0, rows, rows)
    read = [row["v"] for row in sorted(shore.newest.rows(), key=lambda row: row["id"])]
    assert all(map(same, [value for value in values for _ in range(2)], read)), read
    # As two other readers understand the text.
    scanned = sorted(pa.table(shore.table.scan().read_all()).to_pylist(), key=lambda row: row["id"])
    assert all(map(same, [value for value in values for _ in range(2)], [row["v"] for row in scanned]))
    texts = duck.delta(shore.path, "id, v::VARCHAR AS v, v IS NULL AS n")
    assert {(number, missing) for number, _, missing in texts} == {
        (number, value is None) for number, value in enumerate(values)
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [(MOMENT.replace(tzinfo=UTC), "2026-03-29 01:59:59.999999+00"), (DAY, "1969-12-31"), (Decimal("1.25"), "1.25")],
    ids=str,
)
def test_another_reader_finds_rows_by_their_partition(shore: Shore, duck: Duck, value: Any, shown: str) -> None:
    kinds = {datetime: "timestamp", date: "date", Decimal: "decimal(9,2)"}
    shore.create({"id": "long", "v": kinds[type(value)]}, "v")
    shore.driver().write(0, batch(id=[1, 2], v=pa.array([value, None])))
    duck.query("SET TimeZone = 'UTC'")
    assert duck.delta(shore.path, "id, v::VARCHAR") in ([(1, shown), (2, None)], [(2, None), (1, shown)])


@pytest.mark.parametrize("bound", [-5, 0, 5, 12])
def test_no_reader_skips_a_file_that_holds_what_it_looks_for(shore: Shore, duck: Duck, bound: int) -> None:
    shore.create({"id": "long", "s": "string", "t": "timestamp"})
    driver = shore.driver()
    for epoch in range(4):
        numbers = list(range(epoch * 4 - 4, epoch * 4))
        driver.write(
            epoch,
            batch(
                id=numbers,
                s=[f"{number + 100:04}" + "x" * 40 for number in numbers],
                t=pa.array([number * 400 for number in numbers], pa.timestamp("us", "UTC")),
            ),
        )
    wanted = [number for number in range(-4, 12) if number > bound]
    found = duck.query(f"SELECT count(*) FROM delta_scan('{shore.path}') WHERE id > {bound}")
    assert found == [(len(wanted),)]
    text = f"{bound + 100:04}" + "x" * 40
    assert duck.query(f"SELECT count(*) FROM delta_scan('{shore.path}') WHERE s > '{text}'") == [(len(wanted),)]
    at = f"make_timestamp({bound * 400})::TIMESTAMPTZ"
    duck.query("SET TimeZone = 'UTC'")
    assert duck.query(f"SELECT count(*) FROM delta_scan('{shore.path}') WHERE t > {at}") == [(len(wanted),)]


def test_null_where_the_table_asks_for_a_value_is_refused(shore: Shore) -> None:
    shore.create({"id": "long", "v": "string"})
    entry = shore.path / "_delta_log" / f"{0:020}.json"
    entry.write_text(entry.read_text().replace('\\"nullable\\": true', '\\"nullable\\": false'))
    with pytest.raises(ValueRefusedError, match="column 'v' is NULL in row 1"):
        shore.driver().write(0, batch(id=[1, 2], v=["a", None]))
    with pytest.raises(ConfigurationError, match="v is missing, and the table requires it"):
        shore.driver().write(0, batch(id=[1]))
    assert shore.rows() == []


def test_an_empty_text_is_no_partition(shore: Shore) -> None:
    shore.create({"id": "long", "v": "string"}, "v")
    with pytest.raises(ValueRefusedError, match=r"'v'.* is an empty string in row 1"):
        shore.driver().write(0, batch(id=[1, 2], v=["a", ""]))


def test_a_schema_that_grows_is_written_where_that_is_asked_for(shore: Shore, duck: Duck) -> None:
    shore.create({"id": "long", "s": STRUCT})
    before = batch(id=[1], s=pa.array([{"x": 1, "y": "a"}], pa.struct([("x", pa.int64()), ("y", pa.string())])))
    inner = pa.struct([("x", pa.int64()), ("z", pa.int32())])
    after = batch(id=[2], s=pa.array([{"x": 2, "z": 3}], inner), day=pa.array([DAY]))
    driver = shore.driver(schema_evolution="add_columns")
    driver.write(0, before)
    with pytest.raises(ConfigurationError, match=r"s\.z is not in the table; day is not in the table"):
        shore.driver(on_existing="resume").write(0, after)
    driver.write(1, after)
    driver.write(2, before)
    assert shore.rows("id") == [1, 1, 2]
    assert duck.delta(shore.path, "s.z, day").count((None, None)) == 2
    assert (3, DAY) in duck.delta(shore.path, "s.z, day")
    with pytest.raises(ConfigurationError, match="id is string, and bigint in the table"):
        driver.write(3, batch(id=["1"]))


def test_a_table_is_made_for_the_rows(shore: Shore, duck: Duck) -> None:
    rows = batch(
        id=pa.array([1], pa.int16()), t=pa.array([MOMENT], pa.timestamp("us")), carrier=["UA"], bytes=pa.array([b"x"])
    )
    given: dict[str, Any] = {
        "create_table": "if_missing",
        "partition_by": "carrier",
        "configuration": {"delta.appendOnly": "true"},
    }
    shore.driver(**given).write(0, rows)
    version = shore.newest
    assert version.columns == {"id": "short", "t": "timestamp_ntz", "carrier": "string", "bytes": "binary"}
    assert version.metadata["partitionColumns"] == ["carrier"]
    assert version.metadata["configuration"] == {"delta.appendOnly": "true", "delta.checkpointInterval": "10"}
    assert duck.delta(shore.path, "id, carrier") == [(1, "UA")]


def test_partitions_that_an_epoch_touches_are_replaced_with_its_rows(shore: Shore, duck: Duck) -> None:
    shore.create({"id": "long", "day": "timestamp"}, "day")
    days = pa.array([MOMENT, None, datetime(2026, 1, 1)], pa.timestamp("us", "UTC"))  # noqa: DTZ001 - in the type
    shore.append(batch(id=[1, 2, 3], day=days))
    driver = shore.driver(write_mode="overwrite_partitions")
    driver.write(0, batch(id=[11, 12], day=days[:2]), batch(id=[21], day=days[:1]))
    driver.write(1, batch(id=[31], day=days[:1]))
    assert shore.rows("id") == [12, 3, 31]
    assert [sorted(row["id"] for row in version.rows()) for version in shore.versions[1:]] == [
        [1, 2, 3], [3, 11, 12, 21], [3, 12, 31],
    ]  # fmt: skip
    assert sorted(duck.delta(shore.path, "id")) == [(3,), (12,), (31,)]
