"""What a table of DynamoDB is: its keys and its TTL attribute; and the table with the records of steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import WaiterError

from outfall.aws.errors import FAILURES, code_of, translated
from outfall.errors import TargetError, TransientError
from outfall.versioned import RecordStore

RECORD_KEYS = {"name": "S"}
"""The keys of a table with records, with their types."""
_MISSING = "ResourceNotFoundException"
_LOST = "ConditionalCheckFailedException"


@dataclass(frozen=True)
class DynamoDBTable:
    """A table, as DescribeTable and DescribeTimeToLive show it."""

    keys: dict[str, str]
    """By key attribute, first the partition key: `S`, `N` or `B`."""
    ttl: str | None
    """The TTL attribute; `None` if TTL is off, or may not be described."""
    status: str
    regions: int
    """The number of other regions with replicas."""


def describe(client: Any, name: str) -> DynamoDBTable:
    """Return what a table is. Raises `TargetError` or `TransientError` if it cannot be described or written."""
    with errors_of(f"the table {name}", "dynamodb:DescribeTable"):
        found = client.describe_table(TableName=name)["Table"]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    if found["TableStatus"] not in ("ACTIVE", "UPDATING"):
        raise TargetError(
            f"the table {name} is {found['TableStatus']}",
            why="it accepts items only in the state ACTIVE or UPDATING",
            do="wait for this state, or check the table in the AWS console",
        )
    try:
        ttl = client.describe_time_to_live(TableName=name).get("TimeToLiveDescription", {})
    except FAILURES:  # needs a permission of its own
        ttl = {}
    return DynamoDBTable(
        {each["AttributeName"]: kinds[each["AttributeName"]] for each in found["KeySchema"]},
        ttl.get("AttributeName") if ttl.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") else None,
        found["TableStatus"],
        len(found.get("Replicas", ())),
    )


@contextmanager
def errors_of(what: str, right: str) -> Iterator[None]:
    """Raise AWS's errors as `OutfallError`s. `right` is the permission that the block needs."""
    try:
        yield
    except FAILURES as error:
        do = f"grant {right}, or correct its name, the region or the credentials"
        raise translated(what, error, failed="cannot be used", do=do) from error


class DynamoDBRecords(RecordStore):
    """Records as items of a table of their own, written on condition. It is created with the first record."""

    def __init__(self, client: Any, table: str, prefix: str) -> None:
        """Keep the records whose names begin with `prefix`, which distinguishes the tables that share this one."""
        self.where = f"dynamodb:{prefix}"
        self._client = client
        self._table = table
        self._prefix = prefix

    def read(self, name: str) -> str | None:
        with errors_of(f"the table {self._table} with Outfall's records", "dynamodb:GetItem"):
            try:
                found = self._client.get_item(TableName=self._table, Key=self._key(name), ConsistentRead=True)
            except FAILURES as error:
                if code_of(error) != _MISSING:
                    raise
                return None
        return found["Item"]["text"]["S"] if "Item" in found else None

    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#t)"}
        if old is not None:
            condition = {"ConditionExpression": "#t = :old", "ExpressionAttributeValues": {":old": {"S": old}}}
        condition |= {"TableName": self._table, "ExpressionAttributeNames": {"#t": "text"}}
        with errors_of(f"the table {self._table} with Outfall's records", "dynamodb:PutItem and DeleteItem"):
            try:
                self._write(name, new, condition)
            except FAILURES as error:
                if code_of(error) == _LOST:
                    return False
                if code_of(error) != _MISSING or old is not None:
                    raise
                self._create()
                self._write(name, new, condition)
        return True

    def _write(self, name: str, new: str | None, condition: dict[str, Any]) -> None:
        if new is None:
            self._client.delete_item(Key=self._key(name), **condition)
        else:
            self._client.put_item(Item=self._key(name) | {"text": {"S": new}}, **condition)

    def _key(self, name: str) -> dict[str, Any]:
        return {"name": {"S": f"{self._prefix} {name}"}}

    def _create(self) -> None:
        """Create the table, unless another driver is creating it."""
        with errors_of(
            f"the table {self._table} with Outfall's records",
            f"dynamodb:CreateTable; or create the table {self._table} with the string key name",
        ):
            try:
                self._client.create_table(
                    TableName=self._table,
                    KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
                    AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
                    BillingMode="PAY_PER_REQUEST",
                )
            except FAILURES as error:
                if code_of(error) != "ResourceInUseException":
                    raise
            try:
                self._client.get_waiter("table_exists").wait(
                    TableName=self._table, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
                )
            except WaiterError as error:
                raise TransientError(
                    f"the table {self._table} with Outfall's records is not ready", why=str(error), do="try again later"
                ) from error
