"""Events of a real Debezium (3.6.1, PostgreSQL 18, recorded from Kafka) become rows for `write_mode="changes"`."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from outfall.delivery_order import PER_GENERATION, PER_OFFSET, TopicLife
from outfall.errors import ConfigurationError
from outfall.spark.debezium import changes
from outfall.spark.debezium.order import ReadTopics
from outfall.spark.version_check import pyspark_version
from outfall.unavailable import UNAVAILABLE, UNAVAILABLE_UUID
from tests.integration.debezium.support import frame, recorded

FAILED = (PySparkException, Py4JError)
"""What a query fails with; the latter in Spark 3.5."""
ORDERS = (
    "id BIGINT, city STRING, price DECIMAL(10,2), big DECIMAL(38,9), paid BOOLEAN, small SMALLINT, real8 DOUBLE,"
    " day DATE, made TIMESTAMP_NTZ, made3 TIMESTAMP_NTZ, raw BINARY, doc STRING, tags ARRAY<STRING>, nums ARRAY<INT>,"
    " pt STRUCT<x: DOUBLE, y: DOUBLE>, note STRING"
)
MADE = datetime.fromisoformat("2024-02-29 10:11:12.123456")
FIRST: dict[str, Any] = {
    "id": 1, "city": "Oslo", "price": Decimal("12.50"), "big": Decimal("12345678901234567890.123456789"), "paid": True,
    "small": 3, "real8": 2.25, "day": date(2024, 2, 29), "made": MADE,
    "made3": MADE.replace(microsecond=123000), "raw": b"\x00\xff\x10", "doc": '{"a": [1, 2.50]}',
    "tags": ["a", "b c", None], "nums": [1, 2], "pt": (1.0, 2.0), "note": "short", "op": "r", "seq": PER_GENERATION,
}  # fmt: skip


def envelope(offset: int, op: str | None, row: Any, *, key: str | None = '{"id":1}', **more: Any) -> dict[str, Any]:
    """Return a record like those of a connector, as much of it as matters."""
    images = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    value = {**images, "op": op, "source": {"db": "shop", "schema": "public", "table": "orders"}} | more
    return {"key": key, "value": json.dumps(value), "topic": "shop.public.orders", "partition": 0, "offset": offset}


def last(rows: DataFrame) -> dict[int, tuple[str, Any]]:
    """Return the operation and city of the newest change of each key."""
    ordered = sorted(rows.collect(), key=lambda row: row["seq"])
    return {row["id"]: (row["op"], row["city"]) for row in ordered}


@pytest.mark.thorough
def test_values_in_the_forms_that_need_no_unit_become_the_columns_of_the_table(spark: SparkSession) -> None:
    rows = changes(frame(spark, recorded("text")), ORDERS, order=1)
    assert rows.schema["seq"].dataType.simpleString() == "decimal(38,0)"
    found = {row["seq"]: row.asDict() for row in rows.collect()}
    assert found[Decimal(PER_GENERATION)] == FIRST
    # A row of NULLs, and a removal, of which PostgreSQL sends only the key.
    nulls = dict.fromkeys(FIRST, None)
    assert found[Decimal(PER_GENERATION + PER_OFFSET)] == nulls | {
        "id": 4, "op": "r", "seq": PER_GENERATION + PER_OFFSET
    }  # fmt: skip
    removals = {row["id"] for row in found.values() if row["op"] == "d"}
    assert removals == {10, 11}
    assert all(value is None for row in found.values() if row["op"] == "d" for name, value in row.items()
               if name not in ("id", "op", "seq"))  # fmt: skip


@pytest.mark.thorough
def test_the_order_is_that_of_delivery_also_for_keys_that_changed_and_incremental_snapshots(
    spark: SparkSession,
) -> None:
    records = recorded("text")
    rows = changes(frame(spark, records), "id BIGINT, city STRING", order=1)
    # Key 10 became 11 and was removed; 2 was updated after the incremental snapshot, whose rows have no position.
    assert last(rows) == {
        1: ("r", "Oslo"), 2: ("u", "Rome"), 3: ("r", "Bergen"), 4: ("r", None), 10: ("d", None), 11: ("d", None)
    }  # fmt: skip
    numbers = {row["seq"] for row in rows.collect()}
    assert len(numbers) == rows.count() == sum(record["value"] is not None for record in records)


def test_a_commit_that_is_late_wins_although_its_position_is_smaller(spark: SparkSession) -> None:
    # As seen on Debezium 3.6.1: a transaction that is open while the connector takes its snapshot.
    source = {"db": "shop", "schema": "public", "table": "orders"}
    late = [
        envelope(0, "r", {"id": 1, "city": "old"}, source=source | {"lsn": 22195960}),
        envelope(1, "u", {"id": 1, "city": "new"}, source=source | {"lsn": 22195776}),
        envelope(2, "r", {"id": 2, "city": "again"}, source=source | {"lsn": None}, key='{"id":2}'),
    ]
    rows = changes(frame(spark, late), "id BIGINT, city STRING", order=1)
    assert last(rows) == {1: ("u", "new"), 2: ("r", "again")}


@pytest.mark.thorough
def test_events_with_their_schema_are_read_as_those_without(spark: SparkSession) -> None:
    rows = changes(frame(spark, recorded("schemas")), "id BIGINT, city STRING, day DATE", order=1)
    assert [(row["op"], row["id"], row["city"], row["day"]) for row in rows.orderBy("seq").collect()] == [
        ("r", 3, "Bergen", date(2024, 2, 29)), ("u", 3, "Bergen", date(2024, 2, 29)), ("d", 10, None, None)
    ]  # fmt: skip


@pytest.mark.thorough
def test_flat_events_have_the_same_rows(spark: SparkSession) -> None:
    rows = changes(frame(spark, recorded("flat")), "id BIGINT, city STRING, day DATE", order=1, form="flat")
    assert last(rows)[2] == ("c", "Rome")
    assert {row["id"] for row in rows.collect() if row["op"] == "d"} == {10, 11}


def test_what_is_no_change_of_a_row_is_left_out(spark: SparkSession) -> None:
    records = recorded("others")
    assert {record["topic"] for record in records} >= {"plain.transaction", "__debezium-heartbeat.plain"}
    assert changes(frame(spark, records), "id BIGINT", order=1, table="public.orders").collect() == []


@pytest.mark.thorough
def test_numbers_in_place_of_times_need_their_unit(spark: SparkSession) -> None:
    columns = "id BIGINT, day DATE, made TIMESTAMP_NTZ, made3 TIMESTAMP_NTZ, seen TIMESTAMP"
    records = [record for record in recorded("adaptive") if '"op":"t"' not in (record["value"] or "")]
    with pytest.raises(FAILED, match=r"offset 0: this record .* made is not a timestamp_ntz: .* with times"):
        changes(frame(spark, records[:1]), columns, order=1).collect()
    rows = changes(frame(spark, records), columns, order=1, times={"made": "micros", "made3": "millis"})
    first = rows.where("op = 'r' AND id = 1").selectExpr("day", "made", "made3", "unix_micros(seen) AS seen").first()
    assert first is not None
    day, made, made3, seen = first
    assert (day, made, made3) == (FIRST["day"], FIRST["made"], FIRST["made3"])
    assert seen == 1709194272123456


@pytest.mark.thorough
def test_a_truncation_is_an_error_or_left_out(spark: SparkSession) -> None:
    records = [record for record in recorded("adaptive") if '"op":"t"' in (record["value"] or "")]
    assert [record["key"] for record in records] == [None]
    with pytest.raises(FAILED, match="it is a truncation"):
        changes(frame(spark, records), "id BIGINT", order=1).collect()
    assert changes(frame(spark, records), "id BIGINT", order=1, on_truncate="ignore").collect() == []


class Lives:
    """What the brokers would say."""

    def __init__(self, *lives: TopicLife) -> None:
        self._lives = lives

    def open(self) -> Sequence[TopicLife]:
        return self._lives


LIFE = Lives(TopicLife("shop.public.orders", 3, 1))


GOOD = {"id": 1, "city": "Oslo"}
FLAT = {"__op": "c", "__deleted": "false"}


def flat(more: dict[str, Any]) -> dict[str, Any]:
    return envelope(0, "c", GOOD) | {"value": json.dumps(GOOD | more)}


def numeric(name: str, digits: str) -> dict[str, Any]:
    """Return a record with a number that Python could not hold."""
    return envelope(0, "c", GOOD) | {"value": f'{{"after": {{"id": 1, "{name}": {digits}}}, "op": "c"}}'}


REFUSED = [
    ("not JSON", envelope(0, "c", GOOD) | {"value": "no"}, {}, "no JSON object"),
    ("flat", envelope(0, None, GOOD) | {"value": json.dumps({**GOOD, "__op": "c"})}, {}, "no operation of a change"),
    ("an envelope", envelope(0, "c", GOOD), {"form": "flat"}, "no operation of a change"),
    ("unknown", envelope(0, "x", GOOD), {}, "no operation of a change"),
    ("no key", envelope(0, "c", GOOD, key=None), {}, "primary key"),
    ("no row", envelope(0, "c", None), {}, "it has no row"),
    ("another table", envelope(0, "c", GOOD, source={"table": "items"}), {}, "pass table"),
    ("another topic", envelope(0, "c", GOOD) | {"topic": "x.orders"}, {"order": LIFE}, "order does not have its topic"),
    (
        "a new partition",
        envelope(0, "c", GOOD) | {"partition": 1},
        {"order": LIFE},
        "'After an accident' in",
    ),
    ("another type", envelope(0, "c", {"id": "1.5"}), {}, "value of id is not a bigint"),
    ("too many digits", envelope(0, "c", {"id": 1, "price": "1.255"}), {}, "price is not a .* digits of the source"),
    ("base64", envelope(0, "c", {"id": 1, "price": "BOI="}), {}, "decimal.handling.mode to string"),
    ("no base64", envelope(0, "c", {"id": 1, "raw": "a-"}), {}, "binary.handling.mode"),
    ("no time", envelope(0, "c", {"id": 1, "made": "infinity"}), {}, "time.precision.mode"),
    ("digits of 38", envelope(0, "c", {"id": 1, "big": "1.1234567891"}), {}, "big is not a .* digits of the source"),
    ("a long number", numeric("big", "12345678901234567890.123456789"), {}, "big is a number with more digits"),
    ("a long number as text", numeric("city", "1234567890.12345678901"), {}, "city is a number with more digits"),
    ("a time of day", envelope(0, "c", {"id": 1, "made": "10:11:12.5Z"}), {}, "time.precision.mode"),
    ("a time without zone", envelope(0, "c", {"id": 1, "made": "2024-02-29T10:11:12"}), {}, "time.precision.mode"),
    ("infinity", envelope(0, "c", {"id": 1, "made": 9223372036825200000}), {}, "made is not a timestamp"),
    ("a day of infinity", envelope(0, "c", {"id": 1, "day": 2147483647}), {}, "day is not a date"),
    ("a time as a day", envelope(0, "c", {"id": 1, "day": "2024-02-29T10:11:12Z"}), {}, "day is not a date"),
    ("infinite", envelope(0, "c", {"id": 1, "real4": 1e300}), {}, "real4 is not a float"),
    ("no number in an array", envelope(0, "c", {"id": 1, "nums": ["a"]}), {}, "nums is not a"),
    ("digits in an array", envelope(0, "c", {"id": 1, "prices": ["1.255"]}), {}, "prices is not a"),
    ("no array", envelope(0, "c", {"id": 1, "nums": 1}), {}, "nums is not a"),
    ("another case", envelope(0, "c", {"id": 1, "Raw": "AP8Q"}), {}, "no field raw, and one in another case"),
    ("no removals", flat({"__op": "c"}), {"form": "flat"}, "delete.tombstone.handling.mode=rewrite"),
    ("no table", flat(FLAT), {"form": "flat", "table": "public.orders"}, "of which table it is"),
    ("no schema", flat(FLAT | {"__table": "orders"}), {"form": "flat", "table": "public.orders"}, "which table it is"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("ansi", [True, False], ids=["ansi", "legacy"])
def test_a_record_that_cannot_be_applied_is_named_with_the_remedy(spark: SparkSession, ansi: bool) -> None:
    columns = (
        "id BIGINT, city STRING, price DECIMAL(10,2), raw BINARY, made TIMESTAMP, day DATE, big DECIMAL(38,9),"
        " real4 FLOAT, nums ARRAY<INT>, prices ARRAY<DECIMAL(10,2)>"
    )
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    try:
        for options in ({}, {"form": "flat"}, {"form": "flat", "table": "public.orders"}, {"order": LIFE}):
            these = [record | {"offset": n} for n, (_, record, given, _) in enumerate(REFUSED) if given == options]
            texts = [why for _, _, given, why in REFUSED if given == options]
            good = [] if "form" in options else [envelope(99, "c", GOOD)]
            given: dict[str, Any] = {"order": 1, "on_error": "null", "times": {"made": "millis"}, **options}
            rows = changes(frame(spark, these + good), columns, **given).collect()
            rows.sort(key=lambda row: row["seq"])
            assert [row["op"] for row in rows] == [None] * len(these) + ["c"] * len(good)
            for row, why in zip(rows, texts, strict=False):
                assert re.search(why, row["op_error"])
            assert all(row["op_error"] is None for row in rows[len(these) :])
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before or "true")
    with pytest.raises(FAILED, match=r"topic shop.public.orders, partition 0, offset 0: .* no JSON object"):
        changes(frame(spark, [REFUSED[0][1]]), columns, order=1).collect()


@pytest.mark.thorough
def test_a_value_that_is_not_sent_is_kept_or_an_error(spark: SparkSession) -> None:
    text, data = UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode()
    values = {
        "city": text, "raw": data, "tags": [text], "uuids": [UNAVAILABLE_UUID], "blobs": [data],
        "nums": list(UNAVAILABLE.encode()), "bigs": list(UNAVAILABLE.encode()),
    }  # fmt: skip
    columns = (
        "id BIGINT, city STRING, raw BINARY, tags ARRAY<STRING>, uuids ARRAY<STRING>, blobs ARRAY<BINARY>,"
        " nums ARRAY<INT>, bigs ARRAY<BIGINT>"
    )
    records = [envelope(n, "u", {"id": 1, name: value}) for n, (name, value) in enumerate(values.items())]
    records += [
        envelope(20, "d", {"id": 1, "city": text}),
        envelope(21, "u", {"id": 1, "city": "a", "tags": [text, text]}),
    ]
    read = frame(spark, records)
    kept = changes(read, columns, order=1).orderBy("seq").collect()
    assert (kept[0]["city"], kept[1]["raw"], kept[3]["uuids"]) == (text, text.encode(), [UNAVAILABLE_UUID])
    refused = changes(read, columns, order=1, on_unavailable="fail", on_error="null").orderBy("seq").collect()
    assert [row["op"] for row in refused] == [None] * len(values) + ["d", "u"]
    for row, name in zip(refused, values, strict=False):
        assert f"the value of {name} is not in the event" in row["op_error"]
        assert "REPLICA IDENTITY FULL" in row["op_error"]


@pytest.mark.thorough
def test_values_are_exact_and_parts_of_nested_ones_follow_the_same_rules(spark: SparkSession) -> None:
    row = {
        "id": 1, "nano": 1709194272123455999, "price": 12.5, "pt": None, "raws": ["AP8Q"],
        "doc": [{"days": ["2024-02-29Z", None], "of": {"a": "1.50"}}, None],
    }  # fmt: skip
    columns = (
        "id BIGINT, nano TIMESTAMP_NTZ, price DECIMAL(38,1), doc ARRAY<STRUCT<days: ARRAY<DATE>, of: MAP<STRING,"
        " DECIMAL(9,2)>>>, pt STRUCT<x: DOUBLE>, raws ARRAY<BINARY>"
    )
    (found,) = changes(frame(spark, [envelope(0, "c", row)]), columns, order=1, times={"nano": "nanos"}).collect()
    assert found["nano"] == datetime.fromisoformat("2024-02-29 08:11:12.123455")
    assert found["price"] == Decimal("12.5")
    assert found["doc"] == [([date(2024, 2, 29), None], {"a": Decimal("1.50")}), None]
    assert (found["pt"], found["raws"]) == (None, [b"\x00\xff\x10"])


@pytest.mark.thorough
def test_columns_and_tables_may_have_names_that_events_use_too(spark: SparkSession) -> None:
    names = ("payload", "schema", "op", "before", "status", "a.b", "it's")
    plain = envelope(
        0, "c", {"id": 1} | {name: f"x {name}" for name in names}, source={"schema": "a.b", "table": "c.d"}
    )
    wrapped = plain | {"value": json.dumps({"schema": {}, "payload": json.loads(plain["value"])}), "offset": 1}
    columns = f"id BIGINT, {', '.join(f'`{name}` STRING' for name in names)}"
    rows = changes(frame(spark, [plain, wrapped]), columns, order=1, table="a.b.c.d", operation_column="did").collect()
    assert [[row[name] for name in names] for row in rows] == [[f"x {name}" for name in names]] * 2
    of_tables = [flat(FLAT | {"__schema": schema, "__table": "orders"}) for schema in ("one", "two")]
    of_tables.append(flat(FLAT | {"__table": "items"}))
    for table, count in (("one.orders", 1), ("orders", 2), ("orders2", 0), ("items", 1)):
        rows = changes(frame(spark, of_tables), "id BIGINT", order=1, form="flat", table=table).collect()
        assert len(rows) == count


@pytest.mark.thorough
def test_a_type_that_cannot_hold_a_number_of_avro_is_an_error(spark: SparkSession) -> None:
    row = (
        "named_struct('a', 1.5D, 'b', timestamp'1970-01-10 00:00:00', 'c', 5, 'd', 1.2345BD, 'e', 9007199254740993L,"
        " 'f', named_struct('x', 1))"
    )
    value = f"named_struct('before', {row}, 'after', {row}, 'op', 'c')"
    records = spark.sql(f"SELECT cast('k' AS binary) key, {value} value, 't' topic, 0 partition, 0L offset")
    wrong = ("a BIGINT", "b DATE", "c BOOLEAN", "d DECIMAL(38,2)", "e DOUBLE")
    right = ("a STRING, b STRING, f STRING", "a DECIMAL(9,1)", "c DOUBLE", "d DECIMAL(38,4)", "e DECIMAL(38,0)")
    errors = [
        changes(records, columns, order=1, on_error="null").selectExpr("op_error") for columns in (*wrong, *right)
    ]
    found = [error.first() for error in errors]
    assert [row is not None and row[0] is not None for row in found] == [True] * len(wrong) + [False] * len(right)


def test_the_brokers_are_asked_once_and_their_generation_outranks_earlier_ones(spark: SparkSession) -> None:
    records = frame(spark, [envelope(7, "c", GOOD)])
    (row,) = changes(records, "id BIGINT", order=LIFE).collect()
    assert row["seq"] == 3 * PER_GENERATION + 7 * PER_OFFSET
    # Greater than any position in a log, and than all offsets of an earlier life.
    largest = envelope(2**63 - 1, "c", GOOD) | {"partition": 10**9 - 1}
    (row,) = changes(frame(spark, [largest]), "id BIGINT", order=2).collect()
    assert row["seq"] == 2 * PER_GENERATION + (2**63 - 1) * PER_OFFSET + 10**9 - 1 < 3 * PER_GENERATION
    assert PER_GENERATION > 2**63 - 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"order": 0}, "generation 0"),
    ({"order": "1"}, "order is a str"),
    ({"order": {}}, "order is a dict without topics"),
    ({"order": {"a.orders": 0}}, "generation 0 of the topic a.orders"),
    ({"order": {"a.b.orders": 2, "a.c.orders": 2}}, "topics a.b.orders and a.c.orders both have the changes of one"),
    ({"order": {"a.b.x": 1, "c.b.x": 1}, "table": "b.x"}, "both have the changes of b.x, and the generation 1"),
    ({"form": "flatt"}, "form is 'flatt'"),
    ({"on_error": "skip"}, "on_error is 'skip'"),
    ({"on_unavailable": "drop"}, "on_unavailable is 'drop'"),
    ({"times": "seconds"}, "times is 'seconds'"),
    ({"times": {"made": "micros"}}, "'made', which is no column"),
    ({"operation_column": "ID"}, "two columns have the name 'ID'"),
    ({"columns": ""}, "columns is ''"),
    ({"columns": "id BIGINT, span INTERVAL DAY TO SECOND"}, "span has the type interval day to second"),
]
if pyspark_version() >= (4, 0):
    WRONG.append(({"columns": "id BIGINT, doc ARRAY<STRUCT<a: VARIANT>>"}, "doc has the type variant"))


@pytest.mark.parametrize(("options", "why"), WRONG, ids=[why for _, why in WRONG])
def test_wrong_arguments_fail_where_the_query_is_defined(
    spark: SparkSession, options: dict[str, Any], why: str
) -> None:
    given = {"columns": "id BIGINT", "order": 1, **options}
    with pytest.raises(ConfigurationError, match=why):
        changes(frame(spark, []), given.pop("columns"), **given)


def test_rows_that_are_no_records_are_rejected(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="offset"):
        changes(frame(spark, []).drop("offset"), "id BIGINT", order=1)
    with pytest.raises(ConfigurationError, match="An event is JSON, or a struct"):
        changes(frame(spark, []).selectExpr("key", "1 AS value", "topic", "partition", "offset"), "id BIGINT", order=1)


AVRO = (
    "struct<before: struct<id: bigint, city: string, made: timestamp, at: bigint>,"
    " after: struct<id: bigint, city: string, made: timestamp, at: bigint>, op: string,"
    " source: struct<schema: string, table: string>>"
)


@pytest.mark.thorough
def test_events_that_deserialize_has_read_keep_the_types_of_their_schema(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    row = '{"id": 1, "city": "Oslo", "made": "2024-02-29T10:11:12.5Z", "at": 1709201472123}'
    event = f'{{"after": {row}, "op": "c", "source": {{"schema": "public", "table": "orders"}}}}'
    records = frame(spark, [envelope(0, "c", GOOD) | {"value": event}])
    typed = records.selectExpr(
        "key", f"from_json(cast(value AS string), '{AVRO}') AS value", "topic", "partition", "offset"
    )
    columns = "id BIGINT, city STRING, made TIMESTAMP_NTZ, at TIMESTAMP_NTZ"
    (found,) = changes(typed, columns, order=1, times="millis").collect()
    assert (found["op"], found["id"], found["city"]) == ("c", 1, "Oslo")
    assert found["made"] == MADE.replace(microsecond=500000)
    assert found["at"] == MADE.replace(microsecond=123000)
    with pytest.raises(ConfigurationError, match="no field 'price'"):
        changes(typed, "id BIGINT, price DOUBLE", order=1)


def test_a_struct_that_is_no_event_is_refused_where_the_query_is_defined(spark: SparkSession) -> None:
    records = frame(spark, [envelope(0, "c", GOOD)])
    rows = records.withColumn("value", sql.expr("named_struct('after', named_struct('id', 1L), 'op', 'c')"))
    with pytest.raises(ConfigurationError, match=r"no field 'before'.*form='flat'"):
        changes(rows, "id BIGINT", order=1)


def test_a_time_without_a_zone_is_one_of_utc_in_a_column_with_a_zone(spark: SparkSession) -> None:
    # The zone of the session skips this time.
    record = frame(spark, [envelope(0, "c", GOOD)]).selectExpr(
        "key",
        "named_struct('before', cast(NULL AS STRUCT<id: BIGINT, made: TIMESTAMP_NTZ>), 'after', named_struct("
        "'id', 1L, 'made', timestamp_ntz'2024-03-10 02:30:00.5'), 'op', 'c', 'source',"
        " named_struct('schema', 'public', 'table', 'orders')) AS value",
        "topic",
        "partition",
        "offset",
    )
    (found,) = changes(record, "id BIGINT, made TIMESTAMP", order=1).selectExpr("unix_millis(made) AS made").collect()
    assert found["made"] == 1710037800500


@pytest.fixture(autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    """A zone that is not UTC shows what depends on it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


