"""The options of the sinks of databases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from outfall.capabilities import MAX_DEAD_LETTERS
from outfall.existing import OnExistingRows
from outfall.options import Duration, Limit, Names, NamesByName, SinkOptions
from outfall.row_logging import LogRows, log_rows_field
from outfall.tables.allowed import check_routed, gets
from outfall.tables.key_options import check_keyed, names_once

STAGE = "_outfall_stage"
"""The column of staging with the attempt's number."""

ROW = "_outfall_row"
"""The column of staging that numbers the rows of an attempt, to find the last row of a key for upserts. Addresses are
not in write order, because a vacuum during a COPY frees earlier pages."""

MARKER = "_outfall_delete"
"""The column of staging with the delete marker, which the target does not have."""

OPERATION = "_outfall_operation"
"""The column of staging with the operation of a change, which the target does not have."""

TABLE = "_outfall_table"
"""The column of staging with the table of a row, as the row names it."""

SEQUENCE = "_outfall_sequence"
"""The column of tombstones with the sequence of the newest delete of a key."""

DELETED = "_outfall_deleted"
"""The column of tombstones with the server's time of the transaction that wrote them."""

REMOVED = "_outfall_gone"
"""A column within statements: whether a row of an upsert or a change is a removal."""

NUMBER = "_outfall_number"
"""A column within statements: the number of a row within its key, from the last row on."""

_LONGEST_TIMEOUT = timedelta(milliseconds=2**31 - 1)
"""The longest timeout of servers that count milliseconds in 32 bits."""


