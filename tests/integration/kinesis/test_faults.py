"""Kinesis and Firehose that fail in part, throttle, and lose answers: nothing is lost, and few things come twice."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from outfall.errors import TargetError, TransientError, ValueRefusedError
from outfall.kinesis import FirehoseSink, KinesisSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.integration.kinesis.server import Aws

FAST: dict[str, Any] = {"retry_backoff": 0.005, "max_retry_backoff": 0.02, "max_in_flight_requests": 4}


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "carrier": ("AA", "Ü-Air", "東")[number % 3], "note": "𝄞" * 3} for number in range(count)]


def write(sink: Any, values: list[Any], tasks: int = 2) -> dict[str, int]:
    parts = [values[index::tasks] for index in range(tasks)]
    return LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, parts).counts


def stream(aws: Aws, name: str, **options: Any) -> KinesisSink:
    return KinesisSink(aws.new_stream(name), endpoint_url=aws.endpoint, region="us-east-1", **(FAST | options))


def delivery(aws: Aws, name: str, **options: Any) -> FirehoseSink:
    return FirehoseSink(
        aws.new_delivery_stream(name), endpoint_url=aws.endpoint, region="us-east-1", **(FAST | options)
    )


def ids(data: list[bytes]) -> Counter[int]:
    return Counter(json.loads(line)["id"] for line in data)


def test_rows_arrive_as_they_were(aws: Aws, name: str) -> None:
    counts = write(stream(aws, name, partition_key="carrier"), rows(300))
    records = aws.records(name)
    assert sorted((json.loads(record["Data"]) for record in records), key=lambda row: row["id"]) == rows(300)
    assert {record["PartitionKey"] for record in records} == {"AA", "Ü-Air", "東"}
    assert counts["sent"] == counts["rows"] == 300
    assert counts["num_bytes_out"] == sum(
        len(record["Data"]) + len(record["PartitionKey"].encode()) for record in records
    )


def test_a_third_of_the_entries_fails_and_every_row_arrives_once(
    aws: Aws, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    aws.faults.entries = 0.3
    counts = write(stream(aws, name), rows(600))
    assert ids([record["Data"] for record in aws.records(name)]) == dict.fromkeys(range(600), 1)
    assert counts["failed"] == aws.faults.refused > 100
    assert counts["retries"] > 0
    assert "ProvisionedThroughputExceededException" in caplog.text


def test_lost_answers_repeat_only_what_they_held(aws: Aws, name: str) -> None:
    aws.faults.lost = 0.3
    aws.faults.entries = 0.1
    aws.faults.throttled = 0.1
    write(stream(aws, name, max_batch_size=20), rows(600))
    written = Counter(bytes(record["Data"]) for record in aws.records(name))
    assert len(written) == 600
    assert aws.faults.in_lost_calls.total() > 20
    # Each surplus copy was written by a call whose answer nobody got.
    assert not (written - Counter(set(written))) - aws.faults.in_lost_calls


def test_throttled_calls_are_made_again(aws: Aws, name: str) -> None:
    aws.faults.throttled = 0.3
    counts = write(stream(aws, name, max_batch_size=20), rows(400))
    assert ids([record["Data"] for record in aws.records(name)]) == dict.fromkeys(range(400), 1)
    assert counts["failed"] > 0


def test_a_stream_that_throttles_for_too_long_ends_in_one_useful_error(aws: Aws, name: str) -> None:
    aws.faults.throttled = 1.0
    with pytest.raises(TransientError, match=r"did not accept .*ProvisionedThroughputExceededException"):
        write(stream(aws, name, max_retries=2), rows(10))
    assert aws.records(name) == []


def test_order_within_a_key_is_kept_when_asked(aws: Aws, name: str) -> None:
    aws.faults.entries = 0.3
    sink = stream(aws, name, partition_key="key", ordered=True)
    write(sink, [{"id": number, "key": f"k{number % 20}"} for number in range(100)], tasks=1)
    by_key: dict[str, list[int]] = {}
    for record in aws.records(name):
        by_key.setdefault(record["PartitionKey"], []).append(json.loads(record["Data"])["id"])
    assert by_key == {f"k{rest}": list(range(rest, 100, 20)) for rest in range(20)}


def test_an_explicit_hash_key_and_a_function_decide_the_shard(aws: Aws, name: str) -> None:
    sink = stream(aws, name, partition_key=lambda row: f"<{row['id']}>", explicit_hash_key="place", data="text")
    write(sink, [{"id": number, "text": str(number), "place": str((2**127) * (number % 2))} for number in range(6)])
    records = aws.records(name)
    assert [int(record["Data"]) % 2 for record in records] == [0, 0, 0, 1, 1, 1]
    assert {record["PartitionKey"] for record in records} == {f"<{number}>" for number in range(6)}


def test_limits_count_the_bytes_of_the_key(aws: Aws, name: str) -> None:
    sink = stream(aws, name, partition_key="key", data="text", max_in_flight_requests=1)
    exact = (1 << 20) - len("ö".encode())
    write(sink, [{"key": "ö", "text": "x" * exact}] * 6, tasks=1)
    assert aws.faults.calls == 2  # five of them are 5 MiB
    assert len(aws.records(name)) == 6
    with pytest.raises(ValueRefusedError, match="It has 1048577 bytes"):
        write(sink, [{"key": "ö", "text": "x" * (exact + 1)}])


def test_a_record_that_the_service_refuses_is_named(aws: Aws, name: str) -> None:
    sink = stream(aws, name, explicit_hash_key="place", data="text", max_batch_size=8)
    values = [{"place": str(2**128 if number == 5 else number), "text": str(number)} for number in range(8)]
    with pytest.raises(ValueRefusedError, match="a record of writer 0 is rejected"):
        write(sink, values, tasks=1)


def test_a_stream_that_is_not_there_stops_the_query(aws: Aws, name: str) -> None:
    sink = KinesisSink(name, endpoint_url=aws.endpoint, region="us-east-1", **FAST)
    with pytest.raises(TargetError, match="ResourceNotFoundException"):
        write(sink, rows(1))


def test_firehose_delivers_lines(aws: Aws, name: str, caplog: pytest.LogCaptureFixture) -> None:
    aws.faults.entries = 0.3
    counts = write(delivery(aws, name), rows(400))
    delivered = aws.lines(name)
    assert sorted((json.loads(line) for line in delivered), key=lambda row: row["id"]) == rows(400)
    assert counts["retries"] > 0
    assert "ServiceUnavailableException" in caplog.text


def test_firehose_repeats_only_what_lost_answers_held(aws: Aws, name: str) -> None:
    aws.faults.lost = 0.3
    aws.faults.throttled = 0.2
    write(delivery(aws, name, max_batch_size=20), rows(400))
    written = Counter(line + b"\n" for line in aws.lines(name))
    assert len(written) == 400
    assert aws.faults.in_lost_calls
    assert not (written - Counter(set(written))) - aws.faults.in_lost_calls


def test_firehose_takes_records_up_to_1000_kib(aws: Aws, name: str) -> None:
    sink = delivery(aws, name, data="text")
    write(sink, [{"text": "x" * (1000 << 10)}])
    with pytest.raises(ValueRefusedError, match="It has 1024001 bytes"):
        write(sink, [{"text": "x" * ((1000 << 10) + 1)}])
