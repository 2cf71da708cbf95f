"""The options of `PostgresSink`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from outfall.existing import OnExistingRows
from outfall.options import Names
from outfall.sql.parts.options import PartOptions
from outfall.tables.key_options import names_once

LONGEST = 63
"""Bytes of an identifier; PostgreSQL silently truncates longer ones."""


class PostgresOptions(PartOptions):
    """The options of `PostgresSink`, in its constructor and as Spark options."""

    dsn: SecretStr = Field(
        description="The connection: a URL `postgresql://user@host/database` or libpq's `key=value` pairs. Accepts"
        " `env:NAME` and `file:PATH`, resolved on the connecting host. User and password in a URL are percent-encoded."
        " Without `sslmode`, the server certificate is verified, except for local hosts and service files."
    )
    table: str | None = Field(
        default=None,
        min_length=1,
        description='The table: `name` or `schema.name`. Double quotes preserve case: `"My Schema"."T"`. Either this or'
        " `table_column`.",
    )
    offset_columns: Names = Field(
        default=(),
        description="The columns with the offsets of the source, for example Kafka's `topic, partition, offset`. With"
        " them, each task publishes its own rows, and the offsets identify duplicates (Python API only). They need a"
        " unique index; with `create_table` they become the primary key.",
    )
    delete_marker: str | None = Field(
        default=None,
        description="`upsert`: a boolean column that is not stored. If it is true, the row with this key is removed;"
        " with `conflict_where`, only if the predicate holds for the row.",
    )
    conflict_where: str | None = Field(
        default=None,
        description="`upsert`: the predicate of a partial unique index on the keys, as SQL. It is sent unchanged, so"
        " never build it from untrusted input.",
    )
    on_existing: OnExistingRows = Field(
        default="check",
        description="What to do if the table holds rows on the first run. `check`: keep them, but fail if this step"
        " wrote some under a lost checkpoint. `resume`: keep them. `error`: fail. `overwrite`: delete them in the"
        " transaction of the first epoch; with `offset_columns` or `parts` in a separate transaction before the first"
        " task.",
    )
    allow_unlogged: bool = Field(
        default=False,
        description="Whether the table and the dead-letter table may be unlogged, or have unlogged partitions, which a"
        " crash of the server empties. Their rows are then lost, so the sink no longer declares exactly once.",
    )

    _offsets_once = field_validator("offset_columns")(names_once)

    @field_validator("metadata_schema")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if len(value.encode()) > LONGEST:
            raise ValueError(f"is longer than {LONGEST} bytes, and the server would truncate it")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.conflict_where and self.write_mode != "upsert":
            raise ValueError("conflict_where is an option of write_mode upsert")
        return self

    @model_validator(mode="after")
    def _identified(self) -> Self:
        if self.offset_columns and self.parts is not None:
            raise ValueError("offset_columns and parts exclude each other: give one of them")
        if self.offset_columns and (self.key_columns or self.payload_column):
            raise ValueError("key_columns and payload_column cannot be used with offset_columns, which are the key")
        return self

    @property
    def _direct(self) -> str:
        return "offset_columns and parts"

    @property
    def by_epochs(self) -> bool:
        return not self.offset_columns and self.parts is None