TABLES = {"public.orders": "id BIGINT, city STRING, price DECIMAL(10,2)", "public.debezium_signal": "type STRING"}


@pytest.mark.thorough
def test_the_changes_of_several_tables_have_the_columns_of_all_and_their_table(spark: SparkSession) -> None:
    signals = [record for record in recorded("others") if record["topic"].endswith("signal")]
    rows = changes(frame(spark, [*recorded("text"), *signals]), TABLES, order=3)
    assert rows.columns == ["id", "city", "price", "type", "op", "seq", "table"]
    orders, others = (rows.where(f"table = '{name}'") for name in TABLES)
    alone = changes(frame(spark, recorded("text")), TABLES["public.orders"], order=3)
    assert orders.drop("type", "table").orderBy("seq").collect() == alone.orderBy("seq").collect()
    assert others.selectExpr("id", "type", "op", "cast(seq AS string)").orderBy("seq").collect()[0] == (
        None, "snapshot-window-open", "c", str(3 * PER_GENERATION)
    )  # fmt: skip


def test_changes_of_several_tables_need_one_type_for_each_column_and_no_other_table(spark: SparkSession) -> None:
    records = frame(spark, [envelope(0, "c", {"id": 1, "City": "Oslo"})])
    with pytest.raises(ConfigurationError, match=r"'id' is bigint in public.orders, and string in public.b"):
        changes(records, {"public.orders": "id BIGINT", "public.b": "id STRING"}, order=1)
    with pytest.raises(ConfigurationError, match=r"the column 'id' of public.orders is 'Id' in public.b"):
        changes(records, {"public.orders": "id BIGINT", "public.b": "Id BIGINT"}, order=1)
    with pytest.raises(ConfigurationError, match="table is set"):
        changes(records, TABLES, order=1, table="public.orders")
    # A field that only another table has may have any case.
    several = {"public.orders": "id BIGINT", "public.b": "id BIGINT, city STRING"}
    assert changes(records, several, order=1).first()[:2] == (1, None)  # type: ignore[index]
    unlisted = changes(records, {"public.b": "id BIGINT"}, order=1, on_error="null").first()
    assert unlisted is not None
    assert (unlisted["op"], unlisted["op_error"][:43]) == (None, "it is of a table that columns does not have")


