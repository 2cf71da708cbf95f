"""`KinesisSink`: records in a Kinesis data stream."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa
from pydantic import ByteSize, Field

from outfall.async_sink import AsyncSinkOptions, RequestOutcome
from outfall.aws.client import AwsConnection
from outfall.kinesis.aws import AwsOptions, StreamPartition, StreamSettings, StreamSink
from outfall.kinesis.preflight import addressed, look_at_stream
from outfall.kinesis.records import AwsRecord, data_of, partition_keys, texts_of
from outfall.options import arguments_for, make_options, names_arguments
from outfall.values import to_values
from outfall.wrappers import WithDeadLetters

_MIB = 1 << 20


class KinesisConnection(AwsConnection):
    """The options of a connection to Kinesis."""

    service = "kinesis"


class KinesisOptions(AsyncSinkOptions, AwsOptions, KinesisConnection):
    """The options of `KinesisSink`, in its constructor and in Spark. The limits are those of PutRecords."""

    stream: str = Field(min_length=1, description="The name or ARN of the stream.")
    partition_key: str | None = Field(
        default=None,
        description="The column whose value determines the shard. NULL is rejected. In Python also a function of the"
        " row. Default: a random key per record.",
    )
    explicit_hash_key: str | None = Field(
        default=None,
        description="The column with an integer below 2¹²⁸ that determines the shard instead of the hash of the key.",
    )
    ordered: bool = Field(
        default=False,
        description="Whether records of one task and partition key arrive in row order, one in flight at a time.",
    )
    max_batch_size: int = Field(default=500, gt=0, le=500, description="Maximum number of records per PutRecords call.")
    max_batch_size_in_bytes: ByteSize = Field(
        default=ByteSize(5 * _MIB), gt=0, le=10 * _MIB, description="Maximum size of data and keys per call."
    )
    max_record_size_in_bytes: ByteSize = Field(
        default=ByteSize(_MIB), gt=0, le=10 * _MIB, description="Maximum size of a record with its key."
    )


class KinesisSink(WithDeadLetters):
    """Sends rows as records to a Kinesis data stream.

    Item type: rows (dicts or Arrow batches).

    What must exist: the stream, and permission for `kinesis:PutRecords` for boto3's credentials on every executor.

    Unit of parallelism: each Spark task, with up to `max_in_flight_requests` concurrent calls.

    Guarantee: at least once. A record is duplicated if a response is lost or a task runs again.

    Args:
        stream: its name or ARN. See `KinesisOptions`, also for the other arguments.
        partition_key: also a picklable function that takes the row as a dict and returns a string.
        dead_letter: a sink for rejected records; see `outfall.wrappers.DeadLetteringSink`. Python API only.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: `dead_letter` cannot take the rejected records.
    """

    @names_arguments
    def __init__(
        self,
        stream: str,
        *,
        partition_key: str | Callable[[Mapping[str, Any]], str] | None = None,
        explicit_hash_key: str | None = None,
        ordered: bool = False,
        dead_letter: Any = None,
        **settings: Unpack[StreamSettings],
    ) -> None:
        key_function = partition_key if callable(partition_key) else None
        given = arguments_for(KinesisOptions, locals()) | {"partition_key": None if key_function else partition_key}
        sink = KinesisRequestSink(make_options(KinesisOptions, given | settings))
        sink.key_function = key_function
        super().__init__(sink, dead_letter)


class KinesisRequestSink(StreamSink):
    """Creates the partitions of a `KinesisSink`."""

    shown_as = "KinesisSink"
    connection = KinesisConnection
    named_by = "stream"
    look = staticmethod(look_at_stream)
    key_function: Callable[[Mapping[str, Any]], str] | None = None

    def columns(self) -> dict[str, str]:
        named = {name: getattr(self.options, name) for name in ("partition_key", "explicit_hash_key")}
        return super().columns() | {name: column for name, column in named.items() if column is not None}

    def open(self) -> KinesisPartition:
        return KinesisPartition(self)


class KinesisPartition(StreamPartition):
    """Sends records."""

    sink: KinesisRequestSink

    def convert(self, batch: pa.RecordBatch) -> Sequence[AwsRecord]:
        options = self.options
        data = data_of(batch, options.data)
        records = [AwsRecord(Data=item, PartitionKey=key) for item, key in zip(data, self._keys(batch), strict=True)]
        if options.explicit_hash_key is not None:
            for record, place in zip(records, texts_of(batch, options.explicit_hash_key), strict=True):
                record["ExplicitHashKey"] = place
        return records

    def size_in_bytes(self, entry: AwsRecord) -> int:
        return len(entry["Data"]) + len(entry["PartitionKey"].encode())

    def ordering_key(self, entry: AwsRecord) -> Hashable:
        return entry["PartitionKey"] if self.options.ordered else None

    def send(self, entries: Sequence[AwsRecord]) -> RequestOutcome[AwsRecord]:
        answer = self.sink.call("put_records", **addressed(self.options.stream), Records=list(entries))
        return self.outcome(entries, answer.get("Records", ()), answer.get("FailedRecordCount"))

    def _keys(self, batch: pa.RecordBatch) -> Sequence[str]:
        if self.sink.key_function is not None:
            return partition_keys(map(self.sink.key_function, to_values(batch, None)))
        if self.options.partition_key is not None:
            return partition_keys(texts_of(batch, self.options.partition_key))
        return [f"{random.getrandbits(128):032x}" for _ in range(batch.num_rows)]
