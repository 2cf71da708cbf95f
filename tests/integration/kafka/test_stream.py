"""`KafkaSink` without parts: what a reader that is not ours finds, and what becomes of a broker that fails (K3, K5)."""

from __future__ import annotations

import json
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from outfall.contexts import WriterInitContext
from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.file import FileSink
from outfall.kafka import KafkaSink
from outfall.testing import LocalDriver
from tests.integration.support import kafka_refused
from tests.integration.support.kafka_broker import DESCRIBE, PRODUCE, ModelBroker
from tests.integration.support.kafka_reader import read
from tests.integration.support.kafka_topics import ModelTopic

WHEN = (datetime.now(UTC) - timedelta(hours=1)).replace(microsecond=678_000)
"""Not long ago: brokers remove what is older than a topic's `retention.ms`, however late it was written."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def name() -> str:
    return f"s-{secrets.token_hex(6)}"


def sink(address: str, topic: str | None, **options: Any) -> KafkaSink:
    given: dict[str, Any] = {"delivery_timeout": 20, "client_options": {"linger.ms": 0}}
    made: dict[str, Any] = {"create_topic": "if_missing", "partitions": 3, "replication_factor": 1} if topic else {}
    return KafkaSink(address, topic, **(given | made | options))


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"key": f"k{number}", "value": f"v{number}"} for number in range(start, start + count)]


def written(tmp_path: Path, made: KafkaSink, *tasks: list[dict[str, Any]], epoch: int = 0) -> dict[str, int]:
    return dict(LocalDriver(made, str(tmp_path / "recovery")).run_epoch(epoch, list(tasks)).counts)


def test_every_column_of_a_record_arrives(kafka: str, tmp_path: Path) -> None:
    """K5; written as Arrow, as Spark's tasks write it."""
    topic = name()
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"\0\xff", None, b"", b"four"]),
            "value": pa.array([b"\xfe\n", None, b"", b"five"]),
            "partition": pa.array([2, 1, 0, None], pa.int32()),
            "timestamp": pa.array([WHEN, WHEN, WHEN, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("a", b"\xff"), ("a", None), ("b", b"")], None, [], None], HEADERS),
            "ignored": [1, 2, 3, 4],
        }
    )
    written(tmp_path, sink(kafka, topic), batch.to_pylist())
    found = {record.key: record for record in read(kafka, topic)}
    millis = int(WHEN.timestamp() * 1000)
    shown = {key: (each.partition, each.value, each.headers) for key, each in found.items()}
    assert shown == {
        b"\0\xff": (2, b"\xfe\n", (("a", b"\xff"), ("a", None), ("b", b""))),
        None: (1, None, ()),
        b"": (0, b"", ()),
        b"four": (murmur2(b"four") % (1 << 31) % 3, b"five", ()),
    }
    assert {each.timestamp for key, each in found.items() if key != b"four"} == {millis}
    assert found[b"four"].timestamp > millis


def test_keys_go_where_java_puts_them_in_their_order(kafka: str, tmp_path: Path) -> None:
    topic = name()
    counts = written(tmp_path, sink(kafka, topic), rows(50), rows(50, 50))
    found = read(kafka, topic)
    assert {each.key: each.partition for each in found} == {
        key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in (f"k{number}".encode() for number in range(100))
    }
    for partition in range(3):
        first = [int((each.value or b"")[1:]) for each in found if each.partition == partition]
        assert [number for number in first if number < 50] == sorted(number for number in first if number < 50)
    assert (counts["rows"], counts["sent"]) == (100, 100)
    assert counts["bytes"] == sum(len(each.key or b"") + len(each.value or b"") for each in found)


def test_several_topics_in_one_epoch(kafka: str, tmp_path: Path) -> None:
    topics = [name(), name()]
    for topic in topics:
        written(tmp_path / topic, sink(kafka, topic), [])
    made = sink(kafka, None, value_format="json", topic_column="to", key_column="id")
    written(tmp_path, made, [{"to": topics[number % 2], "id": f"{number}", "n": number} for number in range(10)])
    for index, topic in enumerate(topics):
        found = read(kafka, topic)
        assert sorted(json.loads(each.value or b"")["n"] for each in found) == [*range(index, 10, 2)]
        assert all(json.loads(each.value or b"") == {"id": (each.key or b"").decode(), "n": int(each.key or b"")}
                   for each in found)  # fmt: skip


