"""The options that the sinks of all table formats have."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypedDict

from pydantic import ByteSize, Field, field_validator

from outfall.options import Duration, Names, SinkOptions

WriteMode = Literal["append", "overwrite_partitions"]
OnExisting = Literal["check", "resume", "error", "overwrite"]


class TableArguments(TypedDict, total=False):
    """The common options as keyword arguments of a sink; `TableOptions` says what each means."""

    write_mode: WriteMode
    create_table: Literal["never", "if_missing"]
    partition_by: str | tuple[str, ...] | list[str]
    schema_evolution: Literal["fail", "add_columns"]
    on_existing: OnExisting
    target_file_bytes: int | str | None
    max_open_files: int
    retry_deadline: timedelta | float | str


class TableOptions(SinkOptions):
    """What the sinks of all table formats take. Each adds where its table is."""

    write_mode: WriteMode = Field(
        default="append",
        description="`append` adds the rows of each epoch. `overwrite_partitions` replaces the partitions that an epoch"
        " has rows of, in one commit with them; of a table that is not partitioned all rows.",
    )
    create_table: Literal["never", "if_missing"] = Field(
        default="never", description="Whether a missing table is created, with the columns of the rows."
    )
    partition_by: Names = Field(
        default=(), description="How a table that is created is partitioned. One that exists keeps its partitioning."
    )
    schema_evolution: Literal["fail", "add_columns"] = Field(
        default="fail", description="What to do with columns that the table does not have: refuse them, or add them."
    )
    on_existing: OnExisting = Field(
        default="check",
        description="What to do on first contact with a table that holds rows. `check`: keep them, but refuse them when"
        " the table says that this step wrote some, under a checkpoint that is gone. `resume`: keep them. `error`:"
        " refuse them. `overwrite`: remove them in the commit of the first epoch, be it empty.",
    )
    target_file_bytes: ByteSize | None = Field(
        default=None,
        description="Close a data file once it holds this many bytes, and go on in a new one: a number, or text such as"
        " `128 MiB`. Default: what the table's properties say, or the format's default.",
    )
    max_open_files: int = Field(
        default=100,
        ge=1,
        description="How many files a task has open at most, one for each partition. Beyond that the one that was"
        " written to least recently is closed, so that there are more and smaller files.",
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=2),
        description="For how long loading, creating and changing the table are tried again after errors that may pass."
        " Commits are tried for as long as the query says (`commit_deadline`).",
    )

    @field_validator("target_file_bytes")
    @classmethod
    def _some_bytes(cls, value: ByteSize | None) -> ByteSize | None:
        if value is not None and value < 1:
            raise ValueError("must be at least one byte")
        return value
