"""The options of `OpenSearchSink`."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from outfall.opensearch.names import refusal
from outfall.options import Duration, Names
from outfall.urls import split_server
from outfall.versioned import Deletes, TombstoneOptions, VersionedSettings

_HERE = ("localhost", "127.0.0.1", "::1")


class OpenSearchOptions(TombstoneOptions):
    """The options of `OpenSearchSink`, in its constructor and in Spark."""

    url: str = Field(description="The cluster: `https://host:port`. Without credentials.")
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
    username: str | None = Field(default=None, description="The user of basic authentication.")
    password: SecretStr | None = Field(
        default=None, description="The password; also `env:NAME` or `file:PATH`, which are read where they are used."
    )
    api_key: SecretStr | None = Field(default=None, description="An API key, as the header `Authorization: ApiKey …`.")
    aws_region: str | None = Field(
        default=None, description="Signs requests (SigV4) for a domain in this region, with boto3's credentials."
    )
    aws_service: Literal["es", "aoss"] = Field(default="es", description="`aoss` for OpenSearch Serverless.")
    ca_bundle: str | None = Field(
        default=None, description="A file with the trusted certificates, on each host. Default: those of the system."
    )
    gzip: bool = Field(default=True, description="Whether the bodies of requests are compressed.")
    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="Maximum time to connect.")
    read_timeout: Duration = Field(
        default=timedelta(seconds=60),
        description="Maximum time to wait for a response before the rows are sent again.",
    )
    max_in_flight_requests: int = Field(
        default=4, gt=0, description="Maximum number of concurrent bulk requests per task."
    )

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        instead = "use username, password and the other options"
        split_server(value, ("http", "https"), "an http or https URL", instead)
        return value.rstrip("/")

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
        if self.data_stream and (self.key_columns or self.delete_marker or self.order_column or self.index is None):
            raise ValueError("a data stream has an index, and no key_columns, delete_marker and order_column")
        if not self.data_stream and not self.key_columns:
            raise ValueError("key_columns are required, unless data_stream is set")
        ways = [self.username or self.password, self.api_key, self.aws_region]
        if sum(way is not None for way in ways) > 1:
            raise ValueError("set only one of username with password, api_key and aws_region")
        secret = self.password or self.api_key
        if secret and self.url.startswith("http:") and urlsplit(self.url).hostname not in _HERE:
            raise ValueError("url must be https, because requests contain a secret")
        if self.delete_marker and self.delete_marker in (*self.key_columns, self.index_column, self.routing_column):
            raise ValueError("delete_marker cannot be in the key, and not the index or the routing")
        return self


class OpenSearchSettings(VersionedSettings, total=False):
    """The fields of `OpenSearchOptions` as keyword arguments of the constructor."""

    index: str | None
    index_column: str | None
    key_columns: str | tuple[str, ...] | list[str]
    data_stream: bool
    deletes: Deletes
    routing_column: str | None
    pipeline: str | None
    username: str | None
    password: SecretStr | str | None
    api_key: SecretStr | str | None
    aws_region: str | None
    aws_service: Literal["es", "aoss"]
    ca_bundle: str | None
    gzip: bool
    connect_timeout: timedelta | float | str
    read_timeout: timedelta | float | str
