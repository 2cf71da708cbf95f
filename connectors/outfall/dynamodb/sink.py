"""`DynamoDBSink`: rows as items of a DynamoDB table."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa
from botocore.exceptions import ClientError

from outfall.async_sink import AimdLimiter, ErrorAction, Limiter, RefusedEntry, RequestOutcome
from outfall.aws.client import AwsClients
from outfall.aws.errors import FAILURES, classify, code_of
from outfall.capabilities import Guarantee, TargetContext
from outfall.dynamodb.attributes import Attribute, Item, check_types, items_of, size_of
from outfall.dynamodb.options import DynamoDBOptions, DynamoDBSettings
from outfall.dynamodb.table import DynamoDBRecords, DynamoDBTable, describe
from outfall.errors import ConfigurationError, OutfallError, ValueRefusedError
from outfall.location import masked
from outfall.options import make_options, names_arguments
from outfall.versioned import Answer, KeyedRow, Version, VersionedPartition, VersionedSink
from outfall.wrappers import WithDeadLetters

_log = logging.getLogger("outfall.dynamodb")


class DynamoDBSink(WithDeadLetters):
    """Upserts and deletes rows as items of a DynamoDB table, by the keys of the table.

    Item type: rows (dicts or Arrow batches). An item replaces the whole item with its key.

    What must exist: the table, and permission for its items, for `DescribeTable` and for the table with the records of
    steps, for boto3's credentials on driver and executors.

    Unit of parallelism: each Spark task, with up to `max_in_flight_requests` threads.

    Guarantee: effectively once: the final state is that of one run. At least once with `versions=False`, or with
    `deletes="remove"`.

    Args:
        table: its name or ARN. See `DynamoDBOptions` for it and for the other arguments.
        dead_letter: a sink for rejected rows; see `outfall.wrappers.DeadLetteringSink`. Python API only.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: `dead_letter` cannot take the rejected rows.
    """

    @names_arguments
    def __init__(self, table: str, *, dead_letter: Any = None, **settings: Unpack[DynamoDBSettings]) -> None:
        sink = DynamoDBRequestSink(make_options(DynamoDBOptions, {"table": table} | settings))
        super().__init__(sink, dead_letter)


class DynamoDBRequestSink(AwsClients, VersionedSink):
    """Creates the partitions of a `DynamoDBSink`."""

    shown_as = "DynamoDBSink"
    service = "dynamodb"
    _table: DynamoDBTable | None = None
    """Known once the table was described. Not pickled: a task describes it again."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_table": None}

    def __repr__(self) -> str:
        return f"DynamoDBSink({self.options.table!r})"

    def kind(self) -> str:
        return "dynamodb"

    def target(self) -> str:
        place = self.options.region or masked(self.options.endpoint_url or "")
        return f"dynamodb:{place}/{self.options.table}" if place else f"dynamodb:{self.options.table}"

    def host(self) -> str:
        return f"{masked(self.options.endpoint_url or '')}/{self.target()}"

    def limiter(self) -> Limiter:
        # Proportional, because the partitions of a table are throttled independently.
        return AimdLimiter(self.options.max_batch_size * self.options.max_in_flight_requests, proportional=True)

    def guarantee(self) -> Guarantee:
        kept = self.options.deletes == "tombstone"
        return super().guarantee() if kept else Guarantee.AT_LEAST_ONCE

    def requires(self) -> Sequence[str]:
        more = [] if self.options.ttl is None else ["no task that is suspended for longer than ttl and then writes"]
        found = super().requires() if self.options.deletes == "tombstone" else ()
        return (*found, *more) if found else ()

    def table(self) -> DynamoDBTable:
        """Describe the table, once per sink. Raises `TargetError` or `TransientError`."""
        if self._table is None:
            client = self.client()
            try:
                self._table = describe(client, self.options.table)
            except OutfallError as error:
                self.renew(client, error.__cause__)
                raise
        return self._table

    def key_columns(self) -> Sequence[str]:
        return list(self.table().keys)

    def records(self) -> DynamoDBRecords:
        options: DynamoDBOptions = self.options
        return DynamoDBRecords(self.client(), options.records_table or f"{options.table}-outfall", options.table)

    def check_schema(self, schema: pa.Schema) -> None:
        super().check_schema(schema)
        options: DynamoDBOptions = self.options
        check_types(schema, options.set_columns)
        table = self.table()
        for name, kind in table.keys.items():
            if not _fits(schema.field(name).type, kind):
                raise ConfigurationError(
                    f"the key {name!r} of the table is of type {kind}, and the column is {schema.field(name).type}",
                    do="cast the column: S is a string, N a number, B binary",
                )
        for name in (options.version_attribute, f"{options.version_attribute}_deleted"):
            if name in schema.names:
                raise ConfigurationError(
                    f"the rows have a column {name!r}, which is the name of an attribute of the versions",
                    do="set version_attribute to another name, the same in all sinks that write to the table",
                )
        if options.ttl is not None and table.ttl in (None, *schema.names):
            raise ConfigurationError(
                f"ttl needs the TTL attribute of the table, which is {'off' if table.ttl is None else 'a column'}",
                do="enable TTL on the table; or omit ttl and write the column",
            )

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        if context.starting:
            for finding in self._findings():
                _log.warning("%s: %s", self.target(), finding)
        return super().check_target(context)

    def check_connection(self) -> Sequence[str]:
        table = self.table()
        keys = ", ".join(f"{name} ({kind})" for name, kind in table.keys.items())
        untried = "permission for PutItem was not tested: a test item would stay"
        return [f"the table {self.options.table} is {table.status}; keys: {keys}", *self._findings(), untried]

    def open(self) -> DynamoDBPartition:
        return DynamoDBPartition(self)

    def _findings(self) -> list[str]:
        """Return what weakens the guarantee or leaves items behind."""
        options, table, found = self.options, self.table(), []
        if options.versions and table.regions:
            found.append("it has replicas in other regions: versions are compared within one region only, so all"
                         " writers must use the same one")  # fmt: skip
        if options.versions and options.delete_marker and options.deletes == "tombstone" and table.ttl is None:
            found.append("TTL is off or unknown, so tombstones of deleted items are never removed")
        if options.versions and options.deletes == "remove":
            found.append(
                "the guarantee is AT_LEAST_ONCE: a removed item has no version, and a late write may bring it back"
            )
        return found


