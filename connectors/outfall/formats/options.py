"""The options of formats, under the names that Spark's own writers have for them."""

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
"""Which formats an option is of; those that are of all formats are left out."""

_KINDS = {"date_format": DATE, "timestamp_format": TIMESTAMP, "timestamp_ntz_format": TIMESTAMP_NTZ}


class FormatArguments(TypedDict, total=False):
    """The options of formats as keyword arguments of a sink; `FormatOptions` says what each means."""

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
    """How rows become bytes. The defaults are Spark's."""

    format: Format = Field(
        default="jsonl",
        description="`jsonl`: one JSON object per row, as Spark's JSON writer writes it. `csv`: one line per row, as"
        " Spark's CSV writer writes it. `parquet`: whole files only. `text`: one string column, one line per row.",
    )
    compression: Compression | None = Field(
        default=None,
        description="Without it `snappy` for parquet and `none` for the others. `snappy` is for parquet only. The names"
        " of compressed files end as Spark's do (`.csv.gz`, `.jsonl.zst`, `.snappy.parquet`).",
    )
    header: bool = Field(default=False, description="csv: the first line of each file holds the columns' names.")
    sep: str = Field(default=",", description="csv: the character between two values; `\\t` is a tab.")
    quote: str = Field(default='"', description="csv: the character around a value that holds `sep` or `quote`.")
    escape: str = Field(
        default="\\",
        description="csv: the character before a `quote`, and before itself, inside a quoted value. Set to `quote`, a"
        " quote is doubled.",
    )
    quote_all: bool = Field(default=False, description="csv: every value is quoted, NULL included.")
    null_value: str = Field(
        default="",
        description="csv: what a NULL looks like. With the default, Spark reads empty strings as NULL; with another"
        " text they come back, and a value that looks like it is refused.",
    )
    empty_value: str = Field(default='""', description="csv: what an empty string looks like; by default two quotes.")
    ignore_leading_white_space: bool = Field(
        default=True, description="csv: white space before a value is dropped. Set it to `false` to keep it."
    )
    ignore_trailing_white_space: bool = Field(
        default=True, description="csv: white space after a value is dropped. Set it to `false` to keep it."
    )
    ignore_null_fields: bool = Field(
        default=True, description="jsonl: a field that is NULL is left out, rather than written as `null`."
    )
    date_format: str | None = Field(
        default=None, description="csv, jsonl: a pattern of `yyyy`, `MM`, `dd` and text. Default: `yyyy-MM-dd`."
    )
    timestamp_format: str | None = Field(
        default=None,
        description="csv, jsonl: a pattern of `yyyy`, `MM`, `dd`, `HH`, `mm`, `ss`, `S` to `SSSSSS`, `XXX` and text, in"
        " the session's time zone. Default: ISO 8601 in UTC, with microseconds where a value has them.",
    )
    timestamp_ntz_format: str | None = Field(
        default=None, description="csv, jsonl: the same for timestamps without a time zone, without `XXX`."
    )

    @field_validator("sep", mode="before")
    @classmethod
    def _tab(cls, value: object) -> object:
        return "\t" if value == "\\t" else value

    @field_validator("sep", "quote", "escape")
    @classmethod
    def _one_character(cls, value: str) -> str:
        if len(value) != 1 or value in "\r\n\0":
            raise ValueError("must be one character, and no line break")
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
                raise ValueError(f"{name} is an option of {' and '.join(owners)}, and the format is {self.format}")
        if self.compression == "snappy" and self.format != "parquet":
            raise ValueError(f"compression snappy is for parquet, and the format is {self.format}: use gzip or zstd")
        if self.sep in (self.quote, self.escape):
            raise ValueError("sep must be another character than quote and escape")
        for name in ("null_value", "empty_value"):
            self._check_constant(name)
        if self.null_value == self.empty_value != "":
            raise ValueError("null_value and empty_value must differ, or an empty string would come back as NULL")
        return self

    def _check_constant(self, name: str) -> None:
        value = getattr(self, name)
        if any(character in value for character in (self.sep, "\n", "\r")) or (
            self.quote in value and value != self.quote * 2
        ):
            raise ValueError(f"{name} must hold neither sep, quote nor a line break, since readers would split it")

    @property
    def codec(self) -> Compression:
        """The compression that is used."""
        return self.compression or ("snappy" if self.format == "parquet" else "none")
