"""What `DynamoDBSink` takes, what it makes of values, and how it counts their size; the documentation says so."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import Guarantee
from outfall.dynamodb import DynamoDBSink
from outfall.dynamodb.attributes import check_types, items_of, number, size_of
from outfall.dynamodb.options import DynamoDBOptions
from outfall.dynamodb.sink import DynamoDBPartition, DynamoDBRequestSink
from outfall.dynamodb.table import DynamoDBTable
from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.options import make_options
from outfall.source_options import make_sink


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deletes": "remove"}, "requires delete_marker"),
        ({"deletes": "remove", "delete_marker": "gone", "sequence_column": "n"}, "excludes sequence_column"),
        ({"max_batch_size": 26}, "max_batch_size"),
        ({"max_record_size_in_bytes": "401 KiB"}, "max_record_size_in_bytes"),
        ({"ttl": 0.1}, "ttl must be at least a second"),
        ({"records_table": "flights"}, "records_table is the table itself"),
        ({"across_epochs": True}, "across_epochs is not available"),
        ({"endpoint_url": "http://user:hunter2-word@127.0.0.1"}, "must contain no credentials"),
    ],
)
def test_wrong_options_are_named_without_secrets(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as failed:
        DynamoDBSink("flights", **options)
    assert "hunter2-word" not in str(failed.value)


def test_a_sink_by_options_is_the_same_and_says_its_guarantee() -> None:
    made = make_sink("dynamodb", {"table": "flights", "orderColumn": "n", "setColumns": "a,b", "ttl": "1 day"})
    assert repr(made) == "DynamoDBSink('flights')"
    assert made.guarantee() is Guarantee.EFFECTIVELY_ONCE
    assert "suspended for longer than ttl" in " ".join(made.requires())
    assert DynamoDBSink("flights", versions=False).guarantee() is Guarantee.AT_LEAST_ONCE
    removing = DynamoDBSink("flights", delete_marker="gone", deletes="remove")
    assert (removing.guarantee(), removing.requires()) == (Guarantee.AT_LEAST_ONCE, ())
    assert repr(pickle.loads(pickle.dumps(made))) == repr(made)


@pytest.mark.parametrize("text", ["9" * 38, "-1E-130", "9E+125", "0", "1" + "0" * 60, "0.10"])
def test_numbers_keep_each_digit(text: str) -> None:
    assert Decimal(number(Decimal(text))) == Decimal(text)


@pytest.mark.parametrize("text", ["1" * 39, "1E-131", "1E+126"])
def test_numbers_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(ValueRefusedError, match="38 digits"):
        number(Decimal(text))


def test_sets_lose_repeats_and_empty_ones_are_left_out() -> None:
    batch = pa.record_batch({"s": [["b", "a", "b"], []]})
    assert items_of(batch, ["s"]) == [{"s": {"SS": ["a", "b"]}}, {}]
    with pytest.raises(ValueRefusedError, match="a set contains NULL"):
        items_of(pa.record_batch({"s": [["a", None]]}), ["s"])


@pytest.mark.parametrize(
    ("kind", "sets"),
    [(pa.list_(pa.bool_()), ["c"]), (pa.int64(), ["c"]), (pa.map_(pa.int64(), pa.int64()), []), (pa.int64(), ["no"])],
    ids=["set of booleans", "set of no array", "map without strings", "unknown set"],
)
def test_types_that_cannot_be_stored(kind: pa.DataType, sets: list[str]) -> None:
    with pytest.raises(ConfigurationError):
        check_types(pa.schema([("c", kind)]), sets)


def test_sizes_are_those_of_the_developer_guide() -> None:
    assert size_of({"name": {"S": "ä"}}) == 4 + 2
    assert size_of({"b": {"B": b"123"}, "t": {"BOOL": True}, "n": {"NULL": True}}) == 1 + 3 + 1 + 1 + 1 + 1
    assert size_of({"l": {"L": [{"S": "ab"}]}}) == 1 + 3 + 1 + 2
    assert size_of({"m": {"M": {"k": {"S": "ab"}}}}) == 1 + 3 + 1 + 1 + 2
    assert size_of({"n": {"N": "9" * 38}}) == 1 + 21


def unversioned(monkeypatch: pytest.MonkeyPatch, left: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A partition whose service leaves these requests of a batch unprocessed, and ten rows."""
    made = make_options(DynamoDBOptions, {"table": "prices", "versions": False})
    sink = DynamoDBRequestSink(made)
    sink._table = DynamoDBTable({"id": "N"}, None, "ACTIVE", 0)
    monkeypatch.setattr(sink, "call", lambda *_, **__: {"UnprocessedItems": left})
    partition = DynamoDBPartition(sink)
    ids = pa.array([Decimal(number).scaleb(-2) for number in range(0, 1000, 100)], pa.decimal128(10, 2))
    return partition, list(partition.convert(pa.record_batch({"id": ids})))


@pytest.mark.parametrize(
    ("table", "numbers", "rows"),
    [
        ("prices", ["1", "2.0"], [1, 2]),
        ("arn:aws:dynamodb:eu-west-1:1:table/prices", ["3.00"], [3]),
        ("prices", ["1", "99"], range(10)),
    ],
    ids=["another form", "by the ARN", "of no row"],
)
def test_what_is_not_processed_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, table: str, numbers: list[str], rows: Sequence[int]
) -> None:
    left = {table: [{"PutRequest": {"Item": {"id": {"N": number}}}} for number in numbers]}
    partition, entries = unversioned(monkeypatch, left)
    assert list(partition.send(entries).retry) == [entries[row] for row in rows]


def test_no_row_is_written_to_the_table_of_the_records() -> None:
    sink = DynamoDBRequestSink(make_options(DynamoDBOptions, {"table": "prices-outfall"}))
    sink._table = DynamoDBTable({"name": "S"}, None, "ACTIVE", 0)
    with pytest.raises(ConfigurationError, match="Outfall's own records"):
        sink.check_schema(pa.schema([("name", pa.string())]))
