"""Rows as records: Spark's own shape, and rows as JSON, CSV or text; what makes none is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.kafka.options import KafkaOptions
from outfall.kafka.records import KafkaRecordMaker, KafkaRecords

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
INSTANT = pa.timestamp("us", tz="UTC")


def maker(**options: Any) -> KafkaRecordMaker:
    return KafkaRecordMaker(KafkaOptions(**({"brokers": "kafka:9092", "topic": "events"} | options)))


def made(columns: dict[str, Any], **options: Any) -> KafkaRecords:
    batch = pa.RecordBatch.from_pydict(columns)
    make = maker(**options)
    make.check_schema(batch.schema)
    return make.make(batch)


def row(name: str, value: Any, kind: pa.DataType) -> dict[str, Any]:
    return {"value": ["x"], name: pa.array([value], kind)}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_bytes_pass_untouched(kind: pa.DataType) -> None:
    raw = [b"a\n\0", b"", None, b"\xc3\xa9"]
    column = pa.array(raw, pa.binary()).cast(kind)
    records = made({"value": column, "key": column})
    assert (records.values, records.keys, records.size) == (raw, raw, 10)


def test_a_slice_and_text_that_is_not_utf8_pass_too() -> None:
    broken = pa.array([b"no", b"\xff\xfe", b"no"]).view(pa.string())
    batch = pa.RecordBatch.from_pydict({"value": broken}).slice(1, 1)
    assert maker().make(batch).values == [b"\xff\xfe"]


def test_the_shape_of_sparks_own_sink() -> None:
    records = made(
        {
            "key": ["k", None],
            "value": ["v", None],
            "partition": pa.array([3, None], pa.int32()),
            "timestamp": pa.array([datetime(2026, 1, 2, tzinfo=UTC), None], INSTANT),
            "headers": pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None], HEADERS),
            "offset": [7, 8],
        }
    )
    assert list(records) == [("events", b"v", b"k", 3), ("events", None, None, -1)]
    assert records.more == [{"timestamp": 1767312000000, "headers": [("a", b"1"), ("a", None)]}, {}]


def test_headers_of_a_slice_are_those_of_its_rows() -> None:
    headers = pa.array([[{"key": f"h{row}", "value": b""}] * (row + 1) for row in range(4)], HEADERS)
    batch = pa.RecordBatch.from_pydict({"value": list("abcd"), "headers": headers}).slice(1, 2)
    assert maker().make(batch).more == [{"headers": [(f"h{row}", b"")] * (row + 1)} for row in (1, 2)]


def test_the_option_topic_overrides_the_column() -> None:
    columns = {"value": ["1", "2", "3"], "topic": ["b", "a", "b"]}
    assert made(columns).topics == "events"
    assert made(columns, topic=None).topics == ["b", "a", "b"]


@pytest.mark.parametrize("name", [None, "", "..", "a b", "ü", "x" * 250])
def test_a_row_that_names_no_topic_is_refused(name: str | None) -> None:
    with pytest.raises(ValueRefusedError, match="'topic' is NULL or not a valid topic name, in row 1"):
        made({"value": ["1", "2"], "topic": ["fine", name]}, topic=None)


@pytest.mark.parametrize("name", ["outfall-ledger", "orders-outfall-ledger", "commits"])
def test_no_row_is_written_to_a_ledger(name: str) -> None:
    with pytest.raises(ValueRefusedError, match="'topic' is a topic with Outfall's own records, in row 1"):
        made({"value": ["1", "2"], "topic": ["fine", name]}, topic=None, parts=1, ledger_topic="commits")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (row("partition", -1, pa.int32()), "not a valid partition number"),
        (row("partition", 2**31, pa.int64()), "not a valid partition number"),
        (row("timestamp", datetime(1970, 1, 1, tzinfo=UTC), INSTANT), "not after 1970-01-01"),
        (row("headers", [{"key": None, "value": b""}], HEADERS), "a header without a key"),
        (row("headers", [None], HEADERS), "a header without a key"),
    ],
)
def test_values_that_make_no_record_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueRefusedError, match=message):
        made(columns)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"Value": ["x"]}, {}, "a record requires the column 'value', and the rows have Value"),
        ({"value": [1]}, {}, "which is bigint. What to do: cast it to string or binary"),
        ({"value": ["x"]}, {"topic": None}, "without the option topic requires the column 'topic'"),
        ({"value": ["x"], "topic": [1]}, {"topic": None}, "which is bigint. What to do: cast it to string"),
        ({"value": ["x"], "key": [1]}, {}, "'key' is bigint"),
        ({"value": ["x"], "topic": [1]}, {}, "'topic' is bigint"),
        ({"value": ["x"], "partition": ["1"]}, {}, "'partition' is string"),
        ({"value": ["x"], "headers": [{"key": "a"}]}, {}, "'headers' is struct"),
        (row("headers", [], pa.list_(pa.struct([("key", pa.string())]))), {}, "'headers' is array<struct<key:string>>"),
        (row("timestamp", 1, pa.timestamp("us")), {}, "'timestamp' is timestamp"),
        ({"a": ["x"]}, {"value_format": "json", "key_column": "b"}, "key_column requires the column 'b', and the rows"),
        ({"a": [1]}, {"value_format": "json", "key_column": "a"}, "which is bigint"),
        ({"a": [b"x"]}, {"value_format": "json", "topic": None, "topic_column": "a"}, "which is binary"),
        ({"a": ["x"], "b": ["x"]}, {"value_format": "text"}, "one column besides key and topic, and there are 2"),
        ({"a": [b"x"]}, {"value_format": "text"}, "which is binary"),
        ({"a": [["x"]]}, {"value_format": "csv"}, "CSV does not support column 'a'"),
    ],
)
def test_columns_that_make_no_record_are_refused(
    columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made(columns, **options)


def test_a_column_of_that_name_twice_is_refused() -> None:
    schema = pa.schema([("value", pa.string()), ("value", pa.string())])
    with pytest.raises(ConfigurationError, match="two columns have the name 'value'"):
        maker().check_schema(schema)


ROWS = {"id": ["a", None], "to": ["t1", "t2"], "n": [1, None], "text": ["one\ntwo", '"'], "raw": [b"\0", b"\xff"]}


def test_rows_as_json_hold_all_columns_but_the_topic() -> None:
    options = {"value_format": "json", "topic": None, "topic_column": "to", "key_column": "id"}
    records = made(ROWS, **options)
    assert records.values == [b'{"id":"a","n":1,"text":"one\\ntwo","raw":"AA=="}', b'{"text":"\\"","raw":"/w=="}']
    assert (records.topics, records.keys) == (["t1", "t2"], [b"a", None])
    assert records.size == sum(len(value or b"") for value in records.values) + 1


def test_rows_as_csv_are_a_line_each_without_its_end() -> None:
    assert made({"a": ["x,y", '"'], "b": [1, None]}, value_format="csv").values == [b'"x,y",1', b'"\\"",']
    with pytest.raises(ValueRefusedError, match="contains a newline"):
        made({"a": ["x\ny", "z"]}, value_format="csv")


def test_text_is_the_column_beside_key_and_topic() -> None:
    columns = {"id": ["a", "b"], "line": ["one\ntwo", None]}
    records = made(columns, value_format="text", key_column="id")
    assert (records.values, records.keys) == ([b"one\ntwo", None], [b"a", b"b"])


def test_columns_may_change_between_batches() -> None:
    make = maker(value_format="json")
    for columns, value in (({"a": [1]}, b'{"a":1}'), ({"a": ["x"]}, b'{"a":"x"}')):
        assert make.make(pa.RecordBatch.from_pydict(columns)).values == [value]
