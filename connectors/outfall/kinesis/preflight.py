"""Checks that streams exist and accept records, without sending one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.aws.errors import FAILURES, code_of, translated
from outfall.errors import TargetError

_FORBIDDEN = ("AccessDeniedException", "AccessDenied")


def addressed(stream: str) -> dict[str, str]:
    """Return the argument for a data stream, by its name or ARN."""
    return {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}


def look_at_stream(client: Any, stream: str) -> Sequence[str]:
    """Describe a data stream (DescribeStreamSummary), once, and return the findings.

    Without permission to describe the stream, the finding says so. Raises `TargetError` if the stream does not exist or
    accepts no records now, or AWS rejects the call, and `TransientError` if AWS does not respond, or not now.
    """
    what, untried = f"the data stream {stream}", "permission for PutRecords was not tested: a test record would stay"
    try:
        found = client.describe_stream_summary(**addressed(stream))["StreamDescriptionSummary"]
    except FAILURES as error:
        return [_not_told(what, "kinesis:DescribeStreamSummary", error), untried]
    # In the state UPDATING, shards are split or merged, and the stream accepts records.
    _check_status(what, found["StreamStatus"], ("ACTIVE", "UPDATING"))
    mode = found.get("StreamModeDetails", {}).get("StreamMode", "").lower().replace("_", "-")
    shards = f"open shards: {found['OpenShardCount']}{f' ({mode})' if mode else ''}"
    return [f"{what} is {found['StreamStatus']}; {shards}", untried]


def look_at_delivery_stream(client: Any, name: str) -> Sequence[str]:
    """Describe a delivery stream (DescribeDeliveryStream), once. See `look_at_stream`."""
    what, untried = (
        f"the delivery stream {name}",
        "permission for PutRecordBatch was not tested: a test record would stay",
    )
    try:
        found = client.describe_delivery_stream(DeliveryStreamName=name)["DeliveryStreamDescription"]
    except FAILURES as error:
        return [_not_told(what, "firehose:DescribeDeliveryStream", error), untried]
    _check_status(what, found["DeliveryStreamStatus"], ("ACTIVE",))
    source = found.get("DeliveryStreamType", "DirectPut")
    if source != "DirectPut":
        raise TargetError(
            f"{what} accepts no records",
            why=f"its type is {source}: it reads them from another source",
            do="write to its source, or create a delivery stream of type DirectPut",
        )
    return [f"{what} is {found['DeliveryStreamStatus']} and accepts records by PutRecordBatch", untried]


def _check_status(what: str, status: str, good: Sequence[str]) -> None:
    if status not in good:
        raise TargetError(
            f"{what} is {status}",
            why=f"it accepts records only in the state {' or '.join(good)}",
            do="wait for this state, or check the stream in the AWS console",
        )


def _not_told(what: str, right: str, error: BaseException) -> str:
    """Return a text without findings if only the permission to describe is missing; else raise the translated error."""
    if code_of(error) in _FORBIDDEN:
        return f"{what} was not checked: {right} is not granted, and writing does not need it"
    do = "correct its name, region, endpoint_url or the credentials"
    raise translated(what, error, failed="cannot be described", do=do) from error
