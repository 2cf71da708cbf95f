"""Streams as the services describe them: whether they are there and take records, told without sending one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.async_sink import ErrorAction
from outfall.errors import OutfallError, TargetError, TransientError
from outfall.kinesis.aws import FAILURES, classify, code_of, is_stale

_FORBIDDEN = ("AccessDeniedException", "AccessDenied")


def addressed(stream: str) -> dict[str, str]:
    """Return the argument that names a data stream, by its name or ARN."""
    return {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}


def look_at_stream(client: Any, stream: str) -> Sequence[str]:
    """Ask Kinesis for a data stream (DescribeStreamSummary), once.

    Returns:
        What was found; without the right to ask, that nothing was.

    Raises:
        TargetError: there is none, or it takes no records now, or AWS refuses.
        TransientError: AWS does not answer, or not now.
    """
    what, untried = f"the data stream {stream}", "whether PutRecords is granted was not tried: any record would stay"
    try:
        found = client.describe_stream_summary(**addressed(stream))["StreamDescriptionSummary"]
    except FAILURES as error:
        return [_not_told(what, "kinesis:DescribeStreamSummary", error), untried]
    # While it is UPDATING its shards are split or merged, and it takes records.
    _check_status(what, found["StreamStatus"], ("ACTIVE", "UPDATING"))
    mode = found.get("StreamModeDetails", {}).get("StreamMode", "").lower().replace("_", "-")
    shards = f"open shards: {found['OpenShardCount']}{f' ({mode})' if mode else ''}"
    return [f"{what} is {found['StreamStatus']}; {shards}", untried]


def look_at_delivery_stream(client: Any, name: str) -> Sequence[str]:
    """Ask Firehose for a delivery stream (DescribeDeliveryStream), once. See `look_at_stream`."""
    what, untried = (
        f"the delivery stream {name}",
        "whether PutRecordBatch is granted was not tried: any record would stay",
    )
    try:
        found = client.describe_delivery_stream(DeliveryStreamName=name)["DeliveryStreamDescription"]
    except FAILURES as error:
        return [_not_told(what, "firehose:DescribeDeliveryStream", error), untried]
    _check_status(what, found["DeliveryStreamStatus"], ("ACTIVE",))
    source = found.get("DeliveryStreamType", "DirectPut")
    if source != "DirectPut":
        raise TargetError(
            f"{what} takes no records",
            why=f"its type is {source}: it reads them from elsewhere",
            do="write to its source, or create a delivery stream of type DirectPut",
        )
    return [f"{what} is {found['DeliveryStreamStatus']} and takes records by PutRecordBatch", untried]


def _check_status(what: str, status: str, good: Sequence[str]) -> None:
    if status not in good:
        raise TargetError(
            f"{what} is {status}",
            why=f"it takes records only while it is {' or '.join(good)}",
            do="wait until it is, or look in AWS's console for what it lacks",
        )


def _not_told(what: str, right: str, error: BaseException) -> str:
    """Say that nothing was found out, where only the right to ask is missing; else raise what it means."""
    if code_of(error) in _FORBIDDEN:
        return f"whether {what} exists was not found out: {right} is not granted, which writing does not need"
    raise _translated(what, error) from error


def _translated(what: str, error: BaseException) -> OutfallError:
    if code_of(error) == "ResourceNotFoundException":
        return TargetError(
            f"there is no {what.removeprefix('the ')}",
            why=str(error),
            do="create it, or correct its name, the region, the endpoint_url or the account of the credentials",
        )
    if classify(error) is ErrorAction.RETRY and not is_stale(error):
        return TransientError(
            f"{what} cannot be asked for",
            why=str(error),
            do="try again; if it stays so, correct region and endpoint_url, or open the way there",
        )
    return TargetError(
        f"{what} cannot be asked for", why=str(error), do="correct its name, region, endpoint_url or the credentials"
    )
