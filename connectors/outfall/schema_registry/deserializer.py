"""How to read messages of a schema registry: which registry, and which reader's schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outfall.errors import ConfigurationError, require_extra
from outfall.first_contact import while_defined
from outfall.options import in_own_case
from outfall.schema_registry.options import SchemaRegistryOptions
from outfall.schema_registry.schemas import Schema
from outfall.schema_registry.subjects import KINDS, RegistryFormat

if TYPE_CHECKING:
    from outfall.schema_registry.column_reader import ColumnReader


@dataclass(frozen=True)
class RegistryDeserializer:
    """Reads values in Confluent's wire format, for `outfall.spark.deserialize`.

    The id in each message names the schema that it was written with. Tasks look it up in the registry, once per
    process, and resolve the value to one schema, the reader's, which is fixed when the query starts. Avro, JSON
    Schema and Protobuf.

    Args:
        schema_registry: The URL of the registry, or a mapping or a JSON object of its options: credentials, TLS, proxy.
        subject: The subject that has the reader's schema, usually the topic with `-value` or `-key`.
        version: A version of the subject. Default: the latest one when the query starts.
        schema: The reader's schema as text, instead of a subject.
        schema_format: What `schema` is. That of a subject is known to the registry.
        message: Of Protobuf: the full name of the reader's message. Default: the first one of the schema.

    Raises:
        ConfigurationError: The arguments do not fit together.
    """

    schema_registry: SchemaRegistryOptions
    subject: str | None
    version: int | None
    schema: str | None
    schema_format: RegistryFormat
    message: str | None

    def __init__(
        self,
        schema_registry: str | Mapping[str, Any] | SchemaRegistryOptions,
        *,
        subject: str | None = None,
        version: int | None = None,
        schema: str | None = None,
        schema_format: RegistryFormat = "avro",
        message: str | None = None,
    ) -> None:
        schema_format = in_own_case(schema_format, tuple(KINDS))
        if schema_format not in KINDS or (schema is None and schema_format != "avro"):
            raise ConfigurationError(
                f"schema_format is {schema_format!r}", do=f"with schema=, pass one of {', '.join(KINDS)}; else omit it"
            )
        if (subject is None) == (schema is None):
            raise ConfigurationError(
                "RegistryDeserializer needs the reader's schema, by its subject or as text",
                do="pass either subject= or schema=",
            )
        if schema is not None and not isinstance(schema, str):
            raise ConfigurationError(f"schema is a {type(schema).__name__}", do="pass text, such as json.dumps(schema)")
        if version is not None and (type(version) is not int or version < 1 or subject is None):
            raise ConfigurationError(
                f"version is {version!r}", do="pass an integer from 1, with subject=; omit it for the latest version"
            )
        object.__setattr__(self, "schema_registry", SchemaRegistryOptions.parse(schema_registry))
        object.__setattr__(self, "subject", subject)
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "schema_format", schema_format)
        object.__setattr__(self, "message", message)

    def open(self) -> ColumnReader:
        """Return what tasks run, with the reader's schema of this moment. Called once per query, on the driver.

        Raises:
            ConfigurationError: The registry denies access, its address is wrong, the schema is of another kind, or a
                type has no column type.
            TargetError: The registry does not have the subject or the version.
            TransientError: The registry does not respond for 20 seconds, or `retry_deadline` if that is shorter.
        """
        require_extra("kafka", "fastavro", "pyruhvro", "urllib3")
        from outfall.schema_registry.column_reader import column_reader

        with while_defined("the schema registry cannot be reached"):
            schema = None if self.schema is None else Schema(self.schema, KINDS[self.schema_format])
            return column_reader(self.schema_registry, self.subject, self.version, schema, self.message)