def of(table: str, offset: int, partition: int = 0) -> dict[str, Any]:
    source = {"db": "shop", "schema": "public", "table": table}
    return envelope(offset, "c", GOOD, source=source) | {"topic": f"shop.public.{table}", "partition": partition}


def test_each_of_several_topics_has_its_own_generation_and_partitions_and_no_other_is_read(spark: SparkSession) -> None:
    lives = Lives(TopicLife("shop.public.a", 1, 1), TopicLife("shop.public.b", 3, 2), TopicLife("shop.public.c"))
    tables = {f"public.{name}": "id BIGINT" for name in "abcd"}
    records = [of("a", 0), of("a", 1, 1), of("b", 2, 1), of("b", 3, 2), of("c", 4, 9), of("d", 5)]
    rows = changes(frame(spark, records), tables, order=lives, on_error="null").collect()
    found = {(row["table"][-1], row["seq"] and int(row["seq"])): row["op_error"] for row in rows}
    assert {key: why and why.split(",")[0] for key, why in found.items()} == {
        ("a", PER_GENERATION): None,
        ("a", PER_GENERATION + PER_OFFSET + 1): "the topic has more than 1 partitions",
        ("b", 3 * PER_GENERATION + 2 * PER_OFFSET + 1): None,
        ("b", 3 * PER_GENERATION + 3 * PER_OFFSET + 2): "the topic has more than 2 partitions",
        ("c", PER_GENERATION + 4 * PER_OFFSET + 9): None,
        ("d", None): "order does not have its topic",
    }
    with pytest.raises(FAILED, match=r"topic shop.public.d, partition 0, offset 5: .* order does not have its topic"):
        changes(frame(spark, records[-1:]), tables, order=lives).collect()


