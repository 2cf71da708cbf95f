"""`DynamoDBSink`: rows as items of a DynamoDB table."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Hashable, Sequence
from decimal import Decimal
from itertools import repeat
from typing import Any, Unpack

import pyarrow as pa
from botocore.exceptions import ClientError

from outfall.async_sink import ErrorAction, RequestOutcome
from outfall.async_sink.responses import unreadable
from outfall.aws.client import AwsPartition, AwsSink, as_json
from outfall.aws.errors import FAILURES, classify, code_of
from outfall.capabilities import TargetContext
from outfall.dynamodb.attributes import Attribute, Item, check_types, items_of, size_of
from outfall.dynamodb.options import DynamoDBConnection, DynamoDBOptions, DynamoDBSettings
from outfall.dynamodb.table import RECORD_KEYS, DynamoDBRecords, DynamoDBTable, describe
from outfall.errors import ConfigurationError, OutfallError, ValueRefusedError
from outfall.first_contact import one_attempt
from outfall.options import make_options, names_arguments
from outfall.versioned import Answer, KeyedBatch, KeyedRow, Outcomes, Version, VersionedPartition, VersionedSink
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


class DynamoDBRequestSink(AwsSink[KeyedRow], VersionedSink):
    """Creates the partitions of a `DynamoDBSink`."""

    shown_as = "DynamoDBSink"
    connection = DynamoDBConnection
    _table: DynamoDBTable | None = None
    """Known once the table was described. Not pickled: a task describes it again."""
    _schema: pa.Schema | None = None
    """The columns of the rows, once the driver knows them."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_table": None}

    def __repr__(self) -> str:
        return f"DynamoDBSink({self.options.table!r})"

    def name(self) -> str:
        return str(self.options.table)

    def without_address(self, target: str) -> str:
        return re.split("[/:]", target)[-1]

    def requires(self) -> Sequence[str]:
        found = super().requires()
        ends = found and self.options.ttl is not None
        return (*found, "no task that is suspended for longer than ttl and then writes") if ends else found

    def table(self) -> DynamoDBTable:
        """Describe the table, once per sink. Raises `TargetError`, or `TransientError` after `retry_deadline`."""
        if self._table is None:
            self._table = self.patiently("describing the table", self._described)
        return self._table

    def _described(self) -> DynamoDBTable:
        client = self.client()
        try:
            return describe(client, self.options.table)
        except OutfallError as error:
            self.renew(client, error.__cause__)
            raise

    def key_columns(self) -> Sequence[str]:
        return list(self.table().keys)

    def identifying(self) -> tuple[str, ...]:
        return ()  # the key of the table, which never changes

    def records(self) -> DynamoDBRecords:
        options: DynamoDBOptions = self.options
        return DynamoDBRecords(self.client(), options.records, options.table)

    def check_schema(self, schema: pa.Schema) -> None:
        """Reject columns that do not fit the table, which only `check_target` waits for."""
        with one_attempt():
            self._check_columns(schema)
        self._schema = schema

    def _check_columns(self, schema: pa.Schema) -> None:
        super().check_schema(schema)
        options: DynamoDBOptions = self.options
        check_types(schema, options.set_columns)
        table = self.table()
        if table.keys == RECORD_KEYS and options.table.endswith("-outfall"):
            raise ConfigurationError(
                f"the table {options.table} contains Outfall's own records", do="write to another table"
            )
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

    def check_server(self, context: TargetContext[Any]) -> None:
        if self._schema is not None:
            self._check_columns(self._schema)
        if context.starting:
            for finding in self._findings():
                _log.warning("%s: %s", self.target(), finding)

    def check_connection(self) -> Sequence[str]:
        self._table = table = self._described()
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


