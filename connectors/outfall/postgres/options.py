"""The options of `PostgresSink`."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from outfall.capabilities import MAX_DEAD_LETTERS
from outfall.existing import OnExistingRows
from outfall.options import Duration, Limit, Names, SinkOptions
from outfall.postgres.names import GONE, LONGEST, MARKER, NUMBER, ROW, STAGE
from outfall.row_logging import LogRows, log_rows_field

_LONGEST_TIMEOUT = timedelta(milliseconds=2**31 - 1)
"""The longest timeout of the server, which counts milliseconds in 32 bits."""


class PostgresOptions(SinkOptions):
    """The options of `PostgresSink`, in its constructor and as Spark options."""

    former = {"delivery": "parts or offset_columns, which select it alone"}

    dsn: SecretStr = Field(
        description="The connection: a URL `postgresql://user@host/database` or libpq's `key=value` pairs. Accepts"
        " `env:NAME` and `file:PATH`, resolved on the connecting host. User and password in a URL are percent-encoded."
        " Without `sslmode`, the server certificate is verified, except for local hosts and service files."
    )
    table: str = Field(
        min_length=1,
        description='The table: `name` or `schema.name`. Double quotes preserve case: `"My Schema"."T"`.',
    )
    offset_columns: Names = Field(
        default=(),
        description="The columns with the offsets of the source, for example Kafka's `topic, partition, offset`. With"
        " them, each task publishes its own rows, and the offsets identify duplicates (Python API only). They need a"
        " unique index; with `create_table` they become the primary key.",
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        description="The number of parts to which rows are routed by key (Python API only). Each part numbers its rows"
        " from 0, and each task publishes its own rows, which these numbers identify. Without it, and without"
        " `offset_columns`, rows are staged, and each epoch is published in one transaction.",
    )
    offset_keys: Literal["columns", "ledger"] = Field(
        default="columns",
        description="`parts`: whether columns of the table store the part and the number of each row, or only the"
        " ledger counts the rows.",
    )
    part_column: str = Field(
        default="partition_id",
        min_length=1,
        description="`offset_keys=columns`: the column of the part, an integer from 0 or its string.",
    )
    part_offset_column: str = Field(
        default="offset",
        min_length=1,
        description="`offset_keys=columns`: the column of the row's number in its part.",
    )
    payload_column: str | None = Field(
        default=None,
        min_length=1,
        description="`parts`: a column of type json, jsonb or text that stores the whole row as one JSON object.",
    )
    write_mode: Literal["append", "upsert", "delete"] = Field(
        default="append",
        description="`append` inserts each row. `upsert` inserts a row or updates the one with the same key. `delete`"
        " removes rows by key.",
    )
    key_columns: Names = Field(
        default=(),
        description="`upsert`, `delete`: the columns that identify a row. `upsert` needs a unique index on them. With"
        " `create_table` they become the primary key.",
    )
    update_columns: Names = Field(
        default=(),
        description="`upsert`: the columns of an existing row to update, in addition to `order_column`. Default: all"
        " except the keys.",
    )
    order_column: str | None = Field(
        default=None,
        description="`upsert`: the column that decides between two rows of one key; the greater value wins, within an"
        " epoch and against the table; of equal values, the last row written. Without it, the last row written in the"
        " epoch replaces the table's row.",
    )
    delete_marker: str | None = Field(
        default=None,
        description="`upsert`: a boolean column that is not stored. If it is true, the row with this key is removed;"
        " with `conflict_where`, only if the predicate holds for the row.",
    )
    conflict_constraint: str | None = Field(
        default=None,
        description="`upsert`: the name of the unique constraint to use instead of the index on `key_columns`.",
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
    on_rewind: Literal["error"] = Field(
        default="error",
        description="What to do if the table is ahead of the recovery log. Rows of later epochs cannot be identified in"
        " a table, so they are never rolled back.",
    )
    dead_letter_table: str | None = Field(
        default=None,
        min_length=1,
        description="The table for rejected rows and the reasons, written in the transaction of the other rows. Without"
        " it, a rejected row fails the query.",
    )
    max_dead_letters: int = Field(
        default=MAX_DEAD_LETTERS,
        ge=1,
        description="`dead_letter_table`: the maximum number of dead letters per epoch. One more fails the query, so a"
        " wrong schema cannot silently divert an epoch.",
    )
    log_rows: LogRows = log_rows_field()
    create_table: Literal["never", "if_missing"] = Field(
        default="never", description="Whether to create a missing table with the columns of the rows."
    )
    schema_evolution: Literal["fail", "add_columns"] = Field(
        default="fail",
        description="What to do with columns that the table does not have: fail, or add them to the table. A new column"
        " must not differ only in case from another one.",
    )
    metadata_schema: str = Field(
        default="outfall",
        min_length=1,
        description="The schema of the ledger and the staging tables. It is created on first use.",
    )
    create_staging: Literal["if_missing", "never"] = Field(
        default="if_missing",
        description="Whether to create the ledger, the staging tables and the dead-letter table, and to adapt staging"
        " to the table. With `never`, run the output of `PostgresSink.ddl()` beforehand.",
    )
    connect_timeout: Duration = Field(
        default=timedelta(seconds=10), description="The timeout for establishing a connection."
    )
    statement_timeout: Limit = Field(
        default=timedelta(minutes=10),
        description="The timeout of one statement; publishing an epoch is one statement. With 0 there is no limit, and"
        " only the network detects a server that stops responding.",
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=5),
        description="How long a transaction is retried after transient errors: lost connections, deadlocks, server"
        " restarts.",
    )

    @field_validator("key_columns", "update_columns", "offset_columns")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in value if value.count(name) > 1]
        if twice:
            raise ValueError(f"names the column {twice[0]!r} twice")
        return value

    @field_validator("statement_timeout")
    @classmethod
    def _can_be_set(cls, value: timedelta) -> timedelta:
        if value > _LONGEST_TIMEOUT:
            raise ValueError(
                f"is longer than {_LONGEST_TIMEOUT.days} days, the limit of the server; 0 means no timeout"
            )
        return value

    @field_validator("metadata_schema")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if len(value.encode()) > LONGEST:
            raise ValueError(f"is longer than {LONGEST} bytes, and the server would truncate it")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.write_mode != "append" and not self.key_columns:
            raise ValueError(f"write_mode {self.write_mode} needs key_columns")
        for name in ("update_columns", "order_column", "delete_marker", "conflict_constraint", "conflict_where"):
            if getattr(self, name) and self.write_mode != "upsert":
                raise ValueError(f"{name} is an option of write_mode upsert")
        if self.conflict_constraint and self.conflict_where:
            raise ValueError("conflict_constraint and conflict_where both select the index: give only one")
        both = set(self.update_columns) & set(self.key_columns)
        if both:
            raise ValueError(f"update_columns contains the key {sorted(both)[0]!r}, and keys cannot be updated")
        if self.delete_marker in self.key_columns:
            raise ValueError("delete_marker cannot be a key")
        if self.delete_marker and self.delete_marker in (self.order_column, *self.update_columns):
            raise ValueError("delete_marker is not stored, so it cannot be order_column or in update_columns")
        return self

    @model_validator(mode="after")
    def _deliverable(self) -> Self:
        if self.by_epochs:
            if self.payload_column:
                raise ValueError("payload_column is an option of parts")
            return self
        if self.offset_columns and self.parts is not None:
            raise ValueError("offset_columns and parts exclude each other: give one of them")
        if self.dead_letter_table:
            raise ValueError(
                "dead_letter_table excludes offset_columns and parts: the driver must select the winning attempt"
            )
        if self.write_mode != "append":
            raise ValueError(
                f"write_mode {self.write_mode} excludes offset_columns and parts: offsets identify rows, not keys"
            )
        if self.offset_columns and (self.key_columns or self.payload_column):
            raise ValueError("key_columns and payload_column cannot be used with offset_columns, which are the key")
        return self

    @property
    def by_epochs(self) -> bool:
        """Whether the driver publishes whole epochs. Otherwise the tasks publish, and offsets identify duplicates."""
        return not self.offset_columns and self.parts is None

    def columns_named(self) -> list[str]:
        """Return the columns that every row must have because an option names them."""
        ordered = [self.order_column, self.delete_marker]
        return [*self.key_columns, *self.update_columns, *(name for name in ordered if name is not None)]

    def staging_columns(self) -> list[tuple[str, str]]:
        """Return the columns of staging that precede those of the table: name and type."""
        columns = [(STAGE, "bigint")]
        if self.write_mode == "upsert":
            columns.append((ROW, "bigint"))
        if self.delete_marker is not None:
            columns.append((MARKER, "boolean"))
        return columns

    def reserved_columns(self) -> set[str]:
        """Return the column names that neither rows nor table may have: those of staging and of statements."""
        carried = (GONE, NUMBER) if self.write_mode == "upsert" else ()
        return {name for name, _ in self.staging_columns()}.union(carried)

    @property
    def statement_milliseconds(self) -> int:
        """`statement_timeout` in the unit of the server; 0 means no limit."""
        return math.ceil(self.statement_timeout / timedelta(milliseconds=1))
