"""The values or keys of records with schemas of a registry: which schema, and the encoder for it.

The driver looks the schemas up before the first row, and tasks get them with the sink, so that an outage of the
registry stops no task. Only the schemas of topics that rows name themselves are looked up in tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError, ValueRefusedError, cause_and_remedy
from outfall.schema_registry.avro_schema import avro_of, avro_of_value
from outfall.schema_registry.client import NotRegisteredError, SchemaRegistry, registry_of
from outfall.schema_registry.encoding.avro import AvroEncoder, AvroKeyEncoder
from outfall.schema_registry.encoding.json_schema import (
    JsonSchemaEncoder,
    JsonSchemaKeyEncoder,
    json_schema_of,
    json_schema_of_value,
)
from outfall.schema_registry.encoding.protobuf import ProtobufEncoder, ProtobufKeyEncoder
from outfall.schema_registry.protobuf_schema import compiled, protobuf_of
from outfall.schema_registry.schemas import RegisteredSchema, Schema, SchemaKind
from outfall.schema_registry.subjects import KINDS, Role, SchemaSettings, record_name, subject

_OTHER_KIND: dict[SchemaKind, str] = {
    "AVRO": 'set {role}_format="avro", or select another schema with {role}_schema',
    "JSON": 'set {role}_format="json_schema", or select another schema with {role}_schema',
    "PROTOBUF": 'set {role}_format="protobuf", or select another schema with {role}_schema',
}
_MOST = 1000
"""Schemas that one writer keeps: one per topic."""
_TASKS_TRUST = 60.0
"""Seconds for which tasks of one process take what one of them has asked for: each task has a writer of its own."""
_ValueEncoder = AvroEncoder | JsonSchemaEncoder | ProtobufEncoder
_KeyEncoder = AvroKeyEncoder | JsonSchemaKeyEncoder | ProtobufKeyEncoder
_Encoder = _ValueEncoder | _KeyEncoder


@dataclass(frozen=True)
class _Found:
    registered: RegisteredSchema
    referenced: Mapping[str, Schema]


class SchemaWriter:
    """Encodes values or keys. Pickled with the schemas that it knows."""

    def __init__(self, settings: SchemaSettings) -> None:
        """Ask nothing yet."""
        self._settings = settings
        self._found: dict[str, _Found] = {}
        """By topic; by the empty text if topics do not matter."""
        self._encoders: dict[tuple[str, pa.Schema], _Encoder] = {}
        self._counts = {"registry_misses": 0, "registry_requests": 0}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoders": {}, "_counts": dict.fromkeys(self._counts, 0)}

    def counts(self) -> dict[str, int]:
        """Return the lookups that this process could not answer, and their requests, since the last call."""
        found, self._counts = self._counts, dict.fromkeys(self._counts, 0)
        return found

    @property
    def topics_matter(self) -> bool:
        """Whether records of different topics may have different schemas."""
        return self._settings.choice.id is None and self._settings.strategy != "record"

    def prepare(self, topic: str, columns: pa.Schema) -> None:
        """Look the schema of a topic up, or register it, and check the columns, of a key the only one.

        Called when a query starts, so that it takes the latest schema, and then keeps it.

        Raises `ConfigurationError` if they differ, or the registry refuses the schema or the credentials, and
        `TargetError` if there is none.
        """
        self._encoders.clear()
        self._found.pop(self._place(topic), None)
        self._found[self._place(topic)] = self._look_up(topic, columns, within=0.0)
        self._encoder(topic, columns)

    def encode(self, topic: str, batch: pa.RecordBatch, *, topic_of_row: bool = False) -> pa.Array:
        """Return a message for each row, of a key for each value of the only column, or NULL for none.

        Raises `ValueRefusedError` for a value that the schema does not allow, and with `topic_of_row`, which says that
        rows name the topic, if that has no schema.
        """
        try:
            found = self._encoder(topic, batch.schema)
        except NotRegisteredError as error:
            if not topic_of_row:
                raise
            raise ValueRefusedError(error.what, why=error.why, do=error.do) from error
        if isinstance(found, _KeyEncoder):
            return found.encode(batch.column(0))
        return found.encode(batch.select(found.schema.names))

    def _place(self, topic: str) -> str:
        return topic if self.topics_matter else ""

    def _encoder(self, topic: str, columns: pa.Schema) -> _Encoder:
        key = self._place(topic), columns
        if key not in self._encoders:
            if len(self._encoders) >= _MOST:
                self._encoders.clear()
            self._encoders[key] = self._made(topic, columns)
        return self._encoders[key]

    def _made(self, topic: str, columns: pa.Schema) -> _Encoder:
        place = self._place(topic)
        if place not in self._found:
            if len(self._found) >= _MOST:
                self._found.clear()
            self._found[place] = self._look_up(topic, columns, within=_TASKS_TRUST)
        found, settings = self._found[place], self._settings
        try:
            return _encoder(found, settings, columns)
        except ConfigurationError as error:
            what = f"the {settings.role} does not fit {self._named(found.registered)}"
            raise ConfigurationError.because_of(error, what) from error

    def _named(self, registered: RegisteredSchema) -> str:
        if registered.subject is None:
            return f"the schema with the id {registered.id}"
        version = "" if registered.version is None else f", version {registered.version}"
        return f"the schema of the subject {registered.subject}{version} (id {registered.id})"

    def _look_up(self, topic: str, columns: pa.Schema, *, within: float) -> _Found:
        registry = registry_of(self._settings.registry)
        before = registry.requests
        try:
            return self._looked_up(registry, topic, columns, within)
        finally:
            if registry.requests > before:
                self._counts["registry_misses"] += 1
                self._counts["registry_requests"] += registry.requests - before

    def _looked_up(self, registry: SchemaRegistry, topic: str, columns: pa.Schema, within: float) -> _Found:
        settings = self._settings
        if settings.register:
            found = registry.register(self._subject(topic), self._derived(registry, topic, columns), within=within)
        elif settings.choice.id is not None:
            found = registry.schema(settings.choice.id)
        else:
            found = self._version(registry, topic, within)
        if found.schema.kind != KINDS[settings.format]:
            raise ConfigurationError(
                f"{self._named(found)} is {found.schema.kind}, and {settings.role}_format is {settings.format}",
                do=_OTHER_KIND[found.schema.kind].format(role=settings.role),
            )
        return _Found(found, registry.referenced(found.schema, within=within))

    def _version(self, registry: SchemaRegistry, topic: str, within: float) -> RegisteredSchema:
        name = self._subject(topic)
        try:
            return registry.version(name, self._settings.choice.version, within=within)
        except NotRegisteredError as error:
            raise NotRegisteredError(
                f"there is no schema for the {self._settings.role} of the topic {topic or '*'}",
                why=cause_and_remedy(error)[0],
                do="register it or set register_schemas=True, or correct the topic or the version",
            ) from error

    def _subject(self, topic: str) -> str:
        return subject(self._settings.strategy, topic, self._settings.role, self._settings.record or "")

    def _derived(self, registry: SchemaRegistry, topic: str, columns: pa.Schema) -> Schema:
        settings = self._settings
        name = settings.record or record_name(topic, settings.role)
        if settings.format == "protobuf":
            kind = columns.field(0).type
            fields = list(kind) if settings.role == "key" and pa.types.is_struct(kind) else list(columns)
            return protobuf_of(fields, name, self._before(registry, topic, name))
        if settings.role == "key":
            of_value = avro_of_value if settings.format == "avro" else json_schema_of_value
            return of_value(columns.field(0), name)
        return (avro_of if settings.format == "avro" else json_schema_of)(columns, name)

    def _before(self, registry: SchemaRegistry, topic: str, name: str) -> Any:
        """Return the message of the subject's latest version, whose numbers a new version keeps; `None` for none."""
        try:
            latest = registry.version(self._subject(topic)).schema
        except NotRegisteredError:
            return None
        if latest.kind != "PROTOBUF":
            return None
        file = compiled(registry.whole(latest))
        return file.message(name) if name in file.known else None


def _encoder(found: _Found, settings: SchemaSettings, columns: pa.Schema) -> _Encoder:
    registered, optional = found.registered, settings.key_column
    if settings.format == "protobuf":
        message = settings.record
        if settings.role == "key":
            return ProtobufKeyEncoder(registered, found.referenced, columns.field(0), message=message)
        return ProtobufEncoder(registered, found.referenced, columns, message=message, optional=optional)
    if settings.format == "avro":
        if settings.role == "key":
            return AvroKeyEncoder(registered, found.referenced, columns.field(0))
        return AvroEncoder(registered, found.referenced, columns, optional=optional)
    if settings.role == "key":
        return JsonSchemaKeyEncoder(registered, columns.field(0))
    return JsonSchemaEncoder(registered, columns, optional=optional)


SchemaWriters = Mapping[Role, SchemaWriter]
"""By the part of a record."""
