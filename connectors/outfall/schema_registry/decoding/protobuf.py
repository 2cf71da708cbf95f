"""Protobuf as columns, by the message of the reader.

Fields are known by number: what a message lacks, and what the reader's schema lacks, is as Protobuf has it. The types
are those of Spark's `from_protobuf`, except that unsigned numbers have room in theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from outfall.errors import ConfigurationError
from outfall.schema_registry.decoding.by_value import UnreadableTypeError, ValueMismatchError, by_value
from outfall.schema_registry.protobuf_schema import (
    DURATION,
    TIMESTAMP,
    WRAPPERS,
    ProtoFile,
    compiled,
    is_map,
    message_class,
)
from outfall.schema_registry.schemas import WholeSchema
from outfall.schema_registry.wire import message_indexes

Read = Callable[[Any], Any]

_JSON = {"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"}
"""Messages that contain themselves, and are JSON."""
_FIRST_SECOND, _LAST_SECOND = -62135596800, 253402300799
"""Years 1 to 9999, the range of a Timestamp."""


@dataclass(frozen=True)
class _Part:
    """How a value of Protobuf becomes one of a column."""

    type: pa.DataType
    read: Read


class ProtobufReader:
    """What a reader's message has for columns. Use `protobuf_reader`, which keeps them."""

    def __init__(self, reader: WholeSchema, message: str | None) -> None:
        """Compile the schema. Raises `ConfigurationError` or `UnreadableTypeError` if it has no columns."""
        self.descriptor = compiled(reader).message(message)
        self.message = message_class(self.descriptor)
        part = _message(self.descriptor, "", ())
        self.type, self.read = part.type, part.read


@lru_cache(1000)
def protobuf_reader(reader: WholeSchema, message: str | None) -> ProtobufReader:
    """Return the reader of a message, which the process keeps. Raises as `ProtobufReader`."""
    return ProtobufReader(reader, message)


