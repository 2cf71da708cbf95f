"""What `outfall doctor` finds out of streams, from answers as botocore's models have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError
from botocore.stub import Stubber

from outfall.aws.client import AwsSink
from outfall.cli.commands.doctor import Examination
from outfall.errors import TargetError, TransientError
from outfall.kinesis import FirehoseSink, KinesisSink

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/s"
NOT_SENT = "was not tested: a test record would stay"


def stubbed(service: str) -> Stubber:
    client = boto3.client(service, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="hunter2")
    return Stubber(client)


@pytest.fixture
def kinesis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    yield from _as_client("kinesis", monkeypatch)


@pytest.fixture
def firehose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    yield from _as_client("firehose", monkeypatch)


def _as_client(service: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    stub = stubbed(service)
    monkeypatch.setattr(AwsSink, "client", lambda self: stub.client)
    with stub:
        yield stub
    stub.assert_no_pending_responses()


def summary(**changes: Any) -> dict[str, Any]:
    found = {
        "StreamName": "s", "StreamARN": ARN, "StreamStatus": "ACTIVE", "RetentionPeriodHours": 24,
        "StreamCreationTimestamp": 0, "EnhancedMonitoring": [], "OpenShardCount": 3,
        "StreamModeDetails": {"StreamMode": "ON_DEMAND"},
    }  # fmt: skip
    return {"StreamDescriptionSummary": found | changes}


def description(**changes: Any) -> dict[str, Any]:
    found = {
        "DeliveryStreamName": "d", "DeliveryStreamARN": "arn:d", "DeliveryStreamStatus": "ACTIVE",
        "DeliveryStreamType": "DirectPut", "VersionId": "1", "Destinations": [], "HasMoreDestinations": False,
    }  # fmt: skip
    return {"DeliveryStreamDescription": found | changes}


@pytest.mark.parametrize(("stream", "argument"), [("s", "StreamName"), (ARN, "StreamARN")])
def test_a_stream_is_described_with_its_shards(kinesis: Stubber, stream: str, argument: str) -> None:
    kinesis.add_response("describe_stream_summary", summary(), {argument: stream})
    found = KinesisSink(stream).check_connection()
    assert found == [
        f"the data stream {stream} is ACTIVE; open shards: 3 (on-demand)", f"permission for PutRecords {NOT_SENT}"
    ]  # fmt: skip


def test_a_stream_whose_shards_are_split_takes_records(kinesis: Stubber) -> None:
    kinesis.add_response("describe_stream_summary", summary(StreamStatus="UPDATING"))
    assert "is UPDATING" in KinesisSink("s").check_connection()[0]


@pytest.mark.parametrize("status", ["CREATING", "DELETING"])
def test_a_stream_that_takes_no_records_is_an_error(kinesis: Stubber, status: str) -> None:
    kinesis.add_response("describe_stream_summary", summary(StreamStatus=status))
    with pytest.raises(TargetError, match=f"the data stream s is {status}.*ACTIVE or UPDATING.*What to do"):
        KinesisSink("s").check_connection()


def test_a_delivery_stream_is_described(firehose: Stubber) -> None:
    firehose.add_response("describe_delivery_stream", description(), {"DeliveryStreamName": "d"})
    assert FirehoseSink("d").check_connection() == [
        "the delivery stream d is ACTIVE and accepts records by PutRecordBatch",
        f"permission for PutRecordBatch {NOT_SENT}",
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"DeliveryStreamStatus": "CREATING_FAILED"}, "is CREATING_FAILED"),
        ({"DeliveryStreamType": "KinesisStreamAsSource"}, "accepts no records.*write to its source"),
    ],
)
def test_a_delivery_stream_that_takes_no_records_is_an_error(
    firehose: Stubber, changes: dict[str, str], text: str
) -> None:
    firehose.add_response("describe_delivery_stream", description(**changes))
    with pytest.raises(TargetError, match=text):
        FirehoseSink("d").check_connection()


@pytest.mark.parametrize(
    ("sink", "method", "right"),
    [
        (KinesisSink("s"), "describe_stream_summary", "kinesis:DescribeStreamSummary"),
        (FirehoseSink("s"), "describe_delivery_stream", "firehose:DescribeDeliveryStream"),
    ],
)
def test_without_the_right_to_ask_nothing_is_found_out_and_nothing_failed(
    request: pytest.FixtureRequest, sink: Any, method: str, right: str
) -> None:
    request.getfixturevalue(sink.kind()).add_client_error(method, "AccessDeniedException", "not you", 400)
    findings = [finding for finding in Examination(lambda: sink, None).run() if finding.about == "connection"]
    assert [finding.result for finding in findings] == ["ok", "ok"]
    assert f"was not checked: {right} is not granted" in findings[0].text


@pytest.mark.parametrize(
    ("code", "status", "error", "text"),
    [
        (
            "ResourceNotFoundException",
            400,
            TargetError,
            "the data stream s does not exist.*create it, or correct its name",
        ),
        ("LimitExceededException", 400, TransientError, "does not respond.*try again"),
        ("InternalFailure", 500, TransientError, "does not respond.*try again"),
        ("UnrecognizedClientException", 400, TargetError, "UnrecognizedClientException.*or the credentials"),
    ],
)
def test_what_aws_refuses_says_what_to_do(
    kinesis: Stubber, code: str, status: int, error: type[Exception], text: str
) -> None:
    kinesis.add_client_error("describe_stream_summary", code, "said AWS", status)
    with pytest.raises(error, match=text):
        KinesisSink("s").check_connection()


@pytest.mark.parametrize(
    ("raised", "error"),
    [(EndpointConnectionError(endpoint_url="https://x"), TransientError), (NoCredentialsError(), TargetError)],
)
def test_what_keeps_a_request_from_aws_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[Exception]
) -> None:
    class Away:
        def describe_stream_summary(self, **arguments: Any) -> Any:
            raise raised

    monkeypatch.setattr(AwsSink, "client", lambda self: Away())
    with pytest.raises(error, match=r"endpoint URL.*open the network path|credentials"):
        KinesisSink("s").check_connection()
