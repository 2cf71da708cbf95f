"""Converts rows to records: value, key, topic, partition, timestamp and headers, from Arrow by column.

Without `value_format` the columns are those of Spark's own Kafka sink ("Structured Streaming + Kafka Integration
Guide", Writing Data to Kafka), and in addition `timestamp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats import Encoder, FormatOptions, check_schema, encoder
from outfall.formats.strings import RefusedRowError, refuse_rows
from outfall.kafka.options import TOPIC, KafkaOptions
from outfall.values import require_columns, spark_type

if TYPE_CHECKING:
    from outfall.schema_registry.writing import SchemaWriter, SchemaWriters

VALUE, KEY, TOPIC_COLUMN, PARTITION, HEADERS, TIMESTAMP = "value", "key", "topic", "partition", "headers", "timestamp"
ANY_PARTITION = -1
"""RD_KAFKA_PARTITION_UA: the partitioner chooses."""

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class KafkaRecords:
    """The records of a batch, one sequence per field, in row order; `None` for a field that no row has."""

    topics: list[str] | str
    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    partitions: list[int] | None = None
    more: list[dict[str, Any]] | None = field(default=None)
    """Further keyword arguments of `Producer.produce`: `timestamp` (ms since the epoch) and `headers`."""
    size: int = 0
    """Total bytes of values and keys."""

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[str, bytes | None, bytes | None, int]]:
        """Yield topic, value, key and partition of each record: the first four arguments of `Producer.produce`."""
        topics = repeat(self.topics) if isinstance(self.topics, str) else iter(self.topics)
        keys = repeat(None) if self.keys is None else self.keys
        partitions = repeat(ANY_PARTITION) if self.partitions is None else self.partitions
        return zip(topics, self.values, keys, partitions, strict=False)


class KafkaRecordMaker:
    """Converts batches to records, by the columns of value, key and topic in the options."""

    def __init__(self, options: KafkaOptions, writers: SchemaWriters | None = None) -> None:
        """Without `writers` no part of a record has a schema of a registry."""
        self._options = options
        self._writers: SchemaWriters = writers or {}
        spark = options.value_format is None
        self._key = KEY if spark else options.key_column
        self._topic = (TOPIC_COLUMN if spark else options.topic_column) if options.topic is None else None
        self._spark = spark
        self._encoder: Encoder | None = None

    def check_schema(self, schema: pa.Schema) -> None:
        """Reject rows that cannot become records. Other columns are ignored, as in Spark.

        Raises `ConfigurationError` with the column, its type and the remedy.
        """
        if self._spark:
            self._check_shape(schema)
            return
        for option in ("key_column", "topic_column"):
            if (name := getattr(self._options, option)) is not None:
                if option == "key_column" and "key" in self._writers:
                    require_columns(schema.names, {option: name})
                else:
                    _check(schema, name, option, bytes_too=option == "key_column")
        value = self._value_schema(schema)
        self._prepare(schema, value)
        if "value" in self._writers:
            return
        if self._options.value_format == "text":
            if len(value) != 1:
                raise ConfigurationError(
                    f"value_format text requires one column besides key and topic, and there are {len(value)}:"
                    f" {', '.join(value.names)}",
                    do='select one string column, or set value_format="json"',
                )
            _check(value, value.names[0], "value_format text")
        else:
            check_schema(self._format(), value)

    def make(self, batch: pa.RecordBatch) -> KafkaRecords:
        """Return the batch's rows as records, in order.

        Raises `ValueRefusedError` for a row whose topic is NULL or invalid, whose partition or timestamp is invalid,
        with a header without a key, or with a value that the format does not support.
        """
        topics: list[str] | str = self._options.topic or ""
        if self._topic is not None:
            topics = self._topics(batch.column(self._topic), self._topic)
        values, size = self._values(batch, topics)
        keys = None
        if self._key is not None and self._key in batch.schema.names:
            column = self._keys(batch, self._key, topics)
            keys, size = column.to_pylist(), size + _size(column)
        partitions = _partitions(batch.column(PARTITION)) if self._has(batch, PARTITION) else None
        return KafkaRecords(topics, values, keys, partitions, self._more(batch), size)

    def counts(self) -> dict[str, int]:
        """Return what was asked of the schema registry since the last call; nothing without one."""
        found: dict[str, int] = {}
        for writer in self._writers.values():
            for name, count in writer.counts().items():
                found[name] = found.get(name, 0) + count
        return found

    def _prepare(self, schema: pa.Schema, value: pa.Schema) -> None:
        """Look the schemas up that do not depend on a row."""
        for role, writer in self._writers.items():
            if self._options.topic is not None or not writer.topics_matter:
                columns = value if role == "value" else pa.schema([schema.field(self._key or "")])
                writer.prepare(self._options.topic or "", columns)

    def _keys(self, batch: pa.RecordBatch, name: str, topics: list[str] | str) -> pa.Array:
        if "key" not in self._writers:
            return _binary(batch.column(name))
        return _encoded(self._writers["key"], batch.select([name]), topics)

    def _topics(self, column: pa.Array, name: str) -> list[str]:
        """Return the topic of each row: few distinct names, each converted to one string."""
        encoded = _binary(column).dictionary_encode()
        names = [raw.decode("ascii", "replace") for raw in encoded.dictionary.to_pylist()]
        valid = [bool(TOPIC.fullmatch(text)) for text in names]
        free = [not self._options.keeps_commits(text) for text in names]
        for good, what, do in (
            (valid, "NULL or not a valid topic name", "set the option topic"),
            (free, "a topic with Outfall's own records", "rename it"),
        ):
            if encoded.null_count or not all(good):
                refuse_rows(
                    pc.invert(pc.fill_null(pa.array(good, pa.bool_()).take(encoded.indices), False)),
                    f"column {name!r} is {what}",
                    "each record is written to the topic of its row",
                    f"remove such rows, or {do}",
                )
        return [names[index] for index in encoded.indices.to_pylist()]

    def _has(self, batch: pa.RecordBatch, column: str) -> bool:
        return self._spark and column in batch.schema.names

    def _values(self, batch: pa.RecordBatch, topics: list[str] | str) -> tuple[list[bytes | None], int]:
        if self._spark:
            return _bytes_of(batch.column(VALUE))
        names = self._value_schema(batch.schema).names
        rest = batch.select(names)
        if "value" in self._writers:
            return _bytes_of(_encoded(self._writers["value"], rest, topics))
        if self._options.value_format == "text":
            # Text values need no line end: the string may contain anything, and NULL is a tombstone.
            return _bytes_of(rest.column(0))
        if self._encoder is None or not self._encoder.schema.equals(rest.schema):
            self._encoder = encoder(self._format(), rest.schema)
        # JSON escapes line breaks and CSV rejects them, so each line break ends a record.
        data = self._encoder.encode(rest)
        values: list[bytes | None] = [*data.to_pybytes().split(b"\n")]
        values.pop()
        return values, data.size - len(values)

    def _more(self, batch: pa.RecordBatch) -> list[dict[str, Any]] | None:
        more: list[dict[str, Any]] | None = None
        if self._has(batch, TIMESTAMP):
            times = _timestamps(batch.column(TIMESTAMP))
            more = [{} if time is None else {TIMESTAMP: time} for time in times]
        if self._has(batch, HEADERS):
            more = more or [{} for _ in range(batch.num_rows)]
            for one, headers in zip(more, _headers(batch.column(HEADERS)), strict=True):
                if headers is not None:
                    one[HEADERS] = headers
        return more

    def _value_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a value."""
        text = self._options.value_format == "text"
        others = {self._options.topic_column, self._options.key_column if text else None}
        return pa.schema([column for column in schema if column.name not in others])

    def _format(self) -> FormatOptions:
        return FormatOptions(format="csv" if self._options.value_format == "csv" else "jsonl")

    def _check_shape(self, schema: pa.Schema) -> None:
        _check(schema, VALUE, "a record", bytes_too=True, instead=_INSTEAD)
        if self._topic is not None:
            instead = "set the option topic, or add a string column 'topic'"
            _check(schema, TOPIC_COLUMN, "a record without the option topic", instead=instead)
        types = pa.types
        for name, fits, wanted in (
            (KEY, _is_text_or_bytes, "a string or binary: cast it"),
            (TOPIC_COLUMN, _is_text, "a string: cast it"),
            (PARTITION, types.is_integer, "an integer: cast it to int"),
            (HEADERS, _is_headers, "array<struct<key:string,value:binary>>: convert it, or drop it"),
            (TIMESTAMP, _is_instant, "a timestamp with a time zone: cast it to timestamp, or drop it"),
        ):
            if name in schema.names:
                require_columns(schema.names, {"a record": name})
                if not fits(kind := schema.field(name).type):
                    raise ConfigurationError(f"the column {name!r} is {spark_type(kind)}", do=f"make it {wanted}")


