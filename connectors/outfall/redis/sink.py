"""`RedisSink`: rows as hashes or strings in Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from outfall.async_sink import ErrorAction, RefusedEntry, RequestOutcome
from outfall.capabilities import TargetContext
from outfall.errors import ConfigurationError, TargetError, ValueRefusedError
from outfall.formats import FormatOptions, check_schema
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.types import is_bytes
from outfall.options import make_options, names_arguments
from outfall.redis.client import RedisAccess, RedisRecords, classify, code_of, errors_of, place, told
from outfall.redis.options import KeyPattern, RedisOptions, RedisSettings
from outfall.redis.preflight import forgets
from outfall.redis.script import ANSWERS, PREFIX, SHA, WRITE, arguments, version_key
from outfall.versioned import Answer, KeyedRow, VersionedPartition, VersionedSink
from outfall.wrappers import WithDeadLetters
from redis.exceptions import NoScriptError, RedisError

_log = logging.getLogger("outfall.redis")
_JSON = FormatOptions(format="jsonl")


class RedisSink(WithDeadLetters):
    """Upserts and deletes rows in Redis by key.

    Item type: rows (dicts or Arrow batches). A row replaces all that is stored under its key.

    What must exist: a Redis server or cluster from release 5 on, and a user who may run scripts (`EVAL`).

    Unit of parallelism: each Spark task, with up to `max_in_flight_requests` pipelines.

    Guarantee: effectively once: the final state is that of one run, if the server keeps what it acknowledges. At least
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

    def host(self) -> str:
        return place(self.options.url)

    def key_columns(self) -> Sequence[str]:
        return self.pattern.columns

    def access(self) -> RedisAccess:
        """Return how to reach the server."""
        options = self.options
        return RedisAccess(
            options.url, options.cluster, options.username, options.password, options.ca_bundle,
            options.client_certificate, options.client_key, options.connect_timeout.total_seconds(),
            options.read_timeout.total_seconds(),
        )  # fmt: skip

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
        kind = schema.field(options.value_column).type if options.value_column in schema.names else None
        if kind is None or not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_bytes(kind)):
            raise ConfigurationError(
                f"value_column is {options.value_column!r}, and the rows have no such string or binary column",
                do="correct value_column, or cast the column",
            )

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        if context.starting:
            self._check_server()
        return super().check_target(context)

    def check_connection(self) -> Sequence[str]:
        with errors_of(self.access(), "the check of the connection") as client:
            client.ping()
            found, unread = self._forgets(client)
        kept = [] if found or unread else ["the server keeps what it acknowledges"]
        return ["the server answers", *kept, *found, *(f"not read: {setting}" for setting in unread)]

    def open(self) -> RedisPartition:
        return RedisPartition(self)

    def _forgets(self, client: Any) -> tuple[list[str], list[str]]:
        expiring = self.options.ttl is not None or self.options.delete_marker is not None
        return forgets(client, cluster=self.options.cluster, expiring=expiring)

    def _check_server(self) -> None:
        """Say why the server does not bear the guarantee. Raises `TargetError` with `require_durable`."""
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
    """Writes rows in pipelines."""

    sink: RedisRequestSink

    classify = staticmethod(classify)

    def __init__(self, sink: RedisRequestSink) -> None:
        super().__init__(sink)
        options: RedisOptions = sink.options
        self._ttl = 0 if options.ttl is None else max(1, round(options.ttl.total_seconds() * 1000))
        self._retention = round(options.tombstone_retention.total_seconds() * 1000)

    def code_of(self, error: Exception) -> str:
        return code_of(error)

    def writes(self, batch: pa.RecordBatch) -> Sequence[tuple[str, Any, int]]:
        texts = {name: [_text(value) for value in _texts(batch, name)] for name in self.sink.pattern.columns}
        keys = self.sink.pattern.keys(texts, batch.num_rows)
        for key in keys:
            _check_key(key)
        return [
            (key, body, len(key) + (sum(map(len, body)) if isinstance(body, list) else len(body)))
            for key, body in zip(keys, self._bodies(batch), strict=True)
        ]

    def send(self, entries: Sequence[KeyedRow]) -> RequestOutcome[KeyedRow]:
        client = self.sink.access().client()
        try:
            results = [each for node, some in self._by_node(client, entries) for each in self._sent(node, some)]
        except (RedisError, OSError):
            # The address may lead to another server now.
            self.sink.access().renew(client)
            raise
        failed = [(entry, found) for entry, found in results if isinstance(found, Exception)]
        if any(code_of(error) in ("READONLY", "MOVED") for _, error in failed):
            self.sink.access().renew(client)
        written = [(entry, found) for entry, found in results if isinstance(found, Answer)]
        error = self.settle(*zip(*written, strict=True)) if written else None
        return RequestOutcome(error=error) if error else _outcome(failed)

    def _by_node(self, client: Any, entries: Sequence[KeyedRow]) -> Iterator[tuple[Any, Sequence[KeyedRow]]]:
        """Divide rows by the node of a cluster that has their slot."""
        if not self.options.cluster:
            yield client, entries
            return
        nodes: dict[Any, list[KeyedRow]] = {}
        for entry in entries:
            nodes.setdefault(client.get_node_from_key(entry.key), []).append(entry)
        for node, some in nodes.items():
            yield client.get_redis_connection(node), some

    def _sent(self, node: Any, entries: Sequence[KeyedRow]) -> list[tuple[KeyedRow, Answer | Exception]]:
        results = self._pipeline(node, entries)
        unknown = [entry for entry, found in results if isinstance(found, NoScriptError)]
        if not unknown:
            return results
        node.script_load(WRITE)
        known = [(entry, found) for entry, found in results if not isinstance(found, NoScriptError)]
        return known + self._pipeline(node, unknown)

    def _pipeline(self, node: Any, entries: Sequence[KeyedRow]) -> list[tuple[KeyedRow, Answer | Exception]]:
        with node.pipeline(transaction=False) as pipeline:
            if self.version is not None:
                for entry in entries:
                    pipeline.execute_command(
                        "EVALSHA", SHA, 2, *arguments(entry, self.version, self._ttl, self._retention)
                    )
                found = pipeline.execute(raise_on_error=False)
                return [
                    (entry, answer if isinstance(answer, Exception) else ANSWERS[answer])
                    for entry, answer in zip(entries, found, strict=True)
                ]
            counts = [self._plain(pipeline, entry) for entry in entries]
            answers = iter(pipeline.execute(raise_on_error=False))
        return [
            (entry, _first_error([next(answers) for _ in range(n)])) for entry, n in zip(entries, counts, strict=True)
        ]

    def _plain(self, pipeline: Any, entry: KeyedRow) -> int:
        """Add the commands of a write without a version. Returns their number."""
        if entry.body is None:
            pipeline.delete(entry.key)
            return 1
        if not isinstance(entry.body, list):
            pipeline.set(entry.key, entry.body, px=self._ttl or None)
            return 1
        pipeline.delete(entry.key)
        pipeline.execute_command("HSET", entry.key, *entry.body)
        if self._ttl:
            pipeline.pexpire(entry.key, self._ttl)
        return 3 if self._ttl else 2

    def _bodies(self, batch: pa.RecordBatch) -> Sequence[Any]:
        options: RedisOptions = self.options
        if options.layout == "json":
            return bytes(JsonlEncoder(_JSON, batch.schema).encode(batch)).split(b"\n")[:-1]
        if options.layout == "value":
            values = batch.column(options.value_column)
            if values.null_count and options.delete_marker is None:
                raise ValueRefusedError(
                    f"the column {options.value_column!r} is NULL in a row",
                    do="remove such rows, or set delete_marker to delete their keys",
                )
            return values.cast(pa.binary()).fill_null(b"").to_pylist()  # type: ignore[no-any-return]
        columns = [(name.encode(), _texts(batch, name)) for name in batch.schema.names]
        rows: list[list[bytes | str]] = [[] for _ in range(batch.num_rows)]
        for name, values in columns:
            for row, value in zip(rows, values, strict=True):
                if value is not None:
                    row += (name, value)
        return rows


