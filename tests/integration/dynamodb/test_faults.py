"""What `DynamoDBSink` writes, and what it makes of throttling, unprocessed items, lost answers and wrong tables."""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import Guarantee, WriterInitContext
from outfall.dynamodb import DynamoDBSink
from outfall.errors import (
    ConfigurationError,
    StaleWriterError,
    TargetError,
    TargetLostError,
    TransientError,
    ValueRefusedError,
)
from outfall.file import FileSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.integration.dynamodb.server import Dynamo
from tests.integration.support.sequence_trials import TRIALS
from tests.one_each import thorough

FAST: dict[str, Any] = {"retry_backoff": 0.002, "max_retry_backoff": 0.02, "retry_budget": 1.0}


def sink_to(dynamo: Dynamo, name: str, **options: Any) -> DynamoDBSink:
    return DynamoDBSink(name, endpoint_url=dynamo.endpoint, region="us-east-1", **(FAST | options))


def write(sink: Any, *tasks: list[Any], epoch: int = 0, recovery: Any = None) -> dict[str, int]:
    return LocalDriver(sink, recovery or MemoryRecoveryConfig()).run_epoch(epoch, list(tasks)).counts


def by_id(dynamo: Dynamo, name: str) -> dict[int, dict[str, Any]]:
    return {int(row["id"]): row for row in dynamo.rows(name)}


def attempt(sink: Any, recovery: Any = None) -> Any:
    """A task that has begun, with the version of its BEGIN."""
    driver = LocalDriver(sink, recovery or MemoryRecoveryConfig())
    ticket = driver.coordinator().begin(0)
    context = WriterInitContext("sink", ticket.incarnation, ticket.generation, 0, None, 1, token=ticket.token)
    return driver.task_sink().bind(context).build("sink", 0, 0)


def test_each_type_arrives_as_it_was(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name, id="S", at="N")
    batch = pa.record_batch(
        {
            "id": pa.array(["ä"]),
            "at": pa.array([2**63 - 1], pa.int64()),
            "big": pa.array([Decimal("9" * 38)], pa.decimal128(38, 0)),
            "part": pa.array([0.1]),
            "data": pa.array([b"\x00\xff"]),
            "yes": pa.array([True]),
            "day": pa.array([datetime.date(2026, 11, 26)]),
            "moment": pa.array([datetime.datetime(2026, 11, 26, 10, tzinfo=datetime.UTC)]),
            "nothing": pa.array([None], pa.string()),
            "list": pa.array([[1, None]]),
            "struct": pa.array([{"a": "x", "b": None}]),
            "map": pa.array([[("k", 1.5)]], pa.map_(pa.string(), pa.float64())),
            "words": pa.array([["b", "a", "b"]]),
            "numbers": pa.array([[2, 1]]),
            "bytes": pa.array([[b"x"]]),
            "none": pa.array([[]], pa.list_(pa.string())),
        }
    )
    task = attempt(sink_to(dynamo, name, set_columns="words,numbers,bytes,none"))
    task.write_record_batch(batch)
    task.flush(True)
    (item,) = dynamo.raw(name)
    assert len(item.pop("_outfall")["S"]) == 48
    assert {key: sorted(value[kind]) if (kind := next(iter(value))) in ("SS", "NS", "BS") else value
            for key, value in item.items()} == {
        "id": {"S": "ä"}, "at": {"N": "9223372036854775807"}, "big": {"N": "9" * 38}, "part": {"N": "0.1"},
        "data": {"B": b"\x00\xff"}, "yes": {"BOOL": True}, "day": {"S": "2026-11-26"},
        "moment": {"S": "2026-11-26T10:00:00.000Z"}, "list": {"L": [{"N": "1"}, {"NULL": True}]},
        "struct": {"M": {"a": {"S": "x"}, "b": {"NULL": True}}}, "map": {"M": {"k": {"N": "1.5"}}},
        "words": ["a", "b"], "numbers": ["1", "2"], "bytes": [b"x"],
    }  # fmt: skip


@pytest.mark.parametrize("without_item", [False, True])
def test_the_greatest_row_of_a_key_wins_in_whatever_task_and_order(
    dynamo: Dynamo, name: str, without_item: bool
) -> None:
    dynamo.faults.without_item = without_item
    rows = [{"id": 1, "n": n, "text": text} for n, text in [(2, "c"), (10, "b"), (10, "a"), (None, "d"), (-5, "e")]]
    found = []
    for number, values in enumerate((rows, rows[::-1], rows[2:] + rows[:2])):
        dynamo.new_table(f"{name}-{number}")
        write(sink_to(dynamo, f"{name}-{number}", order_column="n"), values[::2], values[1::2])
        found += dynamo.rows(f"{name}-{number}")
    assert found[0]["n"] == 10
    assert found[0] == found[1] == found[2]


