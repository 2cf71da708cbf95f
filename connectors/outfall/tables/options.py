"""The common options of the table sinks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, Literal, Never, TypedDict

from pydantic import ByteSize, Field, field_validator

from outfall.existing import OnExistingRows
from outfall.options import Duration, Names, SinkOptions
from outfall.row_logging import LogRows, log_rows_field

WriteMode = Literal["append", "overwrite_partitions"]


class CommonArguments(TypedDict, total=False):
    """The options of `TableOptions` as keyword arguments of a sink, without `write_mode`."""

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

    elsewhere: ClassVar[Mapping[str, str]] = {
        "writer": "is an option of FileSink; the data files of a table are written by Outfall, which takes no more CPU"
        " time than Spark's writer: omit it"
    }

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

    def removes_all(self, published: int | None) -> bool:
        """Whether an epoch removes all earlier rows; `published` is the newest epoch in the table when it began."""
        return self.existing.others == "delete" and published is None

    @field_validator("target_file_bytes")
    @classmethod
    def _some_bytes(cls, value: ByteSize | None) -> ByteSize | None:
        if value is not None and value < 1:
            raise ValueError("must be at least one byte")
        return value