def test_a_topic_that_is_missing_is_refused_before_the_first_row(kafka: str, tmp_path: Path) -> None:
    topic = name()
    missing = sink(kafka, topic, create_topic="never", partitions=None, replication_factor=None)
    with pytest.raises(TargetError, match=f"the topic {topic} does not exist.*create_topic"):
        written(tmp_path, missing, rows(1))
    with pytest.raises(TargetError, match="does not exist"):
        missing.check_connection()


def test_the_doctor_is_told_what_was_found(model: ModelBroker) -> None:
    model.topics["t"] = ModelTopic(2, {})
    assert sink(model.address, "t").check_connection() == [
        "the topic t exists, with 2 partitions",
        "this user may write to it",
    ]
    assert "will be created" in sink(model.address, "other").check_connection()[0]
    assert "rows have their own topics" in sink(model.address, None).check_connection()[0]
    with pytest.raises(TransientError, match="check that the brokers are up"):
        sink("127.0.0.1:1", "t", delivery_timeout=1).check_connection()


def test_a_topic_that_may_not_be_written_to_is_refused_before_the_first_row(model: ModelBroker, tmp_path: Path) -> None:
    model.topics["t"] = ModelTopic(1)
    model.rights["t"] = frozenset({DESCRIBE})
    for ask in (
        lambda: written(tmp_path, sink(model.address, "t"), rows(1)),
        sink(model.address, "t").check_connection,
    ):
        with pytest.raises(ConfigurationError, match=r"may not write to the topic t.*DESCRIBE and WRITE"):
            ask()
    assert PRODUCE not in model.asked


def test_rows_that_are_refused_stop_the_query(kafka: str, tmp_path: Path) -> None:
    made = sink(kafka, name(), client_options={"message.max.bytes": 2000})
    with pytest.raises(ValueRefusedError, match=r"step 'sink', epoch 0.*MSG_SIZE_TOO_LARGE.*message\.max\.bytes"):
        written(tmp_path, made, [{"value": "x" * 3000}])


def test_rows_that_are_refused_are_dead_letters_and_the_others_arrive(kafka: str, tmp_path: Path) -> None:
    """By the maker of records, by the client and by the broker."""
    topic, refused = name(), tmp_path / "refused"
    written(tmp_path / "first", sink(kafka, topic), [])
    options = {"client_options": {"message.max.bytes": 2000, "topic.metadata.propagation.max.ms": 100}}
    bad: list[dict[str, Any]] = [
        {"topic": None, "value": "no topic"},
        {"topic": topic, "value": "x" * 3000},
        {"topic": topic, "partition": 99, "value": "no partition"},
    ]
    good: list[dict[str, Any]] = [{"topic": topic, "value": f"v{number}"} for number in range(5)]
    made = sink(kafka, None, dead_letter=FileSink(refused), **options)
    counts = written(tmp_path, made, [{"partition": None} | row for row in (*good[:2], *bad, *good[2:])])
    letters = [json.loads(line) for path in refused.glob("[!_.]*") for line in path.read_text().splitlines()]
    codes = {json.loads(letter["row"])["value"][:12].rstrip("x"): letter["code"] for letter in letters}
    assert codes == {"no topic": "not_convertible", "": "MSG_SIZE_TOO_LARGE", "no partition": "_UNKNOWN_PARTITION"}
    assert {(letter["step"], letter["epoch"], letter["part"]) for letter in letters} == {("sink", 0, "writer-0")}
    assert sorted((each.value or b"").decode() for each in read(kafka, topic)) == [row["value"] for row in good]
    assert (counts["sent"], counts["dead_letters"], counts["sink.sent"]) == (5, 3, 5)
    assert counts["bytes"] >= 10


def test_batches_are_no_larger_than_the_topic_takes(model: ModelBroker, tmp_path: Path) -> None:
    model.topics["t"] = ModelTopic(1, {"max.message.bytes": "5000"})
    made = sink(model.address, "t", client_options={"linger.ms": 50})
    assert written(tmp_path, made, [{"value": "x" * 100} for _ in range(500)])["sent"] == 500
    assert len(model.topics["t"].records) == 500
    with pytest.raises(ValueRefusedError, match="MSG_SIZE_TOO_LARGE"):
        written(tmp_path, made, [{"value": "x" * 9000}], epoch=1)


