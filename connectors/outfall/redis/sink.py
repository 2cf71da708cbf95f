"""`RedisSink`: rows as hashes or strings in Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from outfall.async_sink import RequestOutcome
from outfall.capabilities import TargetContext
from outfall.errors import ConfigurationError, TargetError, ValueRefusedError
from outfall.formats import FormatOptions, check_schema
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.types import is_bytes
from outfall.options import make_options, names_arguments
from outfall.redis.client import RedisConnection, RedisRecords, classify, code_of, errors_of, pipelined, place, summary
from outfall.redis.options import KeyPattern, RedisOptions, RedisSettings
from outfall.redis.packing import Bodies, Packed, hashes, packed_rows, strings
from outfall.redis.preflight import forgets
from outfall.redis.script import ANSWERS, WRITE, Lives, call
from outfall.values import require_columns, spark_type
from outfall.versioned import KeyedBatch, KeyedRow, Outcomes, VersionedPartition, VersionedSink
from outfall.wrappers import WithDeadLetters
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

_log = logging.getLogger("outfall.redis")
_JSON = FormatOptions(format="jsonl")


class RedisSink(WithDeadLetters):
    """Upserts and deletes rows in Redis by key.

    Item type: rows (dicts or Arrow batches). A row replaces all that is stored under its key.

    What must exist: a Redis server or cluster from release 5 on, and a user who may run scripts (`EVAL`).

    Unit of parallelism: each Spark task, with up to `max_in_flight_requests` pipelines.

    Guarantee: effectively once: the final state is that of one run, if the server keeps acknowledged writes. At least
    once with `versions=False`.

    Args:
        url: the server. See `RedisOptions` for it and for the other arguments.
        key: the pattern of the keys, with columns in braces.
        dead_letter: a sink for rejected rows; see `outfall.wrappers.DeadLetteringSink`. Python API only.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: `dead_letter` cannot take the rejected rows.
    """

    @names_arguments
    def __init__(self, url: str, key: str, *, dead_letter: Any = None, **settings: Unpack[RedisSettings]) -> None:
        sink = RedisRequestSink(make_options(RedisOptions, {"url": url, "key": key} | settings))
        super().__init__(sink, dead_letter)


class RedisRequestSink(VersionedSink):
    """Creates the partitions of a `RedisSink`."""

    shown_as = "RedisSink"

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        self.pattern = KeyPattern(options.key)

    def __repr__(self) -> str:
        return f"RedisSink({self.options.url!r}, {self.options.key!r})"

    def kind(self) -> str:
        return "redis"

    def target(self) -> str:
        return f"redis:{place(self.options.url)} {self.options.key}"

    def without_address(self, target: str) -> str:
        return target.partition(" ")[2]

    def host(self) -> str:
        return place(self.options.url)

    def key_columns(self) -> Sequence[str]:
        return self.pattern.columns

    def access(self) -> RedisConnection:
        """Return how to reach the server."""
        return RedisConnection.of(self.options)

    def records(self) -> RedisRecords:
        return RedisRecords(self.access())

    def check_schema(self, schema: pa.Schema) -> None:
        super().check_schema(schema)
        options = self.options
        if options.layout != "value":
            stored = [field for field in schema if field.name != options.delete_marker]
            if options.layout == "json" or any(not is_bytes(field.type) for field in stored):
                check_schema(_JSON, pa.schema([f for f in stored if options.layout == "json" or not is_bytes(f.type)]))
            return
        require_columns(schema.names, {"value_column": options.value_column})
        kind = schema.field(options.value_column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_bytes(kind)):
            raise ConfigurationError(
                f"value_column is the column {options.value_column!r} of type {spark_type(kind)}",
                do="cast it to string or binary, or correct value_column",
            )

    def check_server(self, context: TargetContext[Any]) -> None:
        if context.starting:
            self._check_durable()

    def check_connection(self) -> Sequence[str]:
        with errors_of(self.access(), "the check of the connection") as client:
            client.ping()
            found, unread = self._forgets(client)
        kept = [] if found or unread else ["the server keeps acknowledged writes"]
        return ["the server answers", *kept, *found, *(f"not read: {setting}" for setting in unread)]

    def open(self) -> RedisPartition:
        return RedisPartition(self)

    def _forgets(self, client: Any) -> tuple[list[str], list[str]]:
        expiring = self.options.ttl is not None or self.options.delete_marker is not None
        return forgets(client, cluster=self.options.cluster, expiring=expiring, waiting=self.options.wait_replicas > 0)

    def _check_durable(self) -> None:
        """Explain why the server's settings break the guarantee. Raises `TargetError` with `require_durable`."""
        with errors_of(self.access(), "reading the settings") as client:
            found, unread = self._forgets(client)
        found += unread if self.options.require_durable else []
        if not found:
            return
        if self.options.require_durable:
            raise TargetError(
                f"{self.target()} may forget acknowledged writes",
                why="; ".join(found),
                do="set appendonly yes, appendfsync always and maxmemory-policy noeviction; or omit require_durable:"
                " then rows may be lost with the server's data",
            )
        _log.warning(
            "%s: the guarantee %s holds only until the server loses data: %s",
            self.target(), self.guarantee().name, "; ".join(found),
        )  # fmt: skip


