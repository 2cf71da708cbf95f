"""Protobuf with Apicurio: a derived schema is registered, grows, and its messages are read by the registry's text.

Confluent's client for Python cannot read them: it asks for descriptors, which Apicurio returns as damaged text.
"""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from outfall.schema_registry import RegistryDeserializer, SchemaRegistryOptions
from outfall.schema_registry.client import registry_of
from outfall.schema_registry.protobuf_schema import compiled, message_class
from outfall.schema_registry.subjects import SchemaSettings
from outfall.schema_registry.wire import HEAD_SIZE
from outfall.schema_registry.writing import SchemaWriter
from tests.peers.support.apicurio import apicurio

pytestmark = pytest.mark.long

PLACE = pa.struct([pa.field("code", pa.string()), pa.field("tags", pa.list_(pa.string()))])
COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")),
                     ("place", PLACE)])  # fmt: skip
ROW = {"id": 1, "name": None, "at": 1_000_001, "place": {"code": "JFK", "tags": ["a"]}}


def test_a_derived_schema_is_registered_and_grows() -> None:
    topic = f"t{uuid.uuid4().hex}"
    with apicurio() as url:
        options = SchemaRegistryOptions.parse(url)
        for columns, row in ((COLUMNS, ROW), (COLUMNS.insert(0, pa.field("seat", pa.string())), ROW | {"seat": "1A"})):
            writer = SchemaWriter(
                SchemaSettings(options, "value", "protobuf", register=True, record="com.example.Flight")
            )
            writer.prepare(topic, columns)
            writer.prepare(topic, columns)
            batch = pa.RecordBatch.from_pylist([row], schema=columns)
            messages = writer.encode(topic, batch)
            reader = RegistryDeserializer(url, subject=f"{topic}-value").open()
            column, errors = reader.column(messages.cast(pa.binary()))
            assert errors == {}
            assert pa.RecordBatch.from_struct_array(column).select(columns.names).to_pylist() == batch.to_pylist()
            latest = registry_of(options).version(f"{topic}-value")
            made = message_class(compiled(registry_of(options).whole(latest.schema)).message(None))
            found = made.FromString(messages[0].as_py()[HEAD_SIZE + 1 :])
            assert (found.id, found.place.code, found.at.nanos, found.HasField("name")) == (1, "JFK", 1000, False)
        assert latest.version == 2
        numbers = {field.name: field.number for field in made.DESCRIPTOR.fields}
        assert numbers == {"id": 1, "name": 2, "at": 3, "place": 4, "seat": 5}
