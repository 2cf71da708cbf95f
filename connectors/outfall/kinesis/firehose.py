"""`FirehoseSink`: records for a delivery stream of Amazon Data Firehose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import pyarrow as pa
from pydantic import ByteSize, Field

from outfall.async_sink import AsyncSinkOptions, RequestOutcome
from outfall.aws.client import AwsConnection
from outfall.kinesis.aws import AwsOptions, StreamPartition, StreamSettings, StreamSink
from outfall.kinesis.preflight import look_at_delivery_stream
from outfall.kinesis.records import AwsRecord, data_of
from outfall.options import make_options, names_arguments
from outfall.wrappers import WithDeadLetters

_KIB = 1 << 10


class FirehoseConnection(AwsConnection):
    """The options of a connection to Firehose."""

    service = "firehose"


class FirehoseOptions(AsyncSinkOptions, AwsOptions, FirehoseConnection):
    """The options of `FirehoseSink`, in its constructor and in Spark. The limits are those of PutRecordBatch."""

    delivery_stream: str = Field(min_length=1, description="The name of the delivery stream.")
    max_batch_size: int = Field(
        default=500, gt=0, le=500, description="Maximum number of records per PutRecordBatch call."
    )
    max_batch_size_in_bytes: ByteSize = Field(
        default=ByteSize(4096 * _KIB), gt=0, le=4096 * _KIB, description="Maximum size of data per call."
    )
    max_record_size_in_bytes: ByteSize = Field(
        default=ByteSize(1000 * _KIB), gt=0, le=1000 * _KIB, description="Maximum size of a record."
    )


class FirehoseSink(WithDeadLetters):
    """Sends rows as records to a delivery stream of Amazon Data Firehose.

    Item type: rows (dicts or Arrow batches). Without `data` each is a line of JSON, because Firehose concatenates
    records.

    What must exist: the delivery stream, and permission for `firehose:PutRecordBatch` for boto3's credentials on every
    executor.

    Unit of parallelism: each Spark task, with up to `max_in_flight_requests` concurrent calls.

    Guarantee: at least once, without order. A record is duplicated if a response is lost or a task runs again.

    Args:
        delivery_stream: its name. See `FirehoseOptions`, also for the other arguments.
        dead_letter: a sink for rejected records; see `outfall.wrappers.DeadLetteringSink`. Python API only.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: `dead_letter` cannot take the rejected records.
    """

    @names_arguments
    def __init__(self, delivery_stream: str, *, dead_letter: Any = None, **settings: Unpack[StreamSettings]) -> None:
        made = make_options(FirehoseOptions, {"delivery_stream": delivery_stream} | settings)
        super().__init__(FirehoseRequestSink(made), dead_letter)


class FirehoseRequestSink(StreamSink):
    """Creates the partitions of a `FirehoseSink`."""

    shown_as = "FirehoseSink"
    connection = FirehoseConnection
    named_by = "delivery_stream"
    look = staticmethod(look_at_delivery_stream)

    def open(self) -> FirehosePartition:
        return FirehosePartition(self)


class FirehosePartition(StreamPartition):
    """Sends records."""

    def convert(self, batch: pa.RecordBatch) -> Sequence[AwsRecord]:
        return [AwsRecord(Data=data) for data in data_of(batch, self.options.data, end=b"\n")]

    def size_in_bytes(self, entry: AwsRecord) -> int:
        return len(entry["Data"])

    def send(self, entries: Sequence[AwsRecord]) -> RequestOutcome[AwsRecord]:
        stream = self.options.delivery_stream
        answer = self.sink.call("put_record_batch", DeliveryStreamName=stream, Records=list(entries))
        return self.outcome(entries, answer.get("RequestResponses", ()), answer.get("FailedPutCount"))
