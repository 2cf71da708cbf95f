"""The options of `PostgresSink`."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from outfall.capabilities import MAX_DEAD_LETTERS
from outfall.options import Duration, Limit, Names, SinkOptions
from outfall.postgres.names import GONE, LONGEST, MARKER, NUMBER, ROW, STAGE

_LONGEST_TIMEOUT = timedelta(milliseconds=2**31 - 1)
"""Of the server's settings: they count milliseconds in 32 bits."""


class PostgresOptions(SinkOptions):
    """What `PostgresSink` takes, in its constructor and as Spark options."""

    dsn: SecretStr = Field(
        description="The connection: a URL `postgresql://user@host/database` or libpq's `key=value` pairs. Accepts"
        " `env:NAME` and `file:PATH`, resolved where a connection is made. User and password in"
        " a URL are percent-encoded. Without `sslmode` the server's certificate is verified, unless the host is this"
        " one, or stands in a service file."
    )
    table: str = Field(
        min_length=1,
        description='The table: `name` or `schema.name`; a part in double quotes is taken as it is: `"My Schema"."T"`.',
    )
    delivery: Literal["epoch", "offset"] = Field(
        default="epoch",
        description="`epoch`: rows are staged, and an epoch is published as a whole. `offset`: each task publishes its"
        " rows by itself, under offsets that tell a second copy of them (`write_stream` and `write` only); with"
        " `offset_columns` or `parts`.",
    )
    offset_columns: Names = Field(
        default=(),
        description="`offset`: the columns that the source numbers its rows by, as `topic, partition, offset` of Kafka."
        " There must be a unique index on them; with `create_table` they are the primary key.",
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        description="`offset`: how many parts the rows are routed to by key; each numbers its rows from 0.",
    )
    offset_keys: Literal["columns", "ledger"] = Field(
        default="columns",
        description="`parts`: where a row's part and number stand: in columns of the table, or nowhere; the ledger"
        " counts them either way.",
    )
    part_column: str = Field(
        default="partition_id",
        min_length=1,
        description="`offset_keys=columns`: the column for the part: an integer from 0, or its text.",
    )
    part_offset_column: str = Field(
        default="offset",
        min_length=1,
        description="`offset_keys=columns`: the column for the row's number in its part.",
    )
    payload_column: str | None = Field(
        default=None,
        min_length=1,
        description="`parts`: a column of type json, jsonb or text that takes the whole row as one JSON object.",
    )
    write_mode: Literal["append", "upsert", "delete"] = Field(
        default="append",
        description="`append` inserts each row. `upsert` inserts it or updates the row with the same key. `delete`"
        " removes the rows with these keys.",
    )
    key_columns: Names = Field(
        default=(),
        description="`upsert`, `delete`: the columns that identify a row; for `upsert` there must be a unique index on"
        " them. With `create_table` the primary key.",
    )
    update_columns: Names = Field(
        default=(),
        description="`upsert`: which columns of an existing row are updated, beside `order_column`. Default: all but"
        " the keys.",
    )
    order_column: str | None = Field(
        default=None,
        description="`upsert`: of two rows with one key the one with the greater value here stays, within an epoch and"
        " against the table. Without it the row that was written last in the epoch replaces the table's.",
    )
    delete_marker: str | None = Field(
        default=None,
        description="`upsert`: a boolean column that is not written; where it is true, the row with this key is"
        " removed; with `conflict_where` only where that holds for it.",
    )
    conflict_constraint: str | None = Field(
        default=None,
        description="`upsert`: the name of the unique constraint to use, in place of `key_columns`' index.",
    )
    conflict_where: str | None = Field(
        default=None,
        description="`upsert`: the predicate of a partial unique index on the keys, as SQL. It is sent as it is: never"
        " make it of untrusted text.",
    )
    on_existing: Literal["check", "resume", "error", "overwrite"] = Field(
        default="check",
        description="What to do on first contact with a table that holds rows. `check`: keep them, but refuse them when"
        " the ledger says that this step wrote some, under a checkpoint that is gone. `resume`: keep them. `error`:"
        " refuse them. `overwrite`: delete them in the transaction that publishes the first epoch, be it empty; with"
        ' `delivery="offset"` in one of its own, before the first task runs.',
    )
    on_rewind: Literal["error"] = Field(
        default="error",
        description="What to do when the table is ahead of the recovery data. Rows of later epochs cannot be told from"
        " others in a table, so they are never taken back.",
    )
    dead_letter_table: str | None = Field(
        default=None,
        min_length=1,
        description="Where rows go that the table refuses, with the reason, in the transaction that writes the others."
        " Without it such a row fails the query.",
    )
    max_dead_letters: int = Field(
        default=MAX_DEAD_LETTERS,
        ge=1,
        description="`dead_letter_table`: how many rows of an epoch may go there; one more fails the query, so that a"
        " wrong schema does not divert an epoch in silence.",
    )
    create_table: Literal["never", "if_missing"] = Field(
        default="never", description="Whether a missing table is created, with the columns of the rows."
    )
    schema_evolution: Literal["fail", "add_columns"] = Field(
        default="fail", description="What to do with columns that the table does not have: refuse them, or add them."
    )
    metadata_schema: str = Field(
        default="outfall",
        min_length=1,
        description="The schema that holds the ledger and the staging tables. Made on first use.",
    )
    create_staging: Literal["if_missing", "never"] = Field(
        default="if_missing",
        description="Whether ledger, staging and the dead letter table are made, and staging kept in step with the"
        " table. `never` expects what `PostgresSink.ddl()` prints.",
    )
    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="How long connecting may take.")
    statement_timeout: Limit = Field(
        default=timedelta(minutes=10),
        description="How long one statement may take; publishing an epoch is one. 0: as long as it takes; then a server"
        " that falls silent is noticed by the network alone.",
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=5),
        description="For how long a transaction is tried again after errors that may pass: lost connections, deadlocks,"
        " a server that restarts.",
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
                f"is longer than {_LONGEST_TIMEOUT.days} days, the most that the server takes; 0 sets no limit"
            )
        return value

    @field_validator("metadata_schema")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if len(value.encode()) > LONGEST:
            raise ValueError(f"is longer than {LONGEST} bytes, and the server would cut it")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.write_mode != "append" and not self.key_columns:
            raise ValueError(f"write_mode {self.write_mode} needs key_columns")
        for name in ("update_columns", "order_column", "delete_marker", "conflict_constraint", "conflict_where"):
            if getattr(self, name) and self.write_mode != "upsert":
                raise ValueError(f"{name} is an option of write_mode upsert")
        if self.conflict_constraint and self.conflict_where:
            raise ValueError("conflict_constraint and conflict_where name two ways to find the index: give one")
        both = set(self.update_columns) & set(self.key_columns)
        if both:
            raise ValueError(f"update_columns holds the key {sorted(both)[0]!r}: a key is what finds the row")
        if self.delete_marker in self.key_columns:
            raise ValueError("delete_marker cannot be a key")
        if self.delete_marker and self.delete_marker in (self.order_column, *self.update_columns):
            raise ValueError("delete_marker is not written, so it can be neither order_column nor in update_columns")
        return self

    @model_validator(mode="after")
    def _deliverable(self) -> Self:
        if self.delivery == "epoch":
            if self.offset_columns or self.parts is not None or self.payload_column:
                raise ValueError('offset_columns, parts and payload_column are options of delivery="offset"')
            return self
        if bool(self.offset_columns) == (self.parts is not None):
            raise ValueError('delivery="offset" needs either offset_columns or parts')
        if self.dead_letter_table:
            raise ValueError('dead_letter_table needs delivery="epoch": the driver knows which attempt has won')
        if self.write_mode != "append":
            raise ValueError(f'write_mode {self.write_mode} needs delivery="epoch": offsets tell rows, not their keys')
        if self.offset_columns and (self.key_columns or self.payload_column):
            raise ValueError("key_columns and payload_column do not go with offset_columns, which are the key")
        return self

    def columns_named(self) -> list[str]:
        """Return the columns that every row must have, since an option names them."""
        ordered = [self.order_column, self.delete_marker]
        return [*self.key_columns, *self.update_columns, *(name for name in ordered if name is not None)]

    def staging_columns(self) -> list[tuple[str, str]]:
        """Return the columns that staging has beside the table's, before them: name and type."""
        columns = [(STAGE, "bigint")]
        if self.write_mode == "upsert":
            columns.append((ROW, "bigint"))
        if self.delete_marker is not None:
            columns.append((MARKER, "boolean"))
        return columns

    def reserved_columns(self) -> set[str]:
        """Return the names that no column of the rows or the table may have: staging's, and those of statements."""
        carried = (GONE, NUMBER) if self.write_mode == "upsert" else ()
        return {name for name, _ in self.staging_columns()}.union(carried)

    @property
    def statement_milliseconds(self) -> int:
        """`statement_timeout` as the server takes it: 0 for no limit."""
        return math.ceil(self.statement_timeout / timedelta(milliseconds=1))