class RedisPartition(VersionedPartition):
    """Writes rows in pipelines of calls of the script."""

    sink: RedisRequestSink

    classify = staticmethod(classify)

    def __init__(self, sink: RedisRequestSink) -> None:
        super().__init__(sink)
        options: RedisOptions = sink.options
        self._access = sink.access()
        ttl = 0 if options.ttl is None else max(1, round(options.ttl.total_seconds() * 1000))
        self._lives = Lives(ttl, round(options.tombstone_retention.total_seconds() * 1000))

    def code_of(self, error: Exception) -> str:
        return code_of(error)

    def writes(self, changes: KeyedBatch) -> tuple[Sequence[bytes], Sequence[Packed], Sequence[int]]:
        parts = {name: _part(changes.rows, name) for name in self.sink.pattern.columns}
        keys = self.sink.pattern.keys(parts, changes.rows.schema)
        packed = packed_rows(keys, self._bodies(changes), changes, versions=self.version is not None)
        return keys.to_pylist(), packed, [len(row.keys) + len(row.arguments) for row in packed]

    def send(self, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        access, outcomes = self._access, Outcomes()
        client = access.client()
        try:
            with access.password_masked():
                for node, calls in self._by_node(client, entries):
                    for rows, found in self._sent(node, calls):
                        self._take(rows, found, outcomes)
                        if isinstance(found, Exception) and code_of(found) in ("READONLY", "MOVED"):
                            access.renew(client)
        except (RedisError, RedisClusterException, OSError):
            # The address may lead to another server now.
            access.renew(client)
            raise
        return outcomes.result(self.resolve)

    def _by_node(self, client: Any, entries: Sequence[KeyedRow]) -> Iterator[tuple[Any, list[Sequence[KeyedRow]]]]:
        """Divide rows by the node of a cluster that has their slot, and by calls of the script."""
        if not self.options.cluster:
            yield client, [entries[first : first + _AT_ONCE] for first in range(0, len(entries), _AT_ONCE)]
            return
        slots: dict[int, list[KeyedRow]] = {}
        for entry in entries:
            slots.setdefault(client.keyslot(entry.key), []).append(entry)
        nodes: dict[Any, list[Sequence[KeyedRow]]] = {}
        for rows in slots.values():
            nodes.setdefault(client.get_node_from_key(rows[0].key), []).append(rows)
        for node, calls in nodes.items():
            yield client.get_redis_connection(node), calls

    def _sent(self, node: Any, calls: Sequence[Sequence[KeyedRow]]) -> list[tuple[Sequence[KeyedRow], Any]]:
        """Return the response or the error of each call, with its rows."""
        found = self._answers(node, calls)
        unknown = [rows for rows, answer in found if isinstance(answer, NoScriptError)]
        if not unknown:
            return found
        node.script_load(WRITE)
        known = [(rows, answer) for rows, answer in found if not isinstance(answer, NoScriptError)]
        return known + self._answers(node, unknown)

    def _answers(self, node: Any, calls: Sequence[Sequence[KeyedRow]]) -> list[tuple[Sequence[KeyedRow], Any]]:
        access = self._access
        sent = [call(rows, self.version, self._lives) for rows in calls]
        found = pipelined(node, sent + access.waiting())
        lacking = access.lacking(found.pop()) if access.wait_replicas else None
        if lacking is not None:
            # Sent again, they are the same: what counts is that replicas have them.
            found = [answer if isinstance(answer, Exception) else ResponseError(lacking) for answer in found]
        return list(zip(calls, found, strict=True))

    def _take(self, rows: Sequence[KeyedRow], found: Any, outcomes: Outcomes) -> None:
        if isinstance(found, Exception):
            outcomes.failed(rows, classify(found), summary(found), code_of(found), found)
            return
        for row, digit in zip(rows, found.decode(), strict=True):
            if digit != "0":
                outcomes.answered(row, ANSWERS[int(digit)])

    def _bodies(self, changes: KeyedBatch) -> Bodies:
        options: RedisOptions = self.options
        batch = changes.rows
        if options.layout == "json":
            return strings(JsonlEncoder(_JSON, batch.schema).objects(batch).cast(pa.large_binary()))
        if options.layout == "value":
            values = batch.column(options.value_column)
            if values.null_count and options.delete_marker is None:
                raise ValueRefusedError(
                    f"the column {options.value_column!r} is NULL in a row",
                    do="remove such rows, or set delete_marker to delete their keys",
                )
            return strings(pc.fill_null(values.cast(pa.large_binary()), b""))
        return hashes(batch.schema.names, [_texts(batch, name) for name in batch.schema.names])


_AT_ONCE = 50
"""Rows per call of the script: many, to save time, and few, because the server does nothing else meanwhile."""


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the values of a column as bytes: strings and binary as they are, others as in JSON without quotes."""
    column = batch.column(name)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_bytes(kind):
        return column.cast(pa.large_binary())
    texts = JsonlEncoder(_JSON, pa.schema([])).values(column, name)
    if not pa.types.is_nested(kind):
        texts = pc.utf8_trim(texts, '"')
    return texts.cast(pa.large_binary())


def _part(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the parts of keys. Raises `ValueRefusedError` if one is empty."""
    values = _texts(batch, name)
    if pc.any(pc.equal(pc.binary_length(values), 0)).as_py():
        raise ValueRefusedError("a part of the key is empty in a row", do="remove such rows, or replace the value")
    return values