_INSTEAD = (
    'rename a column, for example with selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"), or set'
    ' value_format="json"'
)


def _encoded(writer: SchemaWriter, batch: pa.RecordBatch, topics: list[str] | str) -> pa.Array:
    """Return the messages of rows, whose topics may have different schemas."""
    if isinstance(topics, str) or not writer.topics_matter:
        return writer.encode(topics if isinstance(topics, str) else "", batch)
    encoded = pa.array(topics, pa.string()).dictionary_encode()
    pieces, rows = [], []
    for number, topic in enumerate(encoded.dictionary.to_pylist()):
        of_topic = pc.indices_nonzero(pc.equal(encoded.indices, number))
        try:
            pieces.append(writer.encode(topic, batch.take(of_topic), topic_of_row=True))
        except RefusedRowError as error:
            raise error.in_row(of_topic[error.row].as_py()) from error
        rows.append(of_topic)
    return pa.concat_arrays(pieces).take(pc.array_sort_indices(pa.concat_arrays(rows)))


def _check(schema: pa.Schema, name: str, use: str, *, bytes_too: bool = False, instead: str = "") -> None:
    """Reject rows without a column, or with a column that is neither a string nor, if allowed, binary."""
    require_columns(schema.names, {use: name}, instead)
    kind = schema.field(name).type
    if not (_is_text_or_bytes(kind) if bytes_too else _is_text(kind)):
        wanted = "string or binary" if bytes_too else "string"
        raise ConfigurationError(
            f"{use} requires the column {name!r}, which is {spark_type(kind)}", do=f"cast it to {wanted}"
        )


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_text_or_bytes(kind: Any) -> bool:
    return _is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_instant(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_headers(kind: Any) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {child.name: child.type for child in kind.value_type}
    return list(fields) == [KEY, VALUE] and _is_text(fields[KEY]) and _is_text_or_bytes(fields[VALUE])


def _binary(column: pa.Array) -> pa.Array:
    """The bytes of strings or binary values, unchanged and not validated."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def _size(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _bytes_of(column: pa.Array) -> tuple[list[bytes | None], int]:
    column = _binary(column)
    return column.to_pylist(), _size(column)


def _partitions(column: pa.Array) -> list[int]:
    column = column.cast(pa.int64())
    refuse_rows(
        pc.fill_null(pc.or_(pc.less(column, 0), pc.greater(column, _MOST_PARTITION)), False),
        "column 'partition' is not a valid partition number",
        "partitions are numbered from 0",
        "remove such rows, or make it NULL: the key then determines the partition",
    )
    return column.fill_null(ANY_PARTITION).to_pylist()  # type: ignore[no-any-return]


_MOST_PARTITION = 2**31 - 1


def _timestamps(column: pa.Array) -> list[int | None]:
    """Milliseconds since the epoch. librdkafka interprets 0 as none, and brokers reject earlier timestamps."""
    millis = column.cast(pa.timestamp("ms", column.type.tz), safe=False).view(pa.int64())
    refuse_rows(
        pc.fill_null(pc.less(millis, 1), False),
        "column 'timestamp' is not after 1970-01-01",
        "the timestamp of a record is in milliseconds since then",
        "remove such rows, or make it NULL: the record then has the time of writing",
    )
    return millis.to_pylist()  # type: ignore[no-any-return]


def _headers(column: pa.Array) -> Iterator[Headers | None]:
    pairs = column.flatten()  # unlike `values` it respects a slice
    names, values = pairs.field(0), pairs.field(1)
    if names.null_count or pairs.null_count:
        raise ValueRefusedError(
            "column 'headers' contains a header without a key", do="remove such headers, or set a key"
        )  # fmt: skip
    try:
        flat = zip(names.to_pylist(), _binary(values).to_pylist(), strict=True)
    except UnicodeDecodeError as error:
        raise ValueRefusedError(
            "column 'headers' contains a header whose key is not UTF-8", do="remove such headers, or encode their keys"
        ) from error
    counts = pc.list_value_length(column).to_pylist()
    return (None if count is None else list(islice(flat, count)) for count in counts)