class DynamoDBPartition(AwsPartition[KeyedRow], VersionedPartition):
    """Writes rows, each on condition of its version, or in batches without versions."""

    sink: DynamoDBRequestSink

    def __init__(self, sink: DynamoDBRequestSink) -> None:
        super().__init__(sink)
        self._keys = sink.table().keys
        self._ttl_attribute = sink.table().ttl
        version = self.version or Version(0, "")
        self._ours = Version(version.number, f"{version.token[:16]:0>16}")
        """As the text in an item has it."""
        self._condition = self._on_condition(_OLDER, self._version_text("")[:_NUMBER])
        """Of a row without a sequence."""

    def writes(self, changes: KeyedBatch) -> tuple[Sequence[Hashable], Sequence[str], Sequence[int]]:
        items = items_of(changes.rows, self.options.set_columns)
        keys = [tuple(_key_part(item[name], name) for name in self._keys) for item in items]
        deleted = repeat(False) if changes.deleted is None else changes.deleted.to_pylist()
        found = list(map(self._encoded, items, changes.ranks.to_pylist(), deleted))
        # The text is longer than what DynamoDB counts.
        largest = self.options.max_record_size_in_bytes
        sizes = [
            len(text) if len(text) <= largest else size_of(item) + len(self.options.version_attribute) + _VERSION
            for text, item in zip(found, items, strict=True)
        ]
        return keys, found, sizes

    def send(self, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        outcomes = Outcomes()
        if self.version is None:
            self._batch(entries, outcomes)
        elif not (self.options.transactions and self._transaction(entries, outcomes)):
            self._one_by_one(entries, outcomes)
        return outcomes.result(self.resolve)

    def _batch(self, entries: Sequence[KeyedRow], outcomes: Outcomes) -> None:
        table, writes = self.options.table, ",".join([entry.write for entry in entries])
        body = f'{{"RequestItems":{{{json.dumps(table)}:[{writes}]}}}}'
        answer = self._call("batch_write_item", body, RequestItems={table: []})
        if "UnprocessedItems" not in answer:
            raise unreadable(f"the response to {len(entries)} writes", "it has no UnprocessedItems")
        left = [item for items in answer["UnprocessedItems"].values() for item in items]
        if left:
            items = [one["PutRequest"]["Item"] if "PutRequest" in one else one["DeleteRequest"]["Key"] for one in left]
            keys = {tuple(_key_part(item[name], name) for name in self._keys) for item in items}
            rows = [entry for entry in entries if entry.key in keys]
            if len(rows) != len(left):
                rows = list(entries)  # a key came back in another form: written again, the rows are the same
            outcomes.failed(rows, ErrorAction.RETRY, f"{len(left)} items were not processed")

    def _transaction(self, entries: Sequence[KeyedRow], outcomes: Outcomes) -> bool:
        """Write rows together if no condition fails. Returns whether nothing is left to do."""
        if len({entry.key for entry in entries}) < len(entries):
            return False  # a transaction must not contain a key twice
        writes = [f'{{"{"Delete" if _removes(entry) else "Put"}":{entry.write}}}' for entry in entries]
        try:
            self._call("transact_write_items", f'{{"TransactItems":[{",".join(writes)}]}}', TransactItems=[])
        except ClientError as error:
            if code_of(error) != "TransactionCanceledException":
                raise
            codes = {reason.get("Code") for reason in error.response.get("CancellationReasons", ())}
            passing = codes - {"None", _CONDITION}
            if not passing <= _PASSING:
                return False  # the row at fault is found one by one
            if passing:
                outcomes.failed(entries, ErrorAction.RETRY, str(error), min(passing))
            return bool(passing)
        return True

    def _one_by_one(self, entries: Sequence[KeyedRow], outcomes: Outcomes) -> None:
        for number, entry in enumerate(entries):
            try:
                outcomes.answered(entry, self._write(entry))
            except FAILURES as error:
                action, code = classify(error), self.code_of(error)
                rows = entries[number:] if action is ErrorAction.RETRY else [entry]
                outcomes.failed(rows, action, f"{type(error).__name__}: {error}", code, error)
                if action is not ErrorAction.DEAD_LETTER:
                    return

    def _write(self, entry: KeyedRow) -> Answer:
        """Write one row if no row of this version or a higher one is stored; otherwise compare what is stored."""
        body, answer = entry.write, Answer.WRITTEN
        method = "delete_item" if _removes(entry) else "put_item"
        while True:
            try:
                self._call(method, body, TableName=self.options.table)
                return answer
            except ClientError as error:
                if code_of(error) != _CONDITION:
                    raise
                theirs = self._found(entry, error)
            answer = Answer.WRITTEN if theirs is None else self._ours.answer(entry.rank, *_parsed(theirs))
            if answer is Answer.WRITTEN:
                body = entry.write  # it has changed since: compare again
            elif answer is Answer.REPLACED:
                body = entry.write.removesuffix(self._if_older(entry.rank)) + self._on_condition("#v = :v", str(theirs))
            else:
                return answer

    def _found(self, entry: KeyedRow, error: ClientError) -> str | None:
        """Return the stored version of a row: from the error, or where the service does not return it, by reading."""
        item: Any = error.response.get("Item")
        if item is None:
            written = json.loads(entry.write)
            item = written.get("Item") or written["Key"]
            key = {name: item[name] for name in self._keys}
            body = json.dumps({"TableName": self.options.table, "Key": key, "ConsistentRead": True})
            item = self._call("get_item", body, TableName=self.options.table).get("Item")
        found = (item or {}).get(self.options.version_attribute)
        return None if found is None else str(found.get("S", ""))

    def _call(self, method: str, body: str, **names: Any) -> Any:
        """Call the service. `names` are the parameters by which boto3 chooses the endpoint."""
        return self.sink.call(method, **names, **as_json(body))

    def _encoded(self, item: Item, rank: str, deleted: bool) -> str:
        """Return a row as a request contains it, as JSON."""
        options: DynamoDBOptions = self.options
        key = {name: item[name] for name in self._keys} if deleted else {}
        if self.version is None:
            kind, name, stored = (
                ("DeleteRequest", "Key", key) if deleted else ("PutRequest", "Item", self._living(item))
            )
            return f'{{"{kind}":{{"{name}":{_encode(stored)}}}}}'
        if deleted and options.deletes == "remove":
            return f'{{"Key":{_encode(key)}{self._if_older(rank)}'
        if deleted:
            stored = key | {f"{options.version_attribute}_deleted": {"BOOL": True}}
            if self._ttl_attribute is not None:
                stored[self._ttl_attribute] = _in(options.tombstone_retention.total_seconds())
        else:
            stored = self._living(item)
        stored[options.version_attribute] = {"S": self._version_text(rank)}
        return f'{{"Item":{_encode(stored)}{self._if_older(rank)}'

    def _if_older(self, rank: str) -> str:
        """Return the end of a write of a row: what is stored must be older."""
        # Rows with sequences have one version, so that one request compares their ranks.
        return self._on_condition(_OLDER, self._version_text(rank)) if self._by_sequence else self._condition

    def _on_condition(self, condition: str, value: str) -> str:
        """Return the end of a write: everything but the item or the key."""
        more = {
            "TableName": self.options.table,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#v": self.options.version_attribute},
            "ExpressionAttributeValues": {":v": {"S": value}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        return f",{json.dumps(more)[1:]}"

    def _living(self, item: Item) -> Item:
        """Return an item with the end of its life, if it has one."""
        if self.options.ttl is not None and self._ttl_attribute is not None:
            item[self._ttl_attribute] = _in(self.options.ttl.total_seconds())
        return item

    def _version_text(self, rank: str) -> str:
        return f"{self._ours.number:0{_NUMBER}x}{self._ours.token}{rank}"


_CONDITION = "ConditionalCheckFailedException"
_OLDER = "attribute_not_exists(#v) OR #v < :v"
_NUMBER = 16
"""Length of the number in a version, in hexadecimal digits: a string, because all services compare strings alike."""
_OURS = re.compile(f"[0-9a-f]{{{_NUMBER}}}")
_RUN = 32
"""Length of number and token."""
_VERSION = 100
"""Bytes of a version, or a little less."""
_PASSING = {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"}
"""Why a transaction was cancelled that may be sent again."""


def _parsed(text: str) -> tuple[Version, str]:
    """Return version and rank of the text in an item. What Outfall has not written counts as newer."""
    # As texts, other numbers have another order than as numbers, and the service compares texts.
    number = int(text[:_NUMBER], 16) if _OURS.match(text) else 1 << 64
    return Version(number, text[_NUMBER:_RUN]), text[_RUN:]


def _in(seconds: float) -> Attribute:
    return {"N": str(int(time.time() + seconds))}


def _fits(column: pa.DataType, kind: str) -> bool:
    types = pa.types
    if kind == "N":
        return bool(types.is_integer(column) or types.is_decimal(column))
    if kind == "B":
        return bool(types.is_binary(column) or types.is_large_binary(column))
    return bool(types.is_string(column) or types.is_large_string(column) or types.is_temporal(column))


def _key_part(value: Attribute, name: str) -> Any:
    """Return the value of a key, equal for what the service takes for equal. Raises `ValueRefusedError` if it is empty.

    The service returns a number in a form of its own: 1 for 1.00.
    """
    ((kind, part),) = value.items()
    if not part:
        raise ValueRefusedError(
            f"the key {name!r} of a row is empty", why="DynamoDB has no empty keys", do="remove such rows"
        )
    return Decimal(part) if kind == "N" else part


def _removes(entry: KeyedRow) -> bool:
    return bool(entry.write.startswith('{"Key"'))


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_base64).encode
