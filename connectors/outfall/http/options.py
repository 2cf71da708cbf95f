"""The options of `HttpSink`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl

from pydantic import BeforeValidator, ByteSize, Field, SecretStr, field_validator, model_validator

from outfall.async_sink import AsyncSinkOptions, AsyncSinkSettings
from outfall.connections import ConnectionSettings
from outfall.http.statuses import Verdict, parse_exceptions
from outfall.http.templates import UrlTemplate
from outfall.options import Duration, Pairs
from outfall.secret_values import names_a_secret
from outfall.unencrypted_secrets import Sent, UnencryptedSecrets, UnencryptedSecretsSettings, given, secret_entries
from outfall.urls import HTTP, split_url

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = {
    "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "transfer-encoding",
}  # fmt: skip

Shape = Literal["record", "array", "wrapped", "ndjson"]
Method = Literal["POST", "PUT", "PATCH", "DELETE"]
Compression = Literal["none", "gzip", "zstd"]
LimiterKind = Literal["gradient", "aimd", "fixed"]
Idempotency = Literal["request", "row", "content", "item", "none"]


Exceptions = Annotated[dict[int, Verdict], BeforeValidator(parse_exceptions)]


class HttpOptions(UnencryptedSecrets, AsyncSinkOptions):
    """The options of `HttpSink`, in its constructor and in Spark."""

    url: str = Field(
        min_length=1,
        description="Where requests are sent: `https://host/path`. Column names in braces, in the path or the query,"
        " are replaced by the escaped values of each record: `https://host/users/{user}/events`.",
    )
    method: Method = Field(default="POST", description="The HTTP method.")
    headers: Pairs = Field(
        default={},
        description="Additional headers, as a mapping or a JSON object. Values accept `env:NAME` and `file:PATH`, and"
        " are never sent to another origin.",
    )
    query: Pairs = Field(
        default={},
        description="Query parameters to add to the URL, as a mapping or a JSON object. Values are escaped and accept"
        " `env:NAME` and `file:PATH`.",
    )
    body: Shape = Field(
        default="array",
        description="`record`: one JSON object per request. `array`: a JSON array of records. `wrapped`: that array as"
        " a field of an object. `ndjson`: one JSON object per line.",
    )
    wrap_key: str = Field(default="events", min_length=1, description="With `wrapped`: the name of the array field.")
    ignore_null_fields: bool = Field(
        default=True, description="Whether NULL fields are omitted instead of written as `null`."
    )
    compression: Compression = Field(
        default="none",
        description="Compression of request bodies, declared by `Content-Encoding`. Responses are not compressed.",
    )
    content_type: str | None = Field(
        default=None, description="Default: `application/json`, or `application/x-ndjson` with `ndjson`."
    )
    bearer_token: SecretStr | None = Field(
        default=None, description="Sent as `Authorization: Bearer …`. Read again if the server rejects it."
    )
    username: str | None = Field(default=None, description="User name of basic authentication, with `password`.")
    password: SecretStr | None = Field(default=None, description="Password of basic authentication.")
    oauth2_token_url: str | None = Field(
        default=None,
        description="Token endpoint for OAuth2 client credentials (RFC 6749 §4.4). Each process has one token, renewed"
        " before it expires and once if the server rejects it.",
    )
    oauth2_client_id: str | None = Field(default=None, description="OAuth2: the client id.")
    oauth2_client_secret: SecretStr | None = Field(default=None, description="OAuth2: the client secret.")
    oauth2_scope: str | None = Field(default=None, description="OAuth2: the scopes, separated by spaces.")
    idempotency: Idempotency = Field(
        default="request",
        description="How the server detects duplicates. `request`: a new `Idempotency-Key` per request, kept for its"
        " retries. `row`: `key_column` is the key. `content`: the key is a digest of the record, and rows"
        " are routed by content. `item`: records are identified by the field `key_column`. `none`: no key.",
    )
    key_column: str | None = Field(
        default=None,
        min_length=1,
        description="With `row` or `item`: the column with the permanent, unique id of the record.",
    )
    idempotency_header: str = Field(
        default="Idempotency-Key", description="The header for the key, which is sent as a quoted string (RFC 8941)."
    )
    statuses: Exceptions = Field(
        default={},
        description="Overrides of the status table, such as `409=complete, 404=dead_letter`, or a mapping. Values:"
        " `complete`, `retry`, `split`, `dead_letter`, `stop`.",
    )
    item_status: str | None = Field(
        default=None,
        min_length=1,
        description="In the JSON of responses: the path to the status of each record, such as `items.status` or"
        " `items.*.status`. Lists are gone through, and `*` is any name.",
    )
    failed_item: str | None = Field(
        default=None,
        min_length=1,
        description="In the JSON of error responses: the path to the position, from 0, of the record at fault, such as"
        " `invalid-event-number`. The server has stored the records before it, and processed none after it.",
    )
    limiter: LimiterKind = Field(
        default="gradient",
        description="How the number of concurrent requests is controlled. `gradient`: by latency and rejections, per"
        " host and process. `aimd`: by rejections only. `fixed`: always `max_in_flight_requests`.",
    )
    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="Maximum time to connect.")
    read_timeout: Duration = Field(
        default=timedelta(seconds=30), description="Maximum silence of the server after it has received the request."
    )
    request_timeout: Duration = Field(
        default=timedelta(seconds=30),
        description="Maximum duration of one attempt, from connecting to the end of the response. The request is then"
        " sent again. A server that sends byte by byte cannot extend it, except through `requests`.",
    )
    retry_backoff: Duration = Field(
        default=timedelta(seconds=1),
        description="Maximum pause before the first retry. It doubles with each further retry. The actual pause is"
        " random, between zero and this value.",
    )
    max_retry_backoff: Duration = Field(default=timedelta(seconds=60), description="Maximum pause before any retry.")
    verify: bool = Field(default=True, description="Whether to verify the server's certificate.")
    ca_bundle: str | None = Field(
        default=None,
        description="A file with the trusted certificates, or a directory prepared by `openssl rehash`, on each host."
        " Default: the value of `REQUESTS_CA_BUNDLE`, else those of the system.",
    )
    client_certificate: str | None = Field(default=None, description="A PEM file with the client certificate.")
    client_key: str | None = Field(
        default=None, description="A PEM file with the private key, if it is a separate file."
    )
    max_response_bytes: ByteSize = Field(
        default=ByteSize(1 << 20), gt=0, description="Maximum number of bytes to read from a response body."
    )
    max_redirects: int = Field(default=5, ge=0, description="Maximum number of redirects (307, 308) to follow.")

    @property
    def keyed(self) -> bool:
        """Whether requests carry a key in a header."""
        return self.idempotency in ("request", "row", "content")

    @model_validator(mode="before")
    @classmethod
    def _one_record(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("body") == "record":
            return {"max_batch_size": 1} | values
        return values

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        UrlTemplate(value)
        return value

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in value:
            _check_header(name)
        return value

    @field_validator("idempotency_header")
    @classmethod
    def _header(cls, value: str) -> str:
        _check_header(value)
        return value

    @field_validator("content_type")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not (value.isascii() and value.isprintable()):
            raise ValueError("must be printable ASCII")
        return value

    @field_validator("oauth2_token_url")
    @classmethod
    def _token_url(cls, value: str | None) -> str | None:
        if value is not None and split_url(value).scheme not in HTTP:
            raise ValueError("must be an http or https URL")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        self._check_idempotency()
        self._check_auth()
        if self.client_key and not self.client_certificate:
            raise ValueError("client_key needs client_certificate")
        if not self.verify and self.ca_bundle:
            raise ValueError("ca_bundle selects trusted certificates and verify=false trusts all: set one of them")
        if self.wrap_key != "events" and self.body != "wrapped":
            raise ValueError("wrap_key is an option of body wrapped")
        if self.item_status and self.failed_item:
            raise ValueError("item_status and failed_item exclude each other: set the one that the responses have")
        return self

    def secrets_sent(self) -> Iterator[Sent]:
        in_url = (name for name, _ in parse_qsl(split_url(self.url).query) if names_a_secret(name))
        entries = (*secret_entries("headers", self.headers), *secret_entries("query", self.query), *in_url)
        ways = given(self, "bearer_token", "password", "oauth2_client_secret")
        yield Sent("url", self.url, (*ways, *entries))
        if self.oauth2_token_url is not None:
            yield Sent("oauth2_token_url", self.oauth2_token_url, ("oauth2_client_secret",))

    @property
    def replaces_rows(self) -> bool:
        """Whether a request may replace or delete what an earlier one wrote (RFC 9110, section 9.3)."""
        return self.method != "POST"

    def _check_idempotency(self) -> None:
        if self.body != "record" and UrlTemplate(self.url).columns:
            raise ValueError("url has columns, and a request with many records has one URL: set body=record")
        if self.body == "record" and self.max_batch_size != 1:
            raise ValueError("body record has one record per request: omit max_batch_size, or set body=array")
        if self.idempotency in ("row", "content") and self.body != "record":
            raise ValueError(
                f"idempotency {self.idempotency} identifies one record, and a request has many: set body=record"
            )
        if self.replaces_rows and self.across_epochs:
            raise ValueError(
                f"across_epochs is not available with method {self.method}: an entry that waits would replace a newer"
                " one that another task has sent since"
            )
        if self.idempotency == "content" and self.across_epochs:
            raise ValueError(
                "across_epochs needs a fixed number of tasks, and idempotency content routes rows"
                " itself: set one of them"
            )
        if (self.idempotency in ("row", "item")) != (self.key_column is not None):
            raise ValueError("idempotency row or item requires key_column, and key_column requires one of them")
        header = self.idempotency_header
        if self.keyed and any(name.lower() == header.lower() for name in self.headers):
            # With one value for all requests, a receiver drops all but the first.
            raise ValueError(f"{header} carries the key of idempotency {self.idempotency}: remove it from headers")

    def _check_auth(self) -> None:
        oauth2 = (self.oauth2_token_url, self.oauth2_client_id, self.oauth2_client_secret)
        if any(oauth2) and not all(oauth2):
            raise ValueError("OAuth2 needs oauth2_token_url, oauth2_client_id and oauth2_client_secret")
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password must be set together")
        ways = [self.bearer_token, self.username, self.oauth2_token_url]
        ways += [value for name, value in self.headers.items() if name.lower() == "authorization"]
        if sum(way is not None for way in ways) > 1:
            raise ValueError("bearer_token, username, oauth2_token_url and a header Authorization exclude each other")


def _check_header(name: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid header name")
    if name.lower() in _OWN_HEADERS:
        raise ValueError(f"{name} is set by the sink and its options")


class HttpArguments(UnencryptedSecretsSettings, AsyncSinkSettings, ConnectionSettings, total=False):
    """The options of `HttpSink` as keyword arguments; see `HttpOptions`."""

    method: Method
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: Shape
    wrap_key: str
    ignore_null_fields: bool
    compression: Compression
    content_type: str | None
    bearer_token: str | None
    username: str | None
    password: str | None
    oauth2_token_url: str | None
    oauth2_client_id: str | None
    oauth2_client_secret: str | None
    oauth2_scope: str | None
    idempotency: Idempotency
    key_column: str | None
    idempotency_header: str
    statuses: str | Mapping[int, str]
    item_status: str | None
    failed_item: str | None
    limiter: LimiterKind
    verify: bool
    ca_bundle: str | None
    client_certificate: str | None
    client_key: str | None
    max_response_bytes: int | str
    max_redirects: int
