"""The options of `DeltaSink`, and the deltalake options that users may set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from outfall.delta.features import check_configuration
from outfall.delta.files import TableLocation
from outfall.errors import ConfigurationError
from outfall.formats.partition_paths.directory_names import check_level
from outfall.location import Location, Purpose
from outfall.options import Pairs, SinkOptions, resolve_secret
from outfall.tables.key_options import KeyArguments, KeyOptions
from outfall.tables.options import CommonArguments

_PURPOSE = Purpose(
    "path of a Delta table",
    {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfs", "abfss": "abfss", "az": "az"},
    "is not one of the stores that deltalake supports here",
    "use an absolute path, or a URL that begins with s3://, gs://, abfss:// or az://",
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
_OFF = ("false", "0", "no", "n", "off")
_UNSAFE = (
    ("aws_s3_allow_unsafe_rename", _OFF, "of two concurrent commits, one would overwrite the other"),
    (
        "aws_conditional_put",
        ("etag", "etag-put-if-not-exists"),
        "a commit is a conditional put, and without it one commit would overwrite the other",
    ),
    (
        "aws_s3_locking_provider",
        (),
        "commits would use locks in DynamoDB, and the outcome of a commit with a lost response would be unknown",
    ),
)
"""Store options that disable the compare-and-swap: their safe values, and why the others are unsafe."""

_NOT_AT_CREATION = re.compile(
    r"delta\.(enableDeletionVectors|checkpointPolicy|minReaderVersion|minWriterVersion|feature\..+"
    r"|parquet\.compression\.codec)"
)
"""Properties with which deltalake creates no table, one of a protocol that it cannot read, or one with the feature
variantType, which the sink rejects."""


class DeltaArguments(CommonArguments, KeyArguments, total=False):
    """The options of `DeltaSink` as keyword arguments; see `DeltaOptions`."""

    storage_options: Mapping[str, Any]
    configuration: Mapping[str, Any]


class _DeltaLocation(SinkOptions):
    """The location of the table. A separate base, so that its options come first in the documentation."""

    path: str = Field(
        description="The directory of the table: an absolute path or a URL (`file:`, `s3://`, `gs://`, `abfss://`,"
        " `az://`). It must be the same on the driver and on all executors. With `table_column`, the directory that has"
        " those of the tables."
    )
    storage_options: Pairs = Field(
        default={},
        description="deltalake options of the object store, as a mapping or a JSON object: `AWS_ACCESS_KEY_ID`,"
        " `AWS_ENDPOINT_URL`, … Values accept `env:NAME` and `file:PATH`. Missing options come from the"
        " environment.",
    )
    configuration: Pairs = Field(
        default={},
        description="Table properties of a created table, as a mapping or a JSON object: `delta.checkpointInterval`,"
        " `delta.logRetentionDuration`, … An existing table keeps its own.",
    )


class DeltaOptions(KeyOptions, _DeltaLocation):
    """The options of `DeltaSink`, in its constructor and in Spark."""

    separator: ClassVar[str | None] = "/"

    @property
    def place(self) -> TableLocation:
        """The location of the table."""
        return TableLocation(Location.parse(self.path, _PURPOSE), self.storage_options)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a created table."""
        return {name: value.get_secret_value() for name, value in self.configuration.items()}

    @property
    def overwrites(self) -> bool:
        """Whether commits may remove files."""
        return self.write_mode != "append" or self.on_existing == "overwrite"

    def parts_of(self, name: str) -> tuple[str, ...]:
        parts = super().parts_of(name)
        for part in parts:
            check_level(None, part)
        return parts

    def of_table(self, name: str) -> Self:
        return super().of_table(name).model_copy(update={"path": f"{self.path.rstrip('/')}/{name}"})

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if len({entry.count("/") for entry in self.allowed_tables}) > 1:
            raise ValueError("allowed_tables has names of different depths, so that one table could be within another")
        return self

    @field_validator("path")
    @classmethod
    def _known_place(cls, value: str) -> str:
        try:
            location = Location.parse(value, _PURPOSE)
        except ConfigurationError as error:
            raise ValueError(error.what) from error
        if "%" in location.path:
            raise ValueError("must not contain '%', which deltalake interprets as the start of an encoded character")
        return location.url()

    @field_validator("storage_options")
    @classmethod
    def _safe(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError("must have names such as AWS_REGION")
        try:
            check_store({name: resolve_secret(text) for name, text in value.items() if _unsafe(name)}, "is set")
        except ConfigurationError as error:
            raise ValueError(f"{error.what}: {error.why}") from None
        return value

    @field_validator("configuration")
    @classmethod
    def _known_properties(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in value:
            if not name.startswith("delta."):
                raise ValueError(f"must be Delta properties, which begin with 'delta.', unlike {name!r}")
            if _NOT_AT_CREATION.fullmatch(name):
                raise ValueError(
                    f"must not have {name!r}, with which deltalake creates no usable table: set it with ALTER TABLE"
                    " once the table exists, or create the table in Spark"
                )
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.configuration and self.create_table == "never":
            raise ValueError('configuration requires create_table="if_missing", because it applies to a created table')
        try:
            check_configuration("the table", self.properties, overwrites=self.overwrites)
        except ConfigurationError as error:
            raise ValueError(f"configuration: {error.what}: {error.why}") from None
        return self


def check_store(options: Mapping[str, str], how: str) -> None:
    """Reject store options, or environment variables, with which two commits could overwrite each other.

    `how` is the origin of the options, for texts; it follows a name. `ConfigurationError` has the first unsafe option,
    and the reason.
    """
    for name, value in options.items():
        for safe, why in _unsafe(name):
            if value.lower() not in safe:
                raise ConfigurationError(
                    f"{name} {how} to {value!r}",
                    why=why,
                    do="remove it: S3 and most compatible stores have conditional puts",
                )


def check_environment(place: TableLocation) -> None:
    """Reject an environment in which deltalake's commits could overwrite each other. See `check_store`."""
    if place.location.scheme == "s3":
        check_store({name: value for name, value in os.environ.items() if _unsafe(name)}, "is set in the environment")


def _unsafe(name: str) -> list[tuple[Iterable[str], str]]:
    plain = name.lower()
    return [(safe, why) for known, safe, why in _UNSAFE if plain in (known, known.removeprefix("aws_"))]