class DynamoDBPartition(VersionedPartition):
    """Writes rows, each on condition of its version, or in batches without versions."""

    sink: DynamoDBRequestSink

    classify = staticmethod(classify)

    def __init__(self, sink: DynamoDBRequestSink) -> None:
        super().__init__(sink)
        self._keys = sink.table().keys
        self._ttl_attribute = sink.table().ttl

    def code_of(self, error: Exception) -> str:
        return code_of(error) or super().code_of(error)

    def writes(self, batch: pa.RecordBatch) -> Sequence[tuple[Any, Any, int]]:
        items = items_of(batch, self.options.set_columns)
        extra = 0 if self.version is None else len(self.options.version_attribute) + 100
        found = []
        for item in items:
            key = {name: item[name] for name in self._keys}
            for name, value in key.items():
                _check_key(name, value)
            found.append((key, item, size_of(item) + extra))
        return found

    def send(self, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        client = self.sink.client()
        try:
            return self._batch(client, entries) if self.version is None else self._conditional(client, entries)
        except FAILURES as error:
            self.sink.renew(client, error)
            raise

    def _batch(self, client: Any, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        table = self.options.table
        requests = [_request(entry, self._stored(entry)) for entry in entries]
        left = client.batch_write_item(RequestItems={table: requests})["UnprocessedItems"].get(table, [])
        retry = [entry for entry, request in zip(entries, requests, strict=True) if _is_in(request, left, self._keys)]
        return RequestOutcome(retry=retry, reason=f"{len(left)} items were not processed" if left else None)

    def _conditional(self, client: Any, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        answers: list[tuple[KeyedRow, Answer]] = []
        dead: list[RefusedEntry[KeyedRow]] = []
        retry: Sequence[KeyedRow] = ()
        reason = code = None
        for number, entry in enumerate(entries):
            try:
                answers.append((entry, self._write(client, entry)))
            except FAILURES as error:
                action = classify(error)
                if action is ErrorAction.FATAL:
                    return RequestOutcome(error=error)
                reason, code = f"{type(error).__name__}: {error}", self.code_of(error)
                if action is ErrorAction.RETRY:
                    self.sink.renew(client, error)
                    retry = entries[number:]
                    break
                dead.append(RefusedEntry(entry, str(error), code))
        failed = self.settle([entry for entry, _ in answers], [answer for _, answer in answers])
        if failed is not None:
            return RequestOutcome(error=failed)
        return RequestOutcome(retry=retry, dead=dead, reason=reason, code=code)

    def _write(self, client: Any, entry: KeyedRow) -> Answer:
        """Write one row if no row of this version or a higher one is stored; otherwise compare what is stored."""
        ours = self._version_text(entry)
        condition, value, answer = "attribute_not_exists(#v) OR #v < :v", ours[:_NUMBER], Answer.WRITTEN
        while True:
            try:
                self._put(client, entry, ours, condition, value)
                return answer
            except ClientError as error:
                if code_of(error) != "ConditionalCheckFailedException":
                    raise
                theirs = self._found(client, entry, error)
            if theirs is None or theirs[:_NUMBER] < ours[:_NUMBER]:
                # It has changed since: compare again.
                condition, value, answer = "attribute_not_exists(#v) OR #v < :v", ours[:_NUMBER], Answer.WRITTEN
                continue
            if theirs == ours:
                return Answer.SAME
            if theirs[:_RUN] != ours[:_RUN]:
                return Answer.STALE
            if theirs > ours:
                return Answer.OUTRANKED
            condition, value, answer = "#v = :v", theirs, Answer.REPLACED

    def _put(self, client: Any, entry: KeyedRow, version: str, condition: str, value: str) -> None:
        options = self.options
        common: dict[str, Any] = {
            "TableName": options.table,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#v": options.version_attribute},
            "ExpressionAttributeValues": {":v": {"S": value}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if entry.body is None and options.deletes == "remove":
            client.delete_item(Key=entry.key, **common)
            return
        item = self._stored(entry) or entry.key | {f"{options.version_attribute}_deleted": {"BOOL": True}}
        if entry.body is None and self._ttl_attribute:
            item |= {self._ttl_attribute: _in(options.tombstone_retention.total_seconds())}
        client.put_item(Item=item | {options.version_attribute: {"S": version}}, **common)

    def _found(self, client: Any, entry: KeyedRow, error: ClientError) -> str | None:
        """Return the stored version of a row: from the error, or where the service does not return it, by reading."""
        item: Any = error.response.get("Item")
        if item is None:
            read = client.get_item(TableName=self.options.table, Key=entry.key, ConsistentRead=True)
            item = read.get("Item")
        found = (item or {}).get(self.options.version_attribute)
        return None if found is None else str(found.get("S", ""))

    def _stored(self, entry: KeyedRow) -> Item | None:
        """Return the item of a row; `None` for a delete."""
        body: Item | None = entry.body
        if body is None or self.options.ttl is None or self._ttl_attribute is None:
            return body
        return body | {self._ttl_attribute: _in(self.options.ttl.total_seconds())}

    def _version_text(self, entry: KeyedRow) -> str:
        version = self.version or Version(0, "")
        return f"{version.number:0{_NUMBER}x}{version.token[:16]:0>16}{entry.rank.hex()}"


_NUMBER = 16
"""Length of the number in a version, in hexadecimal digits: a string, because all services compare strings alike."""
_RUN = 32
"""Length of number and token."""


def _in(seconds: float) -> Attribute:
    return {"N": str(int(time.time() + seconds))}


def _fits(column: pa.DataType, kind: str) -> bool:
    types = pa.types
    if kind == "N":
        return bool(types.is_integer(column) or types.is_decimal(column))
    if kind == "B":
        return bool(types.is_binary(column) or types.is_large_binary(column))
    return bool(types.is_string(column) or types.is_large_string(column) or types.is_temporal(column))


def _check_key(name: str, value: Attribute) -> None:
    if value in ({"S": ""}, {"B": b""}):
        raise ValueRefusedError(
            f"the key {name!r} of a row is empty", why="DynamoDB has no empty keys", do="remove such rows"
        )


def _request(entry: KeyedRow, item: Item | None) -> dict[str, Any]:
    return {"DeleteRequest": {"Key": entry.key}} if item is None else {"PutRequest": {"Item": item}}


def _is_in(request: dict[str, Any], left: Sequence[dict[str, Any]], keys: Mapping[str, str]) -> bool:
    """Return whether a request is among those that were not processed. A batch has no key twice."""

    def key(one: dict[str, Any]) -> Item:
        found: Item = one["PutRequest"]["Item"] if "PutRequest" in one else one["DeleteRequest"]["Key"]
        return {name: found[name] for name in keys}

    return any(key(request) == key(other) for other in left)
