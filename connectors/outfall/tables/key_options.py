"""The options of `upsert` and `delete`, in the words of `PostgresSink`, for table sinks that have these modes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, Self, TypedDict

import pyarrow as pa
from pydantic import ByteSize, Field, field_validator, model_validator

from outfall.capabilities import RowIdentity
from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.options import Names, NamesByName
from outfall.tables.options import TableOptions
from outfall.values import spark_type

_is = pa.types

KeyedWriteMode = Literal["append", "overwrite_partitions", "upsert", "delete"]


class Keyed(Protocol):
    """The options of `upsert` and `delete` in any sink."""

    @property
    def write_mode(self) -> str: ...
    @property
    def key_columns(self) -> tuple[str, ...]: ...
    @property
    def table_keys(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def update_columns(self) -> tuple[str, ...]: ...
    @property
    def order_column(self) -> str | None: ...
    @property
    def delete_marker(self) -> str | None: ...


def names_once(value: tuple[str, ...]) -> tuple[str, ...]:
    """Return the value of an option that names columns. Raises `ValueError` if it names one twice."""
    twice = [name for name in value if value.count(name) > 1]
    if twice:
        raise ValueError(f"names the column {twice[0]!r} twice")
    return value


def check_keyed(options: Keyed, *, needs_keys: bool = True) -> None:
    """Raise `ValueError` if the options of `upsert` and `delete` do not fit each other."""
    if needs_keys and options.write_mode in ("upsert", "delete") and not options.key_columns:
        raise ValueError(f"write_mode {options.write_mode} needs key_columns")
    for name in ("update_columns", "order_column", "delete_marker"):
        if getattr(options, name) and options.write_mode != "upsert":
            raise ValueError(f"{name} is an option of write_mode upsert")
    both = set(options.update_columns) & set(options.key_columns)
    if both:
        raise ValueError(f"update_columns contains the key {sorted(both)[0]!r}, and keys cannot be updated")
    if options.delete_marker in options.key_columns:
        raise ValueError("delete_marker cannot be a key")
    if options.delete_marker and options.delete_marker in (options.order_column, *options.update_columns):
        raise ValueError("delete_marker is not stored, so it cannot be order_column or in update_columns")


def keeps_newer_rows(options: Keyed) -> bool:
    """Return whether an upsert compares each row with the table. A key whose row was removed has nothing to compare."""
    return options.write_mode == "upsert" and options.order_column is not None and options.delete_marker is None


def key_identity(options: Keyed, order: str | None) -> RowIdentity | None:
    """Return what identifies a row that is written by key; `None` if rows are added, whose key is the table's alone."""
    if not (options.key_columns or options.table_keys) or options.write_mode in ("append", "overwrite_partitions"):
        return None
    # Their order has no meaning.
    keys = tuple(sorted(options.key_columns))
    of_tables = sorted(f"{table}: {', '.join(sorted(names))}" for table, names in options.table_keys.items())
    return RowIdentity(options.write_mode, keys, order, options.delete_marker, tuple(of_tables))


class KeyArguments(TypedDict, total=False):
    """The write mode and the options of `upsert` and `delete` as keyword arguments of a sink; see `KeyOptions`."""

    write_mode: KeyedWriteMode
    key_columns: str | tuple[str, ...] | list[str]
    table_keys: str | Mapping[str, str | Sequence[str]] | None
    update_columns: str | tuple[str, ...] | list[str]
    order_column: str | None
    delete_marker: str | None
    max_merge_bytes: int | str


