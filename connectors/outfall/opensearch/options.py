"""The options of `OpenSearchSink`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from outfall.connections import ServerSettings
from outfall.opensearch.client import OpenSearchConnection
from outfall.opensearch.names import refusal
from outfall.options import Names
from outfall.versioned import Deletes, TombstoneOptions, VersionedSettings


class OpenSearchOptions(OpenSearchConnection, TombstoneOptions):
    """The options of `OpenSearchSink`, in its constructor and in Spark."""

    index: str | None = Field(
        default=None,
        min_length=1,
        description="The index, data stream, or alias of one index. Either this or `index_column`.",
    )
    index_column: str | None = Field(
        default=None,
        min_length=1,
        description="The column with the index of each row. It is not stored. A key that changes its index leaves the"
        " old document.",
    )
    key_columns: Names = Field(
        default=(),
        description="The columns that identify a row: their texts, joined by `:`, are the id of the document. Of"
        " several columns, `%` and `:` in a text become `%25` and `%3A`, so that no two keys have one id.",
    )
    data_stream: bool = Field(
        default=False,
        description="Whether `index` is a data stream. It accepts only new documents: the guarantee is at least once.",
    )
    deletes: Deletes = Field(
        default="tombstone",
        description="`tombstone`: a deleted document is replaced by one with the fields `outfall_version` and"
        " `outfall_deleted` only. `remove`: the document is removed; the server forgets its version after"
        " `index.gc_deletes` (60 seconds), so the guarantee is at least once.",
    )
    routing_column: str | None = Field(
        default=None,
        min_length=1,
        description="The column with the routing of each document. It must depend on the key.",
    )
    pipeline: str | None = Field(default=None, min_length=1, description="The ingest pipeline.")

    @field_validator("index")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and (reason := refusal(value)):
            raise ValueError(reason)
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.index is None) == (self.index_column is None):
            raise ValueError("set either index or index_column")
        if self.data_stream and (self.key_columns or self.delete_marker or self.ordered_by or self.index is None):
            raise ValueError(
                "a data stream has an index, and no key_columns, delete_marker, order_column and sequence_column"
            )
        if not self.data_stream and not self.key_columns:
            raise ValueError("key_columns are required, unless data_stream is set")
        if self.delete_marker and self.delete_marker in (*self.key_columns, self.index_column, self.routing_column):
            raise ValueError("delete_marker cannot be in the key, and not the index or the routing")
        return self


class OpenSearchSettings(VersionedSettings, ServerSettings, total=False):
    """The fields of `OpenSearchOptions` as keyword arguments of the constructor."""

    index: str | None
    index_column: str | None
    key_columns: str | tuple[str, ...] | list[str]
    data_stream: bool
    deletes: Deletes
    routing_column: str | None
    pipeline: str | None
    api_key: SecretStr | str | None
    aws_region: str | None
    aws_service: Literal["es", "aoss"]
    gzip: bool
