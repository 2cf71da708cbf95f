"""A column of messages in Confluent's wire format: each by its writer's schema, for one reader's schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError
from outfall.schema_registry.client import NotRegisteredError, ReferencesError, registry_of
from outfall.schema_registry.decoding.avro import AvroText, avro_reader
from outfall.schema_registry.decoding.avro_columns import check_defaults, column_type
from outfall.schema_registry.decoding.by_value import Decoder, UnreadableTypeError
from outfall.schema_registry.decoding.json_schema import json_reader
from outfall.schema_registry.decoding.protobuf import protobuf_decoder, protobuf_reader
from outfall.schema_registry.options import SchemaRegistryOptions
from outfall.schema_registry.schemas import Schema, SchemaKind, WholeSchema
from outfall.schema_registry.wire import HEAD_SIZE, MAGIC

_MOST_TEXTS = 1000


@dataclass(frozen=True)
class ColumnReader:
    """Reads a column in a task, by a fixed reader's schema."""

    schema_registry: SchemaRegistryOptions
    reader: WholeSchema
    message: str | None
    """Of Protobuf: the full name; `None` for the first one of the schema."""
    type: pa.DataType = field(compare=False)
    """Of the column that is made."""

    def column(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the column of messages, and why some, by position, cannot be read: these are NULL, as NULL messages.

        Raises:
            ConfigurationError: The registry denies access.
            TransientError: The registry does not respond until its `retry_deadline`.
        """
        registry = registry_of(self.schema_registry)
        if (only := _only_id(values)) is not None:
            registry.look_up([only])
            return self._column_of(only, values.to_pylist())
        ids, errors = schema_ids(values)
        written = [int(each) for each in np.unique(ids) if each >= 0]
        registry.look_up(written)
        pieces, places = [pa.nulls(1, self.type)], np.zeros(len(values), np.int64)
        start = 1
        for schema_id in written:
            rows = np.flatnonzero(ids == schema_id)
            piece, wrong = self._column_of(schema_id, values.take(pa.array(rows)).to_pylist())
            errors |= {int(rows[index]): reason for index, reason in wrong.items()}
            places[rows] = np.arange(start, start + len(rows))
            start += len(rows)
            pieces.append(piece)
        return pa.concat_arrays(pieces).take(pa.array(places)), errors

    def _column_of(self, schema_id: int, values: list[bytes]) -> tuple[pa.Array, dict[int, str]]:
        """Read the messages of one writer's schema."""
        try:
            writer = _whole(self.schema_registry, registry_of(self.schema_registry).schema(schema_id).schema)
        except (NotRegisteredError, ReferencesError) as error:
            return self._unreadable(values, str(error))
        found = _decoder(writer, self.reader, self.message)
        if isinstance(found, str):
            return self._unreadable(values, f"the schema with the id {schema_id}: {found}")
        return found.column(values, HEAD_SIZE)

    def _unreadable(self, values: list[bytes], reason: str) -> tuple[pa.Array, dict[int, str]]:
        return pa.nulls(len(values), self.type), dict.fromkeys(range(len(values)), reason)


def column_reader(
    options: SchemaRegistryOptions,
    subject: str | None,
    version: int | None,
    schema: Schema | None,
    message: str | None = None,
) -> ColumnReader:
    """Return what tasks run, with the reader's schema of this moment: that of a subject, or the given one."""
    if schema is None:
        found = registry_of(options).version(subject or "", version)
        name, reader = f"version {found.version} of the subject {subject}", _whole(options, found.schema)
    else:
        name, reader = "the given schema", WholeSchema(schema)
    try:
        return ColumnReader(options, reader, message, _type(reader, message))
    except ConfigurationError as error:
        raise ConfigurationError.because_of(error, f"{name} cannot be the reader's schema") from error
    except UnreadableTypeError as error:
        raise ConfigurationError(
            f"{name} cannot be the reader's schema",
            why=str(error),
            do="pass schema= with the fields that have column types; the others are skipped",
        ) from error


def _type(reader: WholeSchema, message: str | None) -> pa.DataType:
    """Return the type of a reader's column. Raises `ConfigurationError` or `UnreadableTypeError` if it has none."""
    if reader.schema.kind == "PROTOBUF":
        return protobuf_reader(reader, message).type
    if message is not None:
        raise ConfigurationError("only Protobuf has messages by name", do="omit message=")
    if reader.schema.kind == "JSON":
        return json_reader(reader).type
    kind = _avro(reader).type()
    check_defaults(kind)
    return column_type(kind)


def _decoder(writer: WholeSchema, reader: WholeSchema, message: str | None) -> Decoder | str:
    """Return what decodes the values of a writer's schema, or why nothing does."""
    if writer.schema.kind != reader.schema.kind:
        return f"it is {_NAMES[writer.schema.kind]}, and the reader's schema is {_NAMES[reader.schema.kind]}"
    if reader.schema.kind == "PROTOBUF":
        return protobuf_decoder(writer, protobuf_reader(reader, message))
    return json_reader(reader) if reader.schema.kind == "JSON" else avro_reader(_avro(writer), _avro(reader))


_NAMES: dict[SchemaKind, str] = {"AVRO": "Avro", "JSON": "JSON Schema", "PROTOBUF": "Protobuf"}


def _only_id(values: pa.Array) -> int | None:
    """Return the id that all messages have, as those of most batches do; `None` if they differ or one has none."""
    first = values[0].as_py() if len(values) and not values.null_count else None
    if first is None or len(first) < HEAD_SIZE or first[0] != MAGIC:
        return None
    head = first[:HEAD_SIZE]
    same = pc.starts_with(values, head)
    return int.from_bytes(head[1:], "big") if pc.all(same).as_py() else None


def schema_ids(values: pa.Array) -> tuple[np.ndarray[Any, Any], dict[int, str]]:
    """Return the id of each message, -1 for NULL, and why others, by position, have none: these are -1 too."""
    wide = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    places: np.ndarray[Any, Any] = np.zeros(1, wide)
    if offsets is not None:
        places = np.frombuffer(offsets, wide)[values.offset : values.offset + len(values) + 1]
    starts, lengths = places[:-1], np.diff(places)
    present = values.is_valid().to_numpy(zero_copy_only=False)
    ids = np.full(len(values), -1, np.int64)
    rows = np.flatnonzero(present & (lengths >= HEAD_SIZE))
    if len(rows):
        heads = np.frombuffer(data, np.uint8)[starts[rows][:, None] + np.arange(HEAD_SIZE)]
        found = np.ascontiguousarray(heads[:, 1:]).view(">u4").reshape(-1).astype(np.int64)
        ids[rows] = np.where(heads[:, 0] == MAGIC, found, -1)
    return ids, {int(index): _unframed(int(lengths[index])) for index in np.flatnonzero(present & (ids < 0))}


def _unframed(length: int) -> str:
    found = f"it has {length} bytes" if length < HEAD_SIZE else "its first byte is not zero"
    return f"it is not in the registry's wire format: {found}"


@lru_cache(_MOST_TEXTS)
def _whole(options: SchemaRegistryOptions, schema: Schema) -> WholeSchema:
    """Return a schema with all that it refers to. The process keeps it."""
    return registry_of(options).whole(schema)


def _avro(whole: WholeSchema) -> AvroText:
    return AvroText(whole.schema.text, tuple(each.text for _, each in whole.referenced))
