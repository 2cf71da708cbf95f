"""The options of formats, with the names of Spark's own writers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Literal, Self, TypedDict, TypeVar

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from outfall import plugins
from outfall.errors import ConfigurationError
from outfall.formats.base import Encoder
from outfall.formats.patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ, Pattern
from outfall.options import SinkOptions, in_own_case, nearest_name, parse_options, parse_pairs

Format = Literal["avro", "csv", "jsonl", "orc", "parquet", "text"]
Compression = Literal["none", "gzip", "zstd", "snappy"]

OWN_FORMATS: Mapping[str, str] = {
    "avro": "outfall.formats.spark_only:AvroFormat",
    "csv": "outfall.formats.csv:CsvEncoder",
    "jsonl": "outfall.formats.jsonl:JsonlEncoder",
    "orc": "outfall.formats.spark_only:OrcFormat",
    "parquet": "outfall.formats.parquet:ParquetEncoder",
    "text": "outfall.formats.text:TextEncoder",
}
"""Outfall's own formats, as entry points name one. Not registered as such, because tasks may have no metadata."""

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

O = TypeVar("O", bound=SinkOptions)  # noqa: E741 - O for options

_KINDS = {"date_format": DATE, "timestamp_format": TIMESTAMP, "timestamp_ntz_format": TIMESTAMP_NTZ}


class FormatArguments(TypedDict, total=False):
    """The options of formats as keyword arguments of a sink, described in `FormatOptions`."""

    format: Format | str
    compression: Compression | None
    format_options: Mapping[str, Any]
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

    format: Format | str = Field(
        default="jsonl",
        description="The file format. `jsonl`: one JSON object per row, like Spark's JSON writer. `csv`: one line per"
        " row, like Spark's CSV writer. `parquet`: whole files only. `text`: one string column, one line per row. `orc`"
        " and `avro`: only where Spark's writer encodes the rows. Or the name of a format of another installed"
        " distribution.",
    )
    compression: Compression | None = Field(
        default=None,
        description="The compression codec. Default: `snappy` for Parquet, `none` for other formats. `snappy` is for"
        " Parquet only. File extensions are Spark's (`.csv.gz`, `.txt.zst`, `.snappy.parquet`), except `.jsonl`"
        " (`.jsonl.gz`), where Spark writes `.json`: readers of `*.json` need `*.jsonl`.",
    )
    format_options: dict[str, str] = Field(
        default={},
        description="The options of a format of another distribution: a mapping, or a JSON object as a string. Without"
        " secrets.",
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

    _encoder: type[Encoder] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Find the encoder on the driver. Tasks get it with the pickled options, by module and name."""
        self._encoder = _find_encoder(self.format)

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        if value in OWN_FORMATS:
            return value
        known = sorted({*OWN_FORMATS, *plugins.names(plugins.FORMATS)})
        name: str = in_own_case(value, known)
        if name in known:
            return name
        nearest = nearest_name(name, known)
        listed = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        raise ValueError(f"must be {listed}" + (f" (did you mean {nearest}?)" if nearest else ""))

    @field_validator("format_options", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        try:
            return parse_pairs(value)
        except ValueError:
            raise ValueError("must be a mapping of names to values, or a JSON object as a string") from None

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
        if self.encoder.spark_only and not self.by_spark:
            raise ValueError(
                f"{self.format} files are written by Spark's writer: use FileSink(…, format={self.format!r},"
                ' writer="spark")'
            )
        for name, owners in _OWNERS.items():
            if self.format not in owners and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is an option of {' and '.join(owners)}, but the format is {self.format}")
        if self.codec not in self.encoder.codecs:
            owner = "parquet" if self.codec == "snappy" else "other formats"
            use = " or ".join(codec for codec in self.encoder.codecs if codec != "none") or "none"
            raise ValueError(f"compression {self.codec} is for {owner}, but the format is {self.format}: use {use}")
        if self.encoder.options_model is not None:
            self.of_format(self.encoder.options_model)
        elif self.format_options:
            raise ValueError(f"format_options is for formats that name their own options, unlike {self.format}")
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
        return self.compression or self.encoder.codecs[0]

    @property
    def encoder(self) -> type[Encoder]:
        """The class of the format."""
        return self._encoder

    @property
    def by_spark(self) -> bool:
        """Whether Spark's own writer encodes the rows."""
        return False

    def of_format(self, model: type[O]) -> O:
        """Return `format_options`, for the encoder that has this model as its `options_model`.

        Raises:
            ConfigurationError: an option is unknown or invalid. Raised on the driver, when the sink is constructed.
        """
        return parse_options(model, self.format_options)

    def reading(self) -> dict[str, str]:
        """Return the options with which a reader must read the files, by name, except those at their defaults."""
        given = {name: getattr(self, name) for name in self.encoder.read_by}
        defaults = FormatOptions.model_fields
        return {name: _text(value) for name, value in given.items() if value != defaults[name].default}

    def recorded(self) -> dict[str, Any]:
        """Return what a sink records of the options of formats, by which bytes of one object are encoded alike."""
        foreign = {"format_options"} if self.format_options else set()
        return self.model_dump(mode="json", include=set(FormatOptions.model_fields) - {"format_options"} | foreign)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _find_encoder(name: str) -> type[Encoder]:
    """Return the class of a format. Raises `ConfigurationError` if the name stands for something else."""
    own = OWN_FORMATS.get(name)
    found = plugins.find(plugins.FORMATS, name) if own is None else plugins.load(EntryPoint(name, own, plugins.FORMATS))
    if not isinstance(found, type) or not issubclass(found, Encoder):
        raise ConfigurationError(
            f"the entry point for {name} in {plugins.FORMATS} names {found!r}, which is not a format",
            do="let it name a subclass of outfall.formats.Encoder",
        )
    return found
