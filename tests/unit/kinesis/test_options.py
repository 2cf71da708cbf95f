"""What the sinks of `outfall.kinesis` take, and what they make of rows; and that the documentation says so."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from outfall.async_sink import ErrorAction
from outfall.aws.client import AwsPartition
from outfall.capabilities import Guarantee
from outfall.capability_checks import check_sink, resolve
from outfall.errors import ConfigurationError, SerializationError, TransientError, ValueRefusedError
from outfall.kinesis import FirehoseSink, KinesisSink, sink_from_options
from outfall.kinesis.records import AwsRecordSerializer
from outfall.source_options import make_sink
from tests.documents import ROOT

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2], "key": ["ä", "b"], "data": ["x", "yy"]})


def entries(sink: Any, batch: pa.RecordBatch = ROWS) -> Any:
    partition = sink.delegate.open()
    try:
        return [(entry, partition.size_in_bytes(entry)) for entry in partition.convert(batch)]
    finally:
        partition.close()


def stream(**options: Any) -> KinesisSink:
    return KinesisSink("s", region="us-east-1", **options)


@pytest.mark.parametrize("shim", ["stream", "firehose"])
def test_a_shim_is_as_short_as_the_documentation_says(shim: str) -> None:
    assert len((ROOT / f"connectors/outfall/kinesis/{shim}.py").read_text().splitlines()) < 150
    assert "each under 150 lines" in (ROOT / "docs" / "writing-a-request-sink.md").read_text()


@pytest.mark.parametrize("kind", [KinesisSink, FirehoseSink])
def test_a_target_says_where_the_stream_is(kind: Any) -> None:
    service = kind("s").kind()
    assert kind("s").target() == f"{service}:s"
    assert kind("s", region="eu-west-1").target() == f"{service}:eu-west-1/s"
    assert kind("s", endpoint_url="http://127.0.0.1:4566").target() == f"{service}:http://127.0.0.1:4566/s"


@pytest.mark.parametrize("kind", [KinesisSink, FirehoseSink])
@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://u:hunter2@127.0.0.1:4566", "no credentials"),
        ("https://hunter2@127.0.0.1", "no credentials"),
        ("https://127.0.0.1/?token=hunter2", "no query"),
        ("https://127.0.0.1/#hunter2", "no query"),
        ("localhost:4566", "http or https URL"),
        ("https:///x", "http or https URL"),
    ],
)
def test_an_address_with_secrets_is_refused_without_them(kind: Any, address: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"endpoint_url.*{text}") as caught:
        kind("s", endpoint_url=address)
    assert "hunter2" not in str(caught.value)


def test_what_a_sink_is_shared_by_has_its_address_and_is_shown() -> None:
    here = stream(endpoint_url="http://127.0.0.1:4566")
    assert repr(here) == "KinesisSink('http://127.0.0.1:4566/kinesis:us-east-1/s')"
    there = stream(endpoint_url="http://127.0.0.1:4567")
    assert here.delegate.host() != there.delegate.host() != stream().delegate.host()


def test_a_record_is_the_row_as_json_or_a_column() -> None:
    assert entries(stream(partition_key="key")) == [
        ({"Data": b'{"id":1,"key":"\xc3\xa4","data":"x"}', "PartitionKey": "ä"}, 32),
        ({"Data": b'{"id":2,"key":"b","data":"yy"}', "PartitionKey": "b"}, 31),
    ]
    assert entries(stream(partition_key="id", data="data", explicit_hash_key="id"))[1] == (
        {"Data": b"yy", "PartitionKey": "2", "ExplicitHashKey": "2"},
        3,
    )
    assert entries(FirehoseSink("d", region="us-east-1", data="data"))[1] == ({"Data": b"yy"}, 2)
    assert entries(FirehoseSink("d", region="us-east-1"))[1][0]["Data"].endswith(b'"yy"}\n')


def test_a_key_is_random_or_a_function_of_the_row() -> None:
    assert len({entry["PartitionKey"] for entry, _ in entries(stream())}) == 2
    keyed = entries(stream(partition_key=lambda row: row["key"] * 2))
    assert [entry["PartitionKey"] for entry, _ in keyed] == ["ää", "bb"]


def test_order_is_by_partition_key_when_asked() -> None:
    (entry, _), _ = entries(stream(partition_key="key"))
    assert stream(ordered=True).delegate.open().ordering_key(entry) == "ä"
    assert stream().delegate.open().ordering_key(entry) is None


@pytest.mark.parametrize("options", [{"partition_key": "key"}, {"data": "key"}, {"explicit_hash_key": "key"}])
def test_null_in_a_column_that_decides_is_refused(options: dict[str, str]) -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], "key": ["a", None]})
    with pytest.raises(ValueRefusedError, match="NULL in a row"):
        entries(stream(**options), batch)


@pytest.mark.parametrize(
    ("keys", "text"),
    [([None], "a NoneType"), ([7], "a int"), ([""], "a string of 0"), (["a", "k" * 257], "a string of 257")],
)
def test_a_function_whose_key_will_not_do_is_told_so(keys: list[Any], text: str) -> None:
    found = iter(keys)
    with pytest.raises(ValueRefusedError, match=f"the partition key of a row is {text}"):
        entries(stream(partition_key=lambda row: next(found)))
    longest = "ä" * 256
    assert entries(stream(partition_key=lambda row: longest))[0][0]["PartitionKey"] == longest


def test_a_key_that_is_no_text_is_told_so() -> None:
    with pytest.raises(ValueRefusedError, match="'key', which determines the shard, is not UTF-8 in a row"):
        entries(stream(partition_key="key"), pa.RecordBatch.from_pydict({"key": [b"a", b"\xff"]}))


def test_columns_are_looked_at_before_the_first_row() -> None:
    with pytest.raises(ConfigurationError, match="partition_key requires the column 'kee', and the rows have id, key"):
        stream(partition_key="kee").check_schema(ROWS.schema)
    with pytest.raises(ConfigurationError, match="is bigint, and data must be binary"):
        FirehoseSink("d", data="id").check_schema(ROWS.schema)
    stream(partition_key="key", explicit_hash_key="id", data="data").check_schema(ROWS.schema)
    listed = pa.schema([("key", pa.list_(pa.string()))])
    for option in ("partition_key", "explicit_hash_key"):
        with pytest.raises(
            ConfigurationError, match=rf"{option} is the column 'key', and array<.*> cannot be converted"
        ):
            stream(**{option: "key"}).check_schema(listed)


@pytest.mark.parametrize(
    "options",
    [{"max_batch_size": 501}, {"max_batch_size_in_bytes": (10 << 20) + 1}, {"max_record_size_in_bytes": "11 MiB"}],
)
def test_limits_above_the_services_own_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        stream(**options)


def test_firehose_has_limits_of_its_own() -> None:
    options = FirehoseSink("d").delegate.options
    assert (options.max_batch_size, options.max_batch_size_in_bytes) == (500, 4 << 20)
    assert options.max_record_size_in_bytes == 1000 << 10


def test_sinks_are_pickled_and_shaped_as_the_engine_asks() -> None:
    for sink in (stream(partition_key="key"), FirehoseSink("d")):
        check_sink(sink)
        assert resolve(sink).guarantee() is Guarantee.AT_LEAST_ONCE
        assert pickle.loads(pickle.dumps(sink)).delegate.options == sink.delegate.options
        assert not resolve(sink).keeps_writer_state()


def test_options_as_spark_gives_them_make_either_sink() -> None:
    sink = sink_from_options({"stream": "s", "partitionkey": "key", "maxBatchSize": "10", "retryDeadline": "1 minute"})
    assert isinstance(sink, KinesisSink)
    assert (sink.delegate.options.partition_key, sink.delegate.options.max_batch_size) == ("key", 10)
    assert isinstance(make_sink("kinesis", {"deliveryStream": "d"}), FirehoseSink)
    with pytest.raises(ConfigurationError, match="did you mean stream"):
        sink_from_options({"streem": "s"})
    with pytest.raises(ConfigurationError, match="keeps state per worker"):
        make_sink("kinesis", {"stream": "s", "acrossEpochs": "true"})


def aws_error(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutRecords")


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (aws_error("ProvisionedThroughputExceededException"), ErrorAction.RETRY),
        (aws_error("KMSThrottlingException"), ErrorAction.RETRY),
        (aws_error("Unheard", 503), ErrorAction.RETRY),
        (aws_error("Unheard", 429), ErrorAction.RETRY),
        (aws_error("ValidationException"), ErrorAction.DEAD_LETTER),
        (aws_error("ResourceNotFoundException"), ErrorAction.FATAL),
        (aws_error("AccessDeniedException"), ErrorAction.FATAL),
        (aws_error("KMSAccessDeniedException"), ErrorAction.FATAL),
        (ReadTimeoutError(endpoint_url="https://x"), ErrorAction.RETRY),
        (ConnectTimeoutError(endpoint_url="https://x"), ErrorAction.RETRY),
        (SSLError(endpoint_url="https://x", error="certificate"), ErrorAction.FATAL),
        (NoCredentialsError(), ErrorAction.FATAL),
        (aws_error("ExpiredTokenException"), ErrorAction.RETRY),
        (aws_error("UnrecognizedClientException"), ErrorAction.RETRY),
        (CredentialRetrievalError(provider="x", error_msg="y"), ErrorAction.RETRY),
        (ResponseParserError("cut off"), ErrorAction.RETRY),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), ErrorAction.RETRY),
        (TransientError("no client now"), ErrorAction.RETRY),
        (ConfigurationError("no client"), ErrorAction.FATAL),
    ],
)
def test_what_an_error_of_aws_means(error: Exception, action: ErrorAction) -> None:
    assert AwsPartition.classify(error) is action


def test_a_held_record_comes_back_as_it_was() -> None:
    serializer = AwsRecordSerializer()
    for entry, _ in entries(stream(partition_key="key", explicit_hash_key="id")):
        assert serializer.deserialize(1, serializer.serialize(entry)) == entry
    with pytest.raises(SerializationError, match="damaged"):
        serializer.deserialize(1, b'{"Data": "?"}')


@pytest.mark.parametrize("sink", [stream(), FirehoseSink("s", region="us-east-1")], ids=["stream", "firehose"])
def test_a_response_that_does_not_match_the_records_sends_all_again(sink: Any) -> None:
    partition = sink.delegate.open()
    records, refused = list(partition.convert(ROWS)), {"ErrorCode": "InternalFailure"}
    for answers, failed in [([{}], 0), ([{}, {}], 1), ([refused, {}], 2), ([{}, {}, {}], 0)]:
        with pytest.raises(TransientError):
            partition.outcome(records, answers, failed)
    assert list(partition.outcome(records, [{}, refused], 1).retry) == records[1:]
    partition.close()


def test_records_may_have_ten_mebibytes_where_the_stream_allows_it() -> None:
    made = stream(max_record_size_in_bytes="10 MiB", max_batch_size_in_bytes="10 MiB")
    assert made.delegate.options.max_record_size_in_bytes == 10 << 20
