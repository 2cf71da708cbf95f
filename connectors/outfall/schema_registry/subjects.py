"""How a writer encodes values or keys: names of subjects, and which of their schemas it takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from outfall.schema_registry.options import SchemaRegistryOptions
from outfall.schema_registry.schemas import SchemaKind

Role = Literal["value", "key"]
"""Which part of a record."""
ROLES: tuple[Role, ...] = ("value", "key")
RegistryFormat = Literal["avro", "json_schema", "protobuf"]
KINDS: dict[RegistryFormat, SchemaKind] = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}
"""By format: what a registry calls its schemas."""
SubjectStrategy = Literal["topic", "record", "topic_record"]
"""As the serializers of Confluent's clients name them: `TopicNameStrategy`, `RecordNameStrategy`,
`TopicRecordNameStrategy`."""

_CHOICE = re.compile(r"latest|(id:)?([1-9][0-9]{0,9})")


def subject(strategy: SubjectStrategy, topic: str, role: Role, record: str) -> str:
    """Return the subject of a schema. `record` is the full name of its record, which `topic` does not use."""
    if strategy == "topic":
        return f"{topic}-{role}"
    return record if strategy == "record" else f"{topic}-{record}"


@dataclass(frozen=True)
class SchemaChoice:
    """Which schema a writer takes: that of an id, a version of a subject, or its latest version."""

    id: int | None = None
    version: int | None = None

    @classmethod
    def parse(cls, text: str) -> SchemaChoice:
        """Parse `latest`, the number of a version, or `id:` and an id. Raises `ValueError` for anything else."""
        found = _CHOICE.fullmatch(text)
        if found is None:
            raise ValueError("must be latest, the number of a version, or an id such as id:17")
        if found[2] is None:
            return cls()
        return cls(id=int(found[2])) if found[1] else cls(version=int(found[2]))


def record_name(topic: str, role: Role) -> str:
    """Return the name of a record that is registered for a topic, unless the user sets one: letters as Avro allows."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", f"{topic}_{role}")
    return f"_{name}" if name[0].isdigit() else name


@dataclass(frozen=True)
class SchemaSettings:
    """How values or keys are encoded."""

    registry: SchemaRegistryOptions
    role: Role
    format: RegistryFormat
    choice: SchemaChoice = field(default_factory=SchemaChoice)
    register: bool = False
    strategy: SubjectStrategy = "topic"
    record: str | None = None
    """Full name of the record: a part of the subject, and the name of a schema that is registered.

    Of Protobuf also the message of a schema that has several.
    """
    key_column: str | None = None
    """The column of values that is left out where a schema has no such field."""