def _texts(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return the values of a column as bytes: strings and binary as they are, others as in JSON without quotes."""
    column = batch.column(name)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_bytes(kind):
        return column.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]
    texts = JsonlEncoder(_JSON, pa.schema([])).values(column, name)
    if not pa.types.is_nested(kind):
        texts = pc.utf8_trim(texts, '"')
    return texts.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _text(value: bytes | None) -> str:
    """Return a part of a key. Raises `ValueRefusedError` if it is empty or not UTF-8."""
    if not value:
        raise ValueRefusedError("a part of the key is empty in a row", do="remove such rows, or replace the value")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueRefusedError(
            "a part of the key is not UTF-8 in a row", do="encode it, for example with hex()"
        ) from error


def _check_key(key: str) -> None:
    if key.startswith((PREFIX, "outfall:record:")):
        raise ValueRefusedError(
            "the key of a row begins as the keys of Outfall's records do", do="use another pattern for the keys"
        )
    try:
        version_key(key)
    except ValueError as error:
        raise ValueRefusedError(
            "the key of a row has no place for its version", why=str(error), do="encode braces in the key columns"
        ) from error


def _first_error(found: Sequence[Any]) -> Answer | Exception:
    return next((each for each in found if isinstance(each, Exception)), Answer.WRITTEN)


def _outcome(failed: Sequence[tuple[KeyedRow, Exception]]) -> RequestOutcome[KeyedRow]:
    """Return what becomes of the rows whose command the server has rejected."""
    actions = [(entry, error, classify(error)) for entry, error in failed]
    fatal = [error for _, error, action in actions if action is ErrorAction.FATAL]
    if fatal:
        return RequestOutcome(error=fatal[0])
    retry = [(entry, error) for entry, error, action in actions if action is ErrorAction.RETRY]
    dead = [
        RefusedEntry(entry, told(error), code_of(error))
        for entry, error, action in actions
        if action is ErrorAction.DEAD_LETTER
    ]
    return RequestOutcome(
        retry=[entry for entry, _ in retry],
        dead=dead,
        reason=told(retry[0][1]) if retry else None,
        code=code_of(retry[0][1]) if retry else None,
    )
