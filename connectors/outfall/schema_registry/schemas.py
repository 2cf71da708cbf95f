"""Schemas as a registry has them: values without behavior, which tasks get from the driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from outfall.errors import ConfigurationError

SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]


@dataclass(frozen=True)
class Reference:
    """A schema that another one uses by name."""

    name: str
    """How the other schema names it: in Avro the full name of a type, in Protobuf the path of an import."""
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """The text of a schema, and what it refers to."""

    text: str
    kind: SchemaKind = "AVRO"
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class WholeSchema:
    """A schema with all that it refers to, directly or indirectly, by name: it can be read without a registry."""

    schema: Schema
    referenced: tuple[tuple[str, Schema], ...] = ()
    """Each after those that it refers to itself."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema under its id, which a registry never gives to another one."""

    id: int
    schema: Schema
    subject: str | None = None
    """`None` if it was asked for by its id."""
    version: int | None = None


_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_field_name(name: str, path: str, of: str) -> None:
    """Raise `ConfigurationError` unless a derived schema can have a field with the name of a column.

    `path` is the column with those that it is in, and `of` what would have the field.
    """
    if not _FIELD.fullmatch(name):
        raise ConfigurationError(
            f"column {path!r} cannot be a field of {of}",
            why="names have letters of ASCII, digits and underscores, and begin with no digit",
            do="rename the column",
        )