def test_a_topic_takes_over_a_table_in_a_greater_generation_only(spark: SparkSession) -> None:
    tables = {"public.a b": "id BIGINT", "other.a_b": "id BIGINT"}
    records = frame(spark, [of("a_b", 0)])
    with pytest.raises(ConfigurationError, match=r"topics eu\.\S+ and us\.\S+ both have the changes of public\.a b"):
        changes(records, tables, order={"eu.public.a_b": 1, "eu.other.a_b": 1, "us.public.a_b": 1})
    changes(records, tables, order={"eu.public.a_b": 1, "eu.other.a_b": 1, "us.public.a_b": 2})


def test_the_expressions_for_many_topics_grow_with_them_and_get_no_deeper() -> None:
    def sizes(count: int) -> tuple[int, int]:
        topics = ReadTopics([TopicLife(f"shop.public.t{n:03}", 1 + n % 3, 1 + n % 4) for n in range(count)])
        text = "".join([topics.sequence(), *(condition for condition, _ in topics.problems())])
        levels = accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in text)
        return max(levels), len(text)

    (few_levels, few), (levels, size) = sizes(12), sizes(120)
    assert levels == few_levels
    assert size < 10 * few


def test_a_table_has_the_name_that_columns_has_with_its_quotes(spark: SparkSession) -> None:
    tables = {'public."Or ders"': "id BIGINT", "`public`.`or``ders`": "id BIGINT", "public.orders": "id BIGINT"}
    records = [of("Or ders", 0), of("or`ders", 1), of("orders", 2)]
    rows = changes(frame(spark, records), tables, order=1).orderBy("seq").collect()
    assert [row["table"] for row in rows] == list(tables)


@pytest.mark.parametrize("other", ["public.ORDERS", 'public."orders"', "`public`.orders"])
def test_two_names_that_a_sink_takes_for_one_table_are_refused(spark: SparkSession, other: str) -> None:
    with pytest.raises(ConfigurationError, match="take them for one table"):
        changes(frame(spark, []), {"public.orders": "id BIGINT", other: "id BIGINT"}, order=1)
    changes(frame(spark, []), {"public.orders": "id BIGINT", 'public."ORDERS"': "id BIGINT"}, order=1)
