"""The options of `DynamoDBSink`."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import ByteSize, Field, model_validator

from outfall.aws.client import AwsConnection, AwsSettings
from outfall.options import Duration, Names
from outfall.versioned import Deletes, TombstoneOptions, VersionedSettings

_KIB = 1 << 10


class DynamoDBConnection(AwsConnection):
    """The options of a connection to DynamoDB."""

    service = "dynamodb"
    sends_json = True


class DynamoDBOptions(TombstoneOptions, DynamoDBConnection):
    """The options of `DynamoDBSink`, in its constructor and in Spark."""

    table: str = Field(min_length=3, description="The name or ARN of the table.")
    set_columns: Names = Field(
        default=(), description="Array columns of strings, numbers or binary values that are stored as sets."
    )
    ttl: Duration | None = Field(
        default=None,
        description="How long an item lives after it was written, in the TTL attribute of the table. Default: until it"
        " is deleted.",
    )
    deletes: Deletes = Field(
        default="tombstone",
        description="`tombstone`: a deleted item is replaced by its key and the version, with `{version_attribute}` and"
        " `{version_attribute}_deleted`, until the table's TTL removes it after `tombstone_retention`. `remove`: the"
        " item is removed, and its version with it: a late write may bring it back, so the guarantee is at least once.",
    )
    version_attribute: str = Field(
        default="_outfall", min_length=1, description="The attribute of an item that contains its version."
    )
    records_table: str | None = Field(
        default=None,
        min_length=3,
        description="The table with the counter of the versions and the records of steps, with the string key `name`."
        " It is created if it does not exist. All writers of a table must use the same one. Default: the table's name"
        " with `-outfall` at its end.",
    )
    transactions: bool = Field(
        default=False,
        description="Whether the rows that a thread writes at a time are one transaction (`TransactWriteItems`), not"
        " a `PutItem` each. It takes far less time, and twice as many write units. If a condition fails, the rows are"
        " written one by one.",
    )
    max_batch_size: int = Field(
        default=25,
        gt=0,
        le=100,
        description="Maximum number of rows that a thread writes at a time. Above 25 only with `transactions`.",
    )
    max_in_flight_requests: int = Field(
        default=16, gt=0, description="Maximum number of threads per task that write rows at the same time."
    )
    max_batch_size_in_bytes: ByteSize = Field(
        default=ByteSize(10 << 20), gt=0, le=16 << 20, description="Maximum total size of these rows."
    )
    max_record_size_in_bytes: ByteSize = Field(
        default=ByteSize(400 * _KIB),
        gt=0,
        le=400 * _KIB,
        description="Maximum size of an item, as DynamoDB counts it. A larger one becomes a dead letter.",
    )

    @property
    def records(self) -> str:
        """The table with the records of steps."""
        return self.records_table or f"{self.table}-outfall"

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.records.rpartition("/")[2] == self.table.rpartition("/")[2]:
            raise ValueError("records_table is the table itself: rows could replace Outfall's records")
        if self.max_batch_size > 25 and not (self.transactions and self.versions):
            raise ValueError("max_batch_size above 25 requires transactions and versions")
        if self.ttl is not None and self.ttl < timedelta(seconds=1):
            raise ValueError("ttl must be at least a second")
        return self


class DynamoDBSettings(VersionedSettings, AwsSettings, total=False):
    """The fields of `DynamoDBOptions` as keyword arguments of the constructor."""

    set_columns: str | tuple[str, ...] | list[str]
    ttl: timedelta | float | str | None
    deletes: Deletes
    transactions: bool
    version_attribute: str
    records_table: str | None