class SqlOptions(SinkOptions):
    """The options that the sinks of all databases share. Each database adds its connection, and what only it has."""

    table: str | None = Field(default=None, min_length=1, description="The table. Either this or `table_column`.")
    table_column: str | None = Field(
        default=None,
        min_length=1,
        description="The column with the table of each row, a string in the form of `table`. It is not stored.",
    )
    allowed_tables: Names = Field(
        default=(),
        description="`table_column`: the tables that rows may name. `*` stands for any characters of a name, such as"
        " `tenant_*`, but never for a schema. Required.",
    )
    unknown_columns: Literal["fail", "leave_out_null"] = Field(
        default="fail",
        description="`table_column`: what to do with columns of the rows that a table does not have. `fail`: reject"
        " the rows of this table. `leave_out_null`: leave such a column out where it is NULL, and reject rows with a"
        " value in it.",
    )
    table_keys: NamesByName = Field(
        default={},
        description="`table_column`: the key columns of tables, by an entry as in `allowed_tables`: a mapping such as"
        ' `{"orders": ["id", "line"]}`, or JSON. Default: `key_columns`.',
    )
    table_columns: NamesByName = Field(
        default={},
        description="`table_column`: the columns that tables get with `create_table` and `schema_evolution`, beside"
        " those that options name, by an entry as in `allowed_tables`: a mapping, or JSON. Others are left out."
        " Default: all of the rows.",
    )
    write_mode: Literal["append", "upsert", "delete", "changes"] = Field(
        default="append",
        description="`append` inserts each row. `upsert` inserts a row or updates the one with the same key. `delete`"
        " removes rows by key. `changes` applies inserts, updates and deletes, and the newest change of each key wins.",
    )
    key_columns: Names = Field(
        default=(),
        description="`upsert`, `delete`, `changes`: the columns that identify a row. `upsert` and `changes` need a"
        " unique index on them. With `create_table` they become the primary key. With `table_column` the default is the"
        " primary key of each table.",
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
        description="`upsert`: a boolean column that is not stored. If it is true, the row with this key is removed.",
    )
    operation_column: str | None = Field(
        default=None,
        min_length=1,
        description="`changes`: the column with the operation of each row, a string that is not stored: `c`, `r`, `u`,"
        " `i`, `insert`, `update` or `upsert` write the row, `d` or `delete` remove it, in upper or lower case.",
    )
    sequence_column: str | None = Field(
        default=None,
        min_length=1,
        description="`changes`: the column of the table that orders the changes of a key, such as Kafka's offset. The"
        " change with the greatest value wins, in whatever order they arrive. NULL is rejected.",
    )
    sequence_kind: Literal["value", "kafka"] = Field(
        default="value",
        description="`changes`: what orders the changes. `value`: any values. `kafka`: the sequences of"
        " `outfall.spark.debezium.changes`. A change that is older than one of its key from another partition is then"
        " rejected: partitions were added, and nothing orders the two.",
    )
    tombstone_retention: Limit = Field(
        default=timedelta(days=7),
        description="`changes`: how long the sequence of a deleted key is kept after its delete was written, by the"
        " clock of the server. An older change that arrives later than that inserts the row again. With 0 it is kept"
        " forever.",
    )
    on_existing: OnExistingRows = Field(
        default="check",
        description="What to do if the table holds rows on the first run. `check`: keep them, but fail if this step"
        " wrote some under a lost checkpoint. `resume`: keep them. `error`: fail. `overwrite`: delete them in the"
        " transaction of the first epoch.",
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
        " to the table. With `never`, run the output of the sink's `ddl()` beforehand.",
    )
    connect_timeout: Duration = Field(
        default=timedelta(seconds=10), description="The timeout for establishing a connection."
    )
    statement_timeout: Limit = Field(
        default=timedelta(minutes=10),
        description="The timeout of one statement; publishing an epoch takes one to four statements. With 0"
        " there is no limit, and only the network detects a server that stops responding.",
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=5),
        description="How long a transaction is retried after transient errors: lost connections, deadlocks, server"
        " restarts.",
    )

    _once = field_validator("key_columns", "update_columns", "allowed_tables")(names_once)

    @field_validator("statement_timeout")
    @classmethod
    def _can_be_set(cls, value: timedelta) -> timedelta:
        if value > _LONGEST_TIMEOUT:
            raise ValueError(
                f"is longer than {_LONGEST_TIMEOUT.days} days, the limit of the server; 0 means no timeout"
            )
        return value

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        for keys in (self.key_columns, *self.table_keys.values()):
            own = self.model_copy(update={"key_columns": keys})
            check_keyed(own, needs_keys=self.table_column is None)
            check_changes(own)
        check_tables(self)
        return self

    @property
    def keys_are_primary(self) -> bool:
        """Whether the keys of each of many tables are its primary key, unless `table_keys` has others."""
        return self.keys_differ and not self.key_columns

    @property
    def keys_differ(self) -> bool:
        """Whether many tables may have different keys."""
        return self.table is None and self.write_mode != "append" and not (self.key_columns and not self.table_keys)

    @property
    def by_table(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """The options that list columns by table."""
        return {"table_keys": self.table_keys, "table_columns": self.table_columns}

    def of_table(self, name: str, keys: Sequence[str] = (), columns: Sequence[str] = ()) -> Self:
        """Return the options of one of several tables. They still have `table_column`, a column of the rows.

        `keys` are its own, if `keys_differ`, and `columns` those that it gets; none stands for all.
        """
        own = {"table": name, "key_columns": tuple(keys) or self.key_columns}
        return self.model_copy(update=own | {"table_columns": {name: tuple(columns)} if columns else {}})

    def gets(self, column: str) -> bool:
        """Whether one of several tables gets a column of the rows if it lacks it."""
        return gets(self, column, self.columns_named())

    @property
    def described(self) -> str:
        """The table as spelled in the options, or what names the tables."""
        return self.table or f"the tables of column {self.table_column!r}"

    @property
    def statement_milliseconds(self) -> int:
        """`statement_timeout` in the unit of servers; 0 means no limit."""
        return math.ceil(self.statement_timeout / timedelta(milliseconds=1))

    @property
    def deletes(self) -> bool:
        """Whether rows of the table may be deleted."""
        removes = self.write_mode in ("delete", "changes") or bool(self.delete_marker)
        return removes or self.existing.others == "delete"

    @property
    def ordered_by(self) -> str | None:
        """The column that decides between two rows of one key."""
        return self.sequence_column or self.order_column

    @property
    def not_stored(self) -> dict[str, str]:
        """The columns of the rows that the table does not store, with the columns of staging that hold them."""
        found = {self.delete_marker: MARKER, self.operation_column: OPERATION, self.table_column: TABLE}
        return {name: staged for name, staged in found.items() if name is not None}

    @property
    def by_key(self) -> bool:
        """Whether one row of each key is written, and the last of an epoch has to be found."""
        return self.write_mode in ("upsert", "changes")

    def columns_named(self) -> list[str]:
        """Return the columns that every row must have because an option names them."""
        ordered = [] if self.ordered_by is None else [self.ordered_by]
        return [*self.key_columns, *self.update_columns, *ordered, *self.not_stored]

    def own_columns(self) -> list[str]:
        """Return the columns of staging that precede those of the table."""
        return [STAGE, *([ROW] if self.by_key else []), *self.not_stored.values()]

    def reserved_columns(self) -> set[str]:
        """Return the column names that neither rows nor table may have: those of staging and of statements."""
        return {*self.own_columns(), *((REMOVED, NUMBER) if self.by_key else ())}


def check_tables(options: SqlOptions) -> None:
    """Raise `ValueError` if the options of the table, or of several ones, do not fit each other."""
    if (options.table is None) == (options.table_column is None):
        raise ValueError("set either table or table_column")
    others = (options.ordered_by, options.delete_marker, options.operation_column)
    check_routed(options, (*options.key_columns, *options.update_columns, *others))
    if options.table_keys and options.write_mode == "append":
        raise ValueError("table_keys is an option of the write modes upsert, delete and changes")
    if options.keys_are_primary and options.create_table != "never" and not options.table_keys:
        raise ValueError("create_table needs key_columns or table_keys, which become the primary key")


def check_changes(options: SqlOptions) -> None:
    """Raise `ValueError` if the options of `changes` do not fit each other."""
    needed = ("key_columns", "operation_column", "sequence_column")
    if options.write_mode != "changes":
        for name in (*needed[1:], "sequence_kind", "tombstone_retention"):
            if getattr(options, name) != type(options).model_fields[name].default:
                raise ValueError(f"{name} is an option of write_mode changes")
        return
    for name in needed if options.table_column is None else needed[1:]:
        if not getattr(options, name):
            raise ValueError(f"write_mode changes needs {name}")
    if options.sequence_column in options.key_columns:
        raise ValueError("sequence_column cannot be a key, because it differs between the changes of a key")
    if options.operation_column in (options.sequence_column, *options.key_columns):
        raise ValueError("operation_column is not stored, so it can be neither sequence_column nor a key")