class ProtobufDecoder:
    """Decodes the values of one writer's schema. Use `protobuf_decoder`, which keeps them."""

    def __init__(self, file: ProtoFile, reader: ProtobufReader) -> None:
        """Compare the schemas. Raises `UnreadableTypeError` if no value can be read."""
        self._file, self._reader = file, reader
        self._name = reader.descriptor.full_name
        if self._name not in file.known:
            raise UnreadableTypeError(f"it has no message {self._name}, which is that of the reader")
        _check(file.message(self._name), reader.descriptor, "", set())
        self._indexes: set[tuple[int, ...]] = set()
        """Those of the reader's message. Others are not kept, since messages of others may have any."""

    def column(self, values: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return the column of messages after their indexes, and why some, by position, cannot be read."""
        kind = self._reader.type
        return by_value(values, start, self._decoded, lambda found: pa.array(found, kind), kind)

    def _decoded(self, value: bytes) -> Any:
        try:
            indexes, start = message_indexes(value)
        except ValueError as error:
            raise ValueMismatchError(str(error)) from None
        if indexes not in self._indexes:
            found = self._file.at(indexes)
            if self._name not in found:
                named = " or ".join(sorted(found)) or "none of the schema"
                raise ValueMismatchError(f"its message is {named}, and the reader's is {self._name}")
            self._indexes.add(indexes)
        try:
            message = self._reader.message.FromString(value[start:])
        except DecodeError as error:
            raise ValueMismatchError(f"it is no message of Protobuf: {error}") from error
        if not message.IsInitialized():
            raise ValueMismatchError(f"it lacks {', '.join(message.FindInitializationErrors()[:3])}")
        return self._reader.read(message)


@lru_cache(1000)
def protobuf_decoder(writer: WholeSchema, reader: ProtobufReader) -> ProtobufDecoder | str:
    """Return the decoder of a pair of schemas, which the process keeps, or why there is none."""
    try:
        return ProtobufDecoder(compiled(writer), reader)
    except (ConfigurationError, UnreadableTypeError) as error:
        return str(error)


def _message(descriptor: Any, path: str, inside: tuple[str, ...]) -> _Part:
    """Return how a message becomes a struct."""
    name = descriptor.full_name
    if name in inside:
        raise UnreadableTypeError(f"{path or 'the schema'} contains itself")
    if not descriptor.fields:
        raise UnreadableTypeError(f"{path or 'the schema'} is the message {name}, which has no fields")
    parts = {field.name: _field(field, _inner(path, field.name), (*inside, name)) for field in descriptor.fields}
    kind = pa.struct([pa.field(name, part.type) for name, part in parts.items()])
    reads = [(name, part.read) for name, part in parts.items()]
    closed = {field.number: _inner(path, field.name) for field in descriptor.fields if _is_closed(field)}

    def read(message: Any) -> Any:
        if closed:
            _refuse_unknown(message, closed)
        return {name: each(message) for name, each in reads}

    return _Part(kind, read)


def _is_closed(field: Any) -> bool:
    """Whether Protobuf takes a number that the field's enum lacks for an absent value."""
    enum = (field.message_type.fields_by_name["value"] if is_map(field) else field).enum_type
    return enum is not None and bool(enum.is_closed)


def _refuse_unknown(message: Any, closed: Mapping[int, str]) -> None:
    for each in UnknownFieldSet(message):
        if each.field_number in closed:
            raise ValueMismatchError(
                f"{closed[each.field_number]} has a number for which the reader's enum has no symbol"
            )


def _field(field: Any, path: str, inside: tuple[str, ...]) -> _Part:
    """Return how a field is read of its message."""
    name = field.name
    if is_map(field):
        key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        keys, items = _single(key, f"{path}.key", inside), _single(value, f"{path}.value", inside)

        def pairs(message: Any) -> Any:
            # Messages as values are made by access only.
            found = getattr(message, name)
            return [(keys.read(each), items.read(found[each])) for each in sorted(found)]

        return _Part(pa.map_(keys.type, items.type), pairs)
    part = _single(field, path, inside)
    read = part.read
    if field.is_repeated:
        return _Part(pa.list_(part.type), lambda message: [read(each) for each in getattr(message, name)])
    if field.has_presence and not field.has_default_value:
        return _Part(part.type, lambda message: read(getattr(message, name)) if message.HasField(name) else None)
    return _Part(part.type, lambda message: read(getattr(message, name)))


def _single(field: Any, path: str, inside: tuple[str, ...]) -> _Part:
    """Return how a value of a field becomes one of a column."""
    if field.message_type is not None:
        return _known(field.message_type, path, inside) or _message(field.message_type, path, inside)
    if field.enum_type is not None:
        # Of aliases the first one, as Java reads them.
        symbols = {each.number: each.name for each in reversed(field.enum_type.values)}
        return _Part(pa.string(), _reads_symbols(symbols, path))
    return _SCALARS[field.type]


def _known(descriptor: Any, path: str, inside: tuple[str, ...]) -> _Part | None:
    """Return how one of Protobuf's own messages is read that have a type of Spark."""
    name = descriptor.full_name
    if name == TIMESTAMP:
        return _Part(pa.timestamp("us", "UTC"), lambda found: _instant(found, path))
    if name == DURATION:
        return _Part(pa.duration("us"), lambda found: _duration(found, path))
    if name in WRAPPERS:
        inner = _SCALARS[descriptor.fields_by_name["value"].type].read
        return _Part(_SCALARS[descriptor.fields_by_name["value"].type].type, lambda found: inner(found.value))
    if name in _JSON:
        return _Part(pa.string(), lambda found: json_format.MessageToJson(found, indent=None, ensure_ascii=False))
    return None


def _same(value: Any) -> Any:
    return value


_SCALARS: dict[int, _Part] = {
    FieldDescriptor.TYPE_BOOL: _Part(pa.bool_(), _same),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32),
        _Part(pa.int32(), _same),
    ),
    **dict.fromkeys(
        (
            FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64,
            FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32,
        ),
        _Part(pa.int64(), _same),
    ),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64), _Part(pa.decimal128(20, 0), Decimal)
    ),
    FieldDescriptor.TYPE_FLOAT: _Part(pa.float32(), _same),
    FieldDescriptor.TYPE_DOUBLE: _Part(pa.float64(), _same),
    FieldDescriptor.TYPE_STRING: _Part(pa.string(), _same),
    FieldDescriptor.TYPE_BYTES: _Part(pa.binary(), _same),
}  # fmt: skip