def test_two_rows_of_a_key_without_an_order_are_refused_or_counted(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name)
    twice = [{"id": 1, "text": "a"}], [{"id": 1, "text": "b"}]
    with pytest.raises(ValueRefusedError, match="two different rows of one key"):
        write(sink_to(dynamo, name), *twice)
    counts = write(sink_to(dynamo, name, duplicate_keys="count"), *twice)
    assert counts["replaced_rows"] == 1
    first = dynamo.rows(name)
    write(sink_to(dynamo, name, duplicate_keys="count"), *twice[::-1])
    assert dynamo.rows(name) == first


def test_a_tombstone_keeps_a_late_write_away_and_expires(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name, ttl="expires")
    sink, recovery = sink_to(dynamo, name, delete_marker="gone"), MemoryRecoveryConfig()
    zombie = attempt(sink, recovery)
    write(sink, [{"id": 1, "gone": True}], recovery=recovery)
    zombie.write_batch([{"id": 1, "gone": False}])
    with pytest.raises(StaleWriterError, match="newer version"):
        zombie.flush(True)
    assert dynamo.rows(name) == []
    (tombstone,) = dynamo.raw(name)
    assert tombstone.keys() == {"id", "_outfall", "_outfall_deleted", "expires"}
    assert abs(int(tombstone["expires"]["N"]) - time.time() - 86_400) < 60


