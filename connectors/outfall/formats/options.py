"""The options of formats, with the names of Spark's own writers."""

from __future__ import annotations

from typing import Literal, Self, TypedDict

from pydantic import Field, ValidationInfo, field_validator, model_validator

from outfall.formats.patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ, Pattern
from outfall.options import SinkOptions

Format = Literal["csv", "jsonl", "parquet", "text"]
Compression = Literal["none", "gzip", "zstd", "snappy"]

_CSV = ("csv",)
_OWNERS = {
    "header": _CSV,
    "sep": _CSV,
    "quote": _CSV,
    "escape": _CSV,
    "quote_all": _CSV,
    "null_value": _CSV,
    "empty_value": _CSV,
    "ignore_leading_white_space": _CSV,
    "ignore_trailing_white_space": _CSV,
    "ignore_null_fields": ("jsonl",),
    "date_format": ("csv", "jsonl"),
    "timestamp_format": ("csv", "jsonl"),
    "timestamp_ntz_format": ("csv", "jsonl"),
}
"""The formats that an option applies to; options of all formats are left out."""

_KINDS = {"date_format": DATE, "timestamp_format": TIMESTAMP, "timestamp_ntz_format": TIMESTAMP_NTZ}


class FormatArguments(TypedDict, total=False):
    """The options of formats as keyword arguments of a sink, described in `FormatOptions`."""

    format: Format
    compression: Compression | None
    header: bool
    sep: str
    quote: str
    escape: str
    quote_all: bool
    null_value: str
    empty_value: str
    ignore_leading_white_space: bool
    ignore_trailing_white_space: bool
    ignore_null_fields: bool
    date_format: str | None
    timestamp_format: str | None
    timestamp_ntz_format: str | None


class FormatOptions(SinkOptions):
    """How rows are encoded. The defaults are Spark's."""

    format: Format = Field(
        default="jsonl",
        description="The file format. `jsonl`: one JSON object per row, like Spark's JSON writer. `csv`: one line per"
        " row, like Spark's CSV writer. `parquet`: whole files only. `text`: one string column, one line per row.",
    )
    compression: Compression | None = Field(
        default=None,
        description="The compression codec. Default: `snappy` for Parquet, `none` for other formats. `snappy` is for"
        " Parquet only. File extensions are Spark's (`.csv.gz`, `.txt.zst`, `.snappy.parquet`), except `.jsonl`"
        " (`.jsonl.gz`), where Spark writes `.json`: readers of `*.json` need `*.jsonl`.",
    )
    header: bool = Field(
        default=False, description="csv: whether the first line of each file contains the column names."
    )
    sep: str = Field(default=",", description="csv: the separator between two values; `\\t` is a tab.")
    quote: str = Field(default='"', description="csv: the character around a value that contains `sep` or `quote`.")
    escape: str = Field(
        default="\\",
        description="csv: the character that escapes `quote` and itself inside a quoted value. If it equals `quote`,"
        " quotes are doubled.",
    )
    quote_all: bool = Field(default=False, description="csv: whether every value is quoted, including NULL.")
    null_value: str = Field(
        default="",
        description="csv: the string for NULL. With the default, Spark reads empty strings as NULL. With another"
        " string, empty strings are preserved, and a value equal to that string is rejected.",
    )
    empty_value: str = Field(default='""', description="csv: the string for an empty string; by default two quotes.")
    ignore_leading_white_space: bool = Field(
        default=True, description="csv: whether white space before a value is dropped."
    )
    ignore_trailing_white_space: bool = Field(
        default=True, description="csv: whether white space after a value is dropped."
    )
    ignore_null_fields: bool = Field(
        default=True, description="jsonl: whether NULL fields are omitted. With `false` they are written as `null`."
    )
    date_format: str | None = Field(
        default=None,
        description="csv, jsonl: the pattern of dates, from `yyyy`, `MM`, `dd` and text. Default: `yyyy-MM-dd`.",
    )
    timestamp_format: str | None = Field(
        default=None,
        description="csv, jsonl: the pattern of timestamps in the session time zone, from `yyyy`, `MM`, `dd`, `HH`,"
        " `mm`, `ss`, `S` to `SSSSSS`, `XXX` and text. Default: ISO 8601 in UTC, with microseconds if a value has any.",
    )
    timestamp_ntz_format: str | None = Field(
        default=None,
        description="csv, jsonl: the pattern of timestamps without time zone, as `timestamp_format` but without `XXX`.",
    )

    @field_validator("sep", mode="before")
    @classmethod
    def _tab(cls, value: object) -> object:
        return "\t" if value == "\\t" else value

    @field_validator("sep", "quote", "escape")
    @classmethod
    def _one_character(cls, value: str) -> str:
        if len(value) != 1 or value in "\r\n\0":
            raise ValueError("must be one character other than a line break")
        return value

    @field_validator("date_format", "timestamp_format", "timestamp_ntz_format")
    @classmethod
    def _pattern(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            Pattern.parse(value, _KINDS[info.field_name or ""])
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        for name, owners in _OWNERS.items():
            if self.format not in owners and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is an option of {' and '.join(owners)}, but the format is {self.format}")
        if self.compression == "snappy" and self.format != "parquet":
            raise ValueError(f"compression snappy is for parquet, but the format is {self.format}: use gzip or zstd")
        if self.sep in (self.quote, self.escape):
            raise ValueError("sep must differ from quote and escape")
        for name in ("null_value", "empty_value"):
            self._check_constant(name)
        if self.null_value == self.empty_value != "":
            raise ValueError("null_value and empty_value must differ, or an empty string would be read as NULL")
        return self

    def _check_constant(self, name: str) -> None:
        value = getattr(self, name)
        if any(character in value for character in (self.sep, "\n", "\r")) or (
            self.quote in value and value != self.quote * 2
        ):
            raise ValueError(f"{name} must not contain sep, quote or a line break, because readers would split it")

    @property
    def codec(self) -> Compression:
        """The compression in effect."""
        return self.compression or ("snappy" if self.format == "parquet" else "none")
