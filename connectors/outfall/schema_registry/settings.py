"""How a writer encodes the values or keys of records, from the options of a sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outfall.schema_registry.options import SchemaRegistryOptions
from outfall.schema_registry.subjects import Role, SchemaChoice, SubjectStrategy

RegistryFormat = Literal["avro", "json_schema"]


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
    """Full name of the record: a part of the subject, and the name of a schema that is registered."""
    key_column: str | None = None
    """The column of values that is left out where a schema has no such field."""