def test_removed_items_lower_the_guarantee_and_it_is_said(
    dynamo: Dynamo, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    dynamo.new_table(name)
    sink = sink_to(dynamo, name, delete_marker="gone", deletes="remove")
    assert sink.guarantee() is Guarantee.AT_LEAST_ONCE
    write(sink, [{"id": 1, "gone": False}, {"id": 2, "gone": False}])
    with caplog.at_level(logging.WARNING, "outfall.dynamodb"):
        write(sink, [{"id": 1, "gone": True}])
    assert "the guarantee is AT_LEAST_ONCE" in caplog.text
    assert [item["id"] for item in dynamo.raw(name)] == [{"N": "2"}]


def test_batches_without_versions_with_two_rows_of_a_key_and_unprocessed_items(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name)
    dynamo.faults.unprocessed, dynamo.faults.throttled = 0.3, 0.2
    sink = sink_to(dynamo, name, versions=False, delete_marker="gone")
    rows = [{"id": number % 90, "n": number, "gone": number >= 90} for number in range(100)]
    counts = write(sink, rows)
    assert counts["retries"] > 0
    assert sorted(by_id(dynamo, name)) == list(range(10, 90))


@pytest.mark.parametrize("transactions", [False, thorough(True)])
def test_throttled_and_lost_writes_are_sent_again_and_change_nothing(
    dynamo: Dynamo, name: str, transactions: bool
) -> None:
    dynamo.new_table(name)
    dynamo.faults.throttled, dynamo.faults.lost = 0.1, 0.2
    sink = sink_to(dynamo, name, transactions=transactions)
    counts = write(sink, [{"id": number, "text": "ä"} for number in range(200)])
    assert counts["repeated_writes"] > 10
    assert by_id(dynamo, name) == {number: {"id": number, "text": "ä"} for number in range(200)}


@pytest.mark.thorough
def test_rows_of_a_transaction_are_one_request_unless_a_condition_fails(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name)
    sink, recovery = (
        sink_to(dynamo, name, transactions=True, delete_marker="gone", order_column="n"),
        MemoryRecoveryConfig(),
    )
    rows = [{"id": number, "n": 0, "gone": False} for number in range(100)]
    write(sink, rows, recovery=recovery)
    assert dynamo.faults.calls < 12  # four, and the records
    # Each key twice in a task, and again in the other one.
    twice = [row | {"n": n, "gone": n == 2 and row["id"] < 50} for row in rows for n in (2, 1)]
    counts = write(sink, twice, [row | {"n": 1} for row in rows], epoch=1, recovery=recovery)
    assert counts["replaced_rows"] >= 100
    assert by_id(dynamo, name) == {number: {"id": number, "n": 2} for number in range(50, 100)}
    zombie = attempt(sink)
    write(sink, [{"id": 50, "n": 9, "gone": False}], epoch=2, recovery=recovery)
    zombie.write_batch([{"id": number, "n": 0, "gone": False} for number in range(50, 60)])
    with pytest.raises(StaleWriterError, match="newer version"):
        zombie.flush(True)
    assert by_id(dynamo, name)[50]["n"] == 9


def test_what_does_not_fit_is_a_dead_letter_with_its_reason(dynamo: Dynamo, name: str, tmp_path: Path) -> None:
    dynamo.new_table(name, id="S")
    rows = [
        {"id": "good", "part": 1.0, "text": "a"}, {"id": "", "part": 1.0, "text": "empty"},
        {"id": "nan", "part": float("nan"), "text": "a"}, {"id": "small", "part": 1e-200, "text": "a"},
        {"id": "large", "part": 1.0, "text": "a" * 410_000}, {"id": None, "part": 1.0, "text": "null"},
    ]  # fmt: skip
    counts = write(sink_to(dynamo, name, dead_letter=FileSink(tmp_path / "dead")), rows)
    assert [row["id"] for row in dynamo.rows(name)] == ["good"]
    dead = [json.loads(line) for path in (tmp_path / "dead").glob("*.json*") for line in path.read_text().splitlines()]
    reasons = {json.loads(letter["row"])["id"]: letter["reason"] for letter in dead}
    assert len(reasons) == 5
    assert "is empty" in reasons[""]
    assert "neither NaN nor infinity" in reasons["nan"]
    assert "magnitudes" in reasons["small"]
    assert "max_record_size_in_bytes is 409600" in reasons["large"]
    assert "is NULL" in reasons[None]
    assert counts["sink.dead_letters"] == 5


def test_wrong_tables_fail_before_the_first_row(dynamo: Dynamo, name: str) -> None:
    with pytest.raises(TargetError, match=f"the table {name} does not exist"):
        write(sink_to(dynamo, name), [{"id": 1}])
    dynamo.new_table(name)
    schema = pa.schema([("id", pa.string())])
    with pytest.raises(ConfigurationError, match="the key 'id' of the table is of type N"):
        sink_to(dynamo, name).check_schema(schema)
    with pytest.raises(ConfigurationError, match="the key requires the column 'id'"):
        sink_to(dynamo, name).check_schema(pa.schema([("other", pa.int64())]))
    with pytest.raises(ConfigurationError, match="TTL attribute of the table, which is off"):
        sink_to(dynamo, name, ttl="1 day").check_schema(pa.schema([("id", pa.int64())]))
    unreachable = DynamoDBSink(name, endpoint_url="http://127.0.0.1:1", region="us-east-1")
    with pytest.raises(TransientError, match="does not respond"):
        unreachable.check_connection()


def test_what_a_table_that_lost_its_records_says(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name)
    sink, recovery = sink_to(dynamo, name), MemoryRecoveryConfig()
    write(sink, [{"id": 1}], recovery=recovery)
    dynamo.client.delete_table(TableName=f"{name}-outfall")
    with pytest.raises(TargetLostError, match="does not hold the data written up to epoch 0"):
        write(sink, [{"id": 2}], epoch=1, recovery=recovery)
    with pytest.raises(StaleWriterError, match="the counter 'version' in the target was deleted"):
        write(sink, [{"id": 1, "more": 2}])


def test_items_live_as_long_as_said(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name, ttl="expires")
    write(sink_to(dynamo, name, ttl="1 hour"), [{"id": 1}])
    (row,) = dynamo.rows(name)
    assert abs(int(row["expires"]) - time.time() - 3600) < 60


def test_what_the_check_of_a_connection_says(dynamo: Dynamo, name: str) -> None:
    dynamo.new_table(name, id="S", at="N")
    said = sink_to(dynamo, name, delete_marker="gone").check_connection()
    assert said[0] == f"the table {name} is ACTIVE; keys: id (S), at (N)"
    assert "tombstones of deleted items are never removed" in said[1]


@pytest.mark.thorough
@pytest.mark.parametrize("transactions", [False, True])
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_a_sequence_orders_all_rows_of_a_key(
    dynamo: Dynamo, name: str, trial: Callable[[Any, Any], None], transactions: bool
) -> None:
    dynamo.new_table(name, id="S")

    def read() -> dict[str, Any]:
        return {row["id"]: row for row in dynamo.rows(name)}

    trial(lambda **options: sink_to(dynamo, name, transactions=transactions, **options), read)
