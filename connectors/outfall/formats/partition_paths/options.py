"""The options of sinks that write into buckets."""

from __future__ import annotations

from typing import Self, TypedDict

from pydantic import Field, field_validator, model_validator

from outfall.formats.partition_paths.names import NULL_NAME, check_level, escape_text
from outfall.formats.partition_paths.patterns import hidden_name, parse_levels
from outfall.options import Names, SinkOptions


class BucketArguments(TypedDict, total=False):
    """The options of buckets as keyword arguments of a sink; `BucketOptions` says what each means."""

    partition_by: str | list[str] | tuple[str, ...]
    bucket_pattern: str | None
    bucket_time: str | None


class BucketOptions(SinkOptions):
    """Which directory below its root a row goes to; without these options the root itself."""

    partition_by: Names = Field(
        default=(),
        description="Columns that become directories, as Spark's `partitionBy` makes them: `carrier=AA/day=2026-11-21`."
        " As text, with commas between them. The files do not hold these columns; readers take them from the path.",
    )
    bucket_pattern: str | None = Field(
        default=None,
        description="A pattern that makes directories of a time, below those of `partition_by`:"
        " `'dt='yyyy-MM-dd/'hour='HH`. It has `yyyy`, `MM`, `dd`, `HH`, `mm`, `ss`, `S` to `SSSSSS`, `XXX` and text;"
        " `/` stands between levels.",
    )
    bucket_time: str | None = Field(
        default=None,
        description="The date or timestamp column that `bucket_pattern` formats, in the session's time zone; the files"
        " keep it. Default: the time of writing, in UTC, so that a repeated epoch may choose other directories.",
    )

    @field_validator("partition_by")
    @classmethod
    def _directories(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in value if value.count(name) > 1]
        if twice:
            raise ValueError(f"names the column {twice[0]!r} twice")
        for name in value:
            check_level(name, f"{escape_text(name)}={NULL_NAME}")
        return value

    @field_validator("bucket_pattern")
    @classmethod
    def _levels(cls, value: str | None) -> str | None:
        if value is not None:
            parse_levels(value)
        return value

    @model_validator(mode="after")
    def _buckets_can_be_read(self) -> Self:
        if self.bucket_pattern is None:
            if self.bucket_time is not None:
                raise ValueError(
                    "bucket_time is the column that bucket_pattern formats, and there is no bucket_pattern"
                )
            return self
        hidden = hidden_name(parse_levels(self.bucket_pattern), above=bool(self.partition_by))
        if hidden is not None:
            raise ValueError(
                f"bucket_pattern has the level '{hidden}=' below one without a name, and Spark's readers refuse such"
                " directories: put named levels first, or name them all"
            )
        return self
