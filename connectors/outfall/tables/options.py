"""The common options of the table sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Literal, Never, Self, TypedDict

from pydantic import ByteSize, Field, field_validator, model_validator

from outfall.existing import OnExistingRows
from outfall.options import Duration, Names, NamesByName, SinkOptions
from outfall.row_logging import LogRows, log_rows_field
from outfall.tables.allowed import ByTable, check_part, check_routed, gets

WriteMode = Literal["append", "overwrite_partitions"]


class CommonArguments(TypedDict, total=False):
    """The options of `TableOptions` as keyword arguments of a sink, without `write_mode`."""

    table_column: str | None
    allowed_tables: str | tuple[str, ...] | list[str]
    unknown_columns: Literal["fail", "leave_out_null"]
    table_columns: str | Mapping[str, str | Sequence[str]] | None
    create_table: Literal["never", "if_missing"]
    partition_by: str | tuple[str, ...] | list[str]
    schema_evolution: Literal["fail", "add_columns"]
    on_existing: OnExistingRows
    target_file_bytes: int | str | None
    max_open_files: int
    retry_deadline: timedelta | float | str
    writer: Never
    log_rows: LogRows


class TableArguments(CommonArguments, total=False):
    """All options of `TableOptions` as keyword arguments of a sink."""

    write_mode: WriteMode


class TableOptions(SinkOptions):
    """The common options of the table sinks. Each format adds the location of its table."""

    separator: ClassVar[str | None] = None
    """What separates the parts of the names in rows."""
    elsewhere: ClassVar[Mapping[str, str]] = {
        "writer": "is an option of FileSink; the data files of a table are written by Outfall, which takes no more CPU"
        " time than Spark's writer: omit it"
    }

    table_column: str | None = Field(
        default=None,
        min_length=1,
        description="The column with the table of each row, a string in the form of an entry of `allowed_tables`. It is"
        " not stored.",
    )
    allowed_tables: Names = Field(
        default=(),
        description="`table_column`: the tables that rows may name. `*` stands for any characters within a part of a"
        " name, such as `lake.tenant_*` or `eu/tenant_*`. Required.",
    )
    unknown_columns: Literal["fail", "leave_out_null"] = Field(
        default="fail",
        description="`table_column`: what to do with columns of the rows that a table does not have. `fail`: fail."
        " `leave_out_null`: leave such a column out where it is NULL, and fail where it has a value.",
    )
    table_columns: NamesByName = Field(
        default={},
        description="`table_column`: the columns that tables get with `create_table` and `schema_evolution`, beside"
        " those that options name, by an entry as in `allowed_tables`: a mapping, or JSON. Others are left out."
        " Default: all of the rows.",
    )
    write_mode: WriteMode = Field(
        default="append",
        description="`append` adds the rows of each epoch. `overwrite_partitions` replaces the partitions that the"
        " epoch has rows for, in one commit. In an unpartitioned table it replaces all rows.",
    )
    create_table: Literal["never", "if_missing"] = Field(
        default="never", description="Whether a missing table is created, with the columns of the rows."
    )
    partition_by: Names = Field(
        default=(), description="Partition columns of a created table. An existing table keeps its partitioning."
    )
    schema_evolution: Literal["fail", "add_columns"] = Field(
        default="fail", description="Columns that the table does not have: reject them or add them."
    )
    on_existing: OnExistingRows = Field(
        default="check",
        description="The first run against a table with rows. `check`: keep them, but fail if this step wrote some"
        " under a checkpoint that no longer exists. `resume`: keep them. `error`: fail. `overwrite`: remove"
        " them in the commit of the first epoch, even if that epoch is empty.",
    )
    target_file_bytes: ByteSize | None = Field(
        default=None,
        description="Size at which a data file is closed and a new one is started: a number, or a string such as `128"
        " MiB`. Default: the table property, else the default of the format.",
    )
    max_open_files: int = Field(
        default=100,
        ge=1,
        description="Maximum number of open files per task, one per partition. Beyond it the least recently written"
        " file is closed, which creates more and smaller files.",
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=2),
        description="How long transient errors are retried when the table is loaded, created or changed, and when a"
        " task creates a data file in a store. Commits are retried until `commit_deadline` of the query.",
    )
    log_rows: LogRows = log_rows_field()

    @property
    def are_many(self) -> bool:
        """Whether a column names the tables."""
        return self.table_column is not None

    def of_table(self, name: str) -> Self:
        """Return the options of one of many tables, as if the sink had only this one."""
        columns = self.listed(self.table_columns, name)
        return self.model_copy(
            update={
                "table_column": None,
                "allowed_tables": (),
                "unknown_columns": "fail",
                "table_columns": {name: columns} if columns else {},
            }
        )

    @property
    def by_table(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """The options that list columns by table."""
        return {"table_columns": self.table_columns}

    def listed(self, lists: Mapping[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
        """Return what an option lists for one of many tables; nothing if it has no entry for it."""
        if name in lists or not lists:
            return lists.get(name, ())
        entries = ((self._split(entry), names) for entry, names in lists.items() if "*" in entry)
        return ByTable(entries).find(self._split(name)) or ()

    def gets(self, column: str) -> bool:
        """Whether one of many tables gets a column of the rows if it lacks it."""
        return gets(self, column, self.columns_named())

    @property
    def described(self) -> str:
        """What names the tables, for texts."""
        return f"the tables of column {self.table_column!r}"

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Return the parts of the name of a table in a row. `ValueError` states what is wrong with it.

        Formats add what else they demand of a name.
        """
        parts = self._split(name)
        for part in parts:
            check_part(part)
        return parts

    @property
    def allowed_parts(self) -> list[tuple[str, ...]]:
        """The parts of each entry of `allowed_tables`."""
        return list(map(self._split, self.allowed_tables))

    def _split(self, name: str) -> tuple[str, ...]:
        return (name,) if self.separator is None else tuple(name.split(self.separator))

    def removes_all(self, published: int | None) -> bool:
        """Whether an epoch removes all earlier rows; `published` is the newest epoch in the table when it began."""
        return self.existing.others == "delete" and published is None

    @field_validator("target_file_bytes")
    @classmethod
    def _some_bytes(cls, value: ByteSize | None) -> ByteSize | None:
        if value is not None and value < 1:
            raise ValueError("must be at least one byte")
        return value

    @model_validator(mode="after")
    def _routed(self) -> Self:
        check_routed(self, self.columns_named())
        for option, entries in {"allowed_tables": self.allowed_tables, **self.by_table}.items():
            for entry in entries:
                try:
                    self.parts_of(entry.replace("*", "x"))
                except ValueError as error:
                    raise ValueError(f"the entry {entry!r} of {option} {error}") from None
        return self

    def columns_named(self) -> Collection[str]:
        """Return the columns that other options name."""
        return self.partition_by