def test_a_broker_that_is_gone_fails_the_epoch_and_the_next_run_makes_it_good(
    model: ModelBroker, tmp_path: Path
) -> None:
    model.topics["t"] = ModelTopic(1, {})
    made = sink(model.address, "t")
    written(tmp_path, made, rows(3))
    model.silent.add(0)
    with pytest.raises(TransientError, match=r"writing to t at .* failed"):
        written(tmp_path, sink(model.address, "t", delivery_timeout=1), rows(3, 3), epoch=1)
    model.silent.clear()
    written(tmp_path, made, rows(3, 3), epoch=1)
    assert {record.value for record in model.topics["t"].records} == {f"v{number}".encode() for number in range(6)}


@pytest.mark.thorough
def test_a_partition_that_is_added_between_epochs_is_written_to(model: ModelBroker, tmp_path: Path) -> None:
    model.topics["t"] = ModelTopic(1, {})
    made = sink(model.address, "t")
    written(tmp_path, made, [{"partition": 0, "value": "a"}])
    model.topics["t"].grow(2)
    assert written(tmp_path, made, [{"partition": 1, "value": "b"}], epoch=1)["sent"] == 1


def test_rows_of_a_task_that_failed_are_not_sent_with_the_next_epoch(kafka: str, tmp_path: Path) -> None:
    topic = name()
    made = sink(kafka, topic, client_options={"linger.ms": 15_000})
    written(tmp_path, made, rows(1))
    context = WriterInitContext("sink", "0" * 16, generation=1, epoch=1, part=None, attempt=1)
    failed = made.bind(context).build("sink", 0, 0)
    failed.write_batch(rows(1, 1))
    failed.close()
    written(tmp_path, made, rows(1, 2), epoch=1)
    assert sorted(each.value or b"" for each in read(kafka, topic)) == [b"v0", b"v2"]


@pytest.mark.thorough
def test_a_hundred_epochs_hold_no_more_threads(kafka: str, tmp_path: Path) -> None:
    made = sink(kafka, name())
    driver = LocalDriver(made, str(tmp_path / "recovery"))
    held = []
    for epoch in range(100):
        driver.run_epoch(epoch, [rows(3)])
        held.append(len(os.listdir("/proc/self/task")))
    # Clients of other tests come and go by a thread or two; a leak is one for each epoch.
    assert max(held[10:]) < held[9] + 10


def test_no_secret_is_shown(model: ModelBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me",
              "sasl.password": "hunter2"}  # fmt: skip
    made = sink(model.address, "t", delivery_timeout=1, client_options=secret)
    with pytest.raises(OutfallError) as caught:
        written(tmp_path, made, rows(1))
    shown = f"{caught.value} {made!r} {made.options!r} {made.target()} {made.place()} {caplog.text}"
    assert "hunter2" not in shown


def test_client_options_that_librdkafka_refuses_are_refused_before_the_first_row(
    model: ModelBroker, tmp_path: Path
) -> None:
    made = sink(model.address, None, delivery_timeout=1, client_options={"linger.ms": 2000})
    with pytest.raises(ConfigurationError, match=r"must be greater than `linger.ms`.*correct client_options"):
        written(tmp_path, made, [])


def test_columns_are_refused_before_the_first_row(model: ModelBroker) -> None:
    with pytest.raises(ConfigurationError, match="a record requires the column 'value'"):
        sink(model.address, "t").check_schema(pa.schema([("id", pa.int64())]))
    assert model.asked == []


@pytest.mark.parametrize(
    "error",
    [pytest.param(error, marks=[pytest.mark.thorough] * (error != "INVALID_RECORD")) for error in kafka_refused.TOPICS],
)
def test_a_row_that_has_its_batch_refused_is_the_only_dead_letter(
    model: ModelBroker, tmp_path: Path, error: str
) -> None:
    """What Apache Kafka does, see `tests/peers/kafka/test_refused.py`."""
    kafka_refused.make_topic(model.address, "t", error)
    rows = kafka_refused.rows(10, {5}, error)
    counts = kafka_refused.write(model.address, "t", tmp_path, rows)
    kafka_refused.check(model.address, "t", tmp_path, rows, {5}, error)
    assert (counts["sent"], counts["dead_letters"]) == (9, 1)