class KeyOptions(TableOptions):
    """The options of a table sink that also upserts and deletes by key."""

    write_mode: KeyedWriteMode = Field(  # type: ignore[assignment]  # more modes than other table sinks have
        default="append",
        description="`append` adds the rows of each epoch. `overwrite_partitions` replaces the partitions that the"
        " epoch has rows for, in one commit. In an unpartitioned table it replaces all rows. `upsert` inserts a row or"
        " updates those with the same key. `delete` removes rows by key.",
    )
    key_columns: Names = Field(default=(), description="`upsert`, `delete`: the columns that identify a row.")
    table_keys: NamesByName = Field(
        default={},
        description="`table_column`: the key columns of tables, by an entry as in `allowed_tables`: a mapping such as"
        ' `{"orders": ["id", "line"]}`, or JSON. Default: `key_columns`.',
    )
    update_columns: Names = Field(
        default=(),
        description="`upsert`: the columns of an existing row to update, in addition to `order_column`. Default: all"
        " that the rows have, except the keys.",
    )
    order_column: str | None = Field(
        default=None,
        min_length=1,
        description="`upsert`: the column that decides between two rows of one key; the greater value wins, within an"
        " epoch and against the table; of equal values, the last row written. Without it, the last row written in the"
        " epoch replaces the table's row.",
    )
    delete_marker: str | None = Field(
        default=None,
        min_length=1,
        description="`upsert`: a boolean column that is not stored. If it is true, the row with this key is removed.",
    )
    max_merge_bytes: ByteSize = Field(
        default=ByteSize(1 << 30),
        ge=1 << 20,
        description="`upsert`, `delete`: the maximum size of the changes of an epoch in the memory of the driver, which"
        " needs about three times as much: a number, or a string such as `4 GiB`. Above half of it, a warning is"
        " logged. An epoch beyond it is not written until the option is raised.",
    )

    _once = field_validator("key_columns", "update_columns", "allowed_tables")(names_once)

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        for name in ("key_columns", "table_keys"):
            if getattr(self, name) and not self.has_keys:
                raise ValueError(f"{name} is an option of the write modes upsert and delete")
        for keys in (self.key_columns, *self.table_keys.values()):
            check_keyed(self.model_copy(update={"key_columns": keys}), needs_keys=not self.table_keys)
        if self.write_mode == "delete" and self.create_table == "if_missing":
            raise ValueError("create_table excludes write_mode delete: a new table has no rows to delete")
        return self

    def columns_named(self) -> Collection[str]:
        others = (name for name in (self.order_column, self.delete_marker) if name is not None)
        return (*super().columns_named(), *self.key_columns, *self.update_columns, *others)

    @property
    def by_table(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        return {**super().by_table, "table_keys": self.table_keys}

    def of_table(self, name: str) -> Self:
        keys = self.listed(self.table_keys, name) or self.key_columns
        return super().of_table(name).model_copy(update={"key_columns": keys, "table_keys": {}})

    @property
    def has_keys(self) -> bool:
        """Whether rows of the table are found by key."""
        return self.write_mode in ("upsert", "delete")


def column_named(name: str, columns: Sequence[str]) -> str | None:
    """Return the column that an option means: the exact name, or the only one that differs in case alone."""
    alike = [column for column in columns if column.lower() == name.lower()]
    return name if name in alike else alike[0] if len(alike) == 1 else None


def check_key_types(columns: pa.Schema, keys: Sequence[str], order: str | None, option: str = "order_column") -> None:
    """Raise `ConfigurationError` for key and ordering columns whose values cannot be compared exactly.

    `option` is the one that names the column `order`.
    """
    for name in keys:
        kind = columns.field(name).type
        if _is.is_nested(kind) or _is.is_floating(kind):
            raise ConfigurationError(
                f"column {name!r} of type {spark_type(kind)} cannot be in key_columns",
                why="structs, arrays and maps are not compared"
                if _is.is_nested(kind)
                else "numbers that look equal may differ, and NaN equals nothing or itself, depending on the reader",
                do="use another column, or cast it to a decimal or a string",
            )
    if order is None:
        return
    kind = columns.field(order).type
    binary = _is.is_binary(kind) or _is.is_fixed_size_binary(kind)
    if _is.is_nested(kind) or _is.is_floating(kind) or _is.is_boolean(kind) or binary:
        raise ConfigurationError(
            f"column {order!r} of type {spark_type(kind)} cannot be {option}",
            why="readers do not agree on the order of NaN"
            if _is.is_floating(kind)
            else "its values have no useful order",
            do="use an integer, a decimal, a date, a timestamp or a string",
        )


def refuse_null_keys(batch: pa.RecordBatch, names: Sequence[str]) -> None:
    """Raise `ValueRefusedError` if a column of the key is NULL in a row."""
    for name in names:
        if batch.column(name).null_count:
            raise ValueRefusedError(
                f"the key column {name!r} is NULL in a row",
                why="a row is found by its key",
                do="remove such rows, or replace the NULL",
            )