def _reads_symbols(symbols: dict[int, str], path: str) -> Read:
    def read(number: int) -> str:
        if number not in symbols:
            raise ValueMismatchError(f"{path} is {number}, for which the reader's enum has no symbol")
        return symbols[number]

    return read


def _instant(found: Any, path: str) -> int:
    if not (_FIRST_SECOND <= found.seconds <= _LAST_SECOND and 0 <= found.nanos < 10**9):
        raise ValueMismatchError(f"{path} is outside of the years 1 to 9999")
    return int(found.seconds * 10**6 + found.nanos // 1000)


def _duration(found: Any, path: str) -> int:
    nanos = found.seconds * 10**9 + found.nanos
    micros = abs(nanos) // 1000
    if micros >= 2**63:
        raise ValueMismatchError(f"{path} is longer than an interval")
    return int(micros if nanos >= 0 else -micros)


_WIDER = {
    FieldDescriptor.TYPE_INT64: {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32},
    FieldDescriptor.TYPE_UINT64: {FieldDescriptor.TYPE_UINT32},
    FieldDescriptor.TYPE_SINT64: {FieldDescriptor.TYPE_SINT32},
    FieldDescriptor.TYPE_STRING: {FieldDescriptor.TYPE_BYTES},
    FieldDescriptor.TYPE_BYTES: {FieldDescriptor.TYPE_STRING},
}
"""By a reader's type: the others of writers that it reads without another value."""


def _check(writer: Any, reader: Any, path: str, seen: set[tuple[str, str]]) -> None:
    """Raise `UnreadableTypeError` if a reader would take the fields of a writer for other ones."""
    if (writer.full_name, reader.full_name) in seen:
        return
    seen.add((writer.full_name, reader.full_name))
    for choice in reader.oneofs:
        fields = [writer.fields_by_number.get(each.number) for each in choice.fields]
        if len({(each.containing_oneof or each).full_name for each in fields if each is not None}) > 1:
            raise UnreadableTypeError(
                f"{_inner(path, choice.name)} is a oneof of the reader's schema, and was written as several fields"
            )
    for field in reader.fields:
        where, written = _inner(path, field.name), writer.fields_by_number.get(field.number)
        named = writer.fields_by_name.get(field.name)
        if named is not None and named.number != field.number:
            raise UnreadableTypeError(
                f"{where} was written with the number {named.number}, and the reader's schema has {field.number}"
            )
        if written is None:
            if field.is_required:
                raise UnreadableTypeError(f"it was written without {where}, which is required")
            continue
        if written.is_repeated != field.is_repeated or is_map(written) != is_map(field):
            raise UnreadableTypeError(f"{where} is repeated or a map in one of the schemas only")
        if written.type != field.type and written.type not in _WIDER.get(field.type, ()):
            raise UnreadableTypeError(f"{where} was written as another type than that of the reader's schema")
        for symbol in field.enum_type.values if field.enum_type is not None else ():
            same = written.enum_type.values_by_name.get(symbol.name)
            if same is not None and same.number != symbol.number:
                raise UnreadableTypeError(
                    f"{where}: {symbol.name} was written as {same.number}, and the reader's enum has {symbol.number}"
                )
        if field.message_type is not None:
            names = {written.message_type.full_name, field.message_type.full_name}
            if len(names) > 1 and any(name.startswith("google.protobuf.") for name in names):
                raise UnreadableTypeError(f"{where} is {' and '.join(sorted(names))} in the schemas")
            _check(written.message_type, field.message_type, where, seen)


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
