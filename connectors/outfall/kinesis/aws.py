"""The common parts of both sinks: options, checks, the client, and the meaning of AWS errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.compute as pc
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    SSLError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as AwsConnectionError
from botocore.parsers import ResponseParserError
from pydantic import Field, field_validator

from outfall.async_sink import (
    AimdLimiter,
    AsyncSink,
    BlockingSinkPartition,
    ErrorAction,
    Limiter,
    RefusedEntry,
    RequestOutcome,
    by_type,
    first_of,
)
from outfall.async_sink.retrying import outfall_errors
from outfall.capabilities import SupportsTarget
from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.kinesis.records import AwsRecord, AwsRecordSerializer
from outfall.location import masked
from outfall.options import Duration, SinkOptions, parse_endpoint
from outfall.process_clients import ProcessClients, hide_secrets
from outfall.values import spark_type

FAILURES = (ClientError, BotoCoreError, ResponseParserError)
"""The exceptions of boto3."""

_AT_FAULT = {"ValidationException", "InvalidArgumentException", "SerializationException"}
"""Codes for a request with invalid content, perhaps in one record."""

_MAY_PASS = {
    "InternalFailure", "InternalFailureException", "InternalServerError", "KMSThrottlingException",
    "LimitExceededException", "ProvisionedThroughputExceededException", "RequestTimeout", "RequestTimeoutException",
    "ServiceUnavailable", "ServiceUnavailableException", "SlowDown", "Throttling", "ThrottlingException",
}  # fmt: skip


_STALE = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "UnrecognizedClientException",
}  # fmt: skip
"""Codes for credentials that have expired, or that AWS does not know or does not know yet (new keys)."""


def code_of(error: BaseException) -> str:
    """Return AWS's error code; empty for other errors."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_stale(error: BaseException) -> bool:
    """Whether an error requires new credentials, or their provider did not respond."""
    return code_of(error) in _STALE or isinstance(error, CredentialRetrievalError | TokenRetrievalError)


def stale(error: BaseException) -> ErrorAction | None:
    """Classify credential errors as transient: new credentials may succeed."""
    return ErrorAction.RETRY if is_stale(error) else None


def codes(error: BaseException) -> ErrorAction | None:
    """Classify AWS's error codes (the "Errors" of each action in the API references)."""
    if not isinstance(error, ClientError):
        return None
    if code_of(error) in _AT_FAULT:
        return ErrorAction.DEAD_LETTER
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    may_pass = code_of(error) in _MAY_PASS or status == 429 or status >= 500
    return ErrorAction.RETRY if may_pass else ErrorAction.FATAL


classify = first_of(
    stale,
    codes,
    by_type(ErrorAction.FATAL, SSLError),
    by_type(ErrorAction.RETRY, HTTPClientError, AwsConnectionError, IncompleteReadError, ResponseParserError),
    outfall_errors,
)
"""Classifies a failed call."""


class AwsOptions(SinkOptions):
    """Options for the connection to AWS."""

    data: str | None = Field(
        default=None,
        description="The column with the bytes or string that is the data of the record. Default: the whole row as a"
        " JSON object.",
    )
    region: str | None = Field(default=None, description="The AWS region. Default: the region of the environment.")
    endpoint_url: str | None = Field(
        default=None, description="An alternative endpoint, for a VPC endpoint or an emulator."
    )
    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="Maximum time to connect.")
    read_timeout: Duration = Field(
        default=timedelta(seconds=30),
        description="Maximum time to wait for a response before the request is sent again.",
    )

    _address = field_validator("endpoint_url")(parse_endpoint)


class AwsSink(AsyncSink[AwsRecord], SupportsTarget[Any]):
    """A sink that sends records of bytes."""

    service: str
    named_by: str
    """The option with the name of the stream."""
    look: staticmethod[[Any, str], Sequence[str]]
    """Checks the stream, with a client and its name; see `outfall.kinesis.preflight`."""
    options: Any

    def name(self) -> str:
        """The name of the stream."""
        return str(getattr(self.options, self.named_by))

    def target(self) -> str:
        # The same name may exist in each region, and in each emulator.
        place = self.options.region or masked(self.options.endpoint_url or "")
        return f"{self.service}:{place}/{self.name()}" if place else f"{self.service}:{self.name()}"

    def columns(self) -> dict[str, str]:
        """The columns in the options, by option."""
        return {name: column for name in ("data",) if (column := getattr(self.options, name)) is not None}

    def key_columns(self) -> Sequence[str]:
        return [column for option, column in self.columns().items() if option == "partition_key"]

    def kind(self) -> str:
        return self.service

    def host(self) -> str:
        return f"{masked(self.options.endpoint_url or '')}/{self.target()}"

    def limiter(self) -> Limiter:
        # Proportional, because the shards of a stream fail independently: a hot key must not throttle all others.
        return AimdLimiter(self.options.max_batch_size * self.options.max_in_flight_requests, proportional=True)

    def entry_serializer(self) -> AwsRecordSerializer:
        return AwsRecordSerializer()

    def check_schema(self, schema: pa.Schema) -> None:
        for option, column in self.columns().items():
            if column not in schema.names:
                raise ConfigurationError(
                    f"{option} requires the column {column!r}, and the rows have {', '.join(schema.names)}",
                    do=f"correct the option {option}",
                )
            kind = schema.field(column).type
            if option != "data" and not _has_text(kind):
                raise ConfigurationError(
                    f"{option} is the column {column!r}, and {spark_type(kind)} cannot be converted to a string",
                    do="use another column, or cast it",
                )
        kind = schema.field(self.options.data).type if self.options.data else pa.string()
        if not any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, _is_binary)):
            raise ConfigurationError(
                f"the data column {self.options.data!r} is {spark_type(kind)}, and data must be binary or a string",
                do="cast it, or omit data to send rows as JSON",
            )

    def check_connection(self) -> Sequence[str]:
        client = self.client()
        try:
            return self.look(client, self.name())
        except OutfallError as error:
            self.renew(client, error.__cause__)
            raise

    def client(self) -> Any:
        """Return a client that threads and tasks share. Credentials come from boto3's default chain.

        Raises `ConfigurationError` if the options are not valid for a client, and `TransientError` if the credential
        provider does not respond.
        """
        try:
            return self._access().client()
        except (BotoCoreError, ValueError) as error:
            passes = is_stale(error)
            raise (TransientError if passes else ConfigurationError)(
                f"cannot create a client for {self.target()}{' now' if passes else ''}",
                why=str(error),
                do="correct region, endpoint_url or the credentials",
            ) from error

    def renew(self, client: Any, error: BaseException | None) -> None:
        """Make the next call of `client` read the credentials again, if an error shows that they are stale."""
        if error is not None and is_stale(error):
            self._access().renew(client)

    def _access(self) -> KinesisAccess:
        options = self.options
        return KinesisAccess(
            self.service,
            options.region,
            options.endpoint_url,
            options.connect_timeout.total_seconds(),
            options.read_timeout.total_seconds(),
            options.max_in_flight_requests,
        )


class AwsPartition(BlockingSinkPartition[AwsRecord]):
    """Sends records by one call, whose response lists the failed records."""

    options: Any

    classify = staticmethod(classify)

    sink: AwsSink

    def __init__(self, sink: AwsSink) -> None:
        """Create a client, if this process has none."""
        super().__init__(sink)
        sink.client()

    def put(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the client. After a credential error, the next call uses new credentials."""
        client = self.sink.client()
        try:
            return getattr(client, method)(**arguments)  # type: ignore[no-any-return]
        except Exception as error:
            self.sink.renew(client, error)
            raise

    def code_of(self, error: Exception) -> str:
        return code_of(error) or super().code_of(error)

    def text_of(self, entry: AwsRecord) -> str:
        return entry["Data"].decode(errors="backslashreplace").rstrip("\n")

    def outcome(self, entries: Sequence[AwsRecord], answers: Sequence[dict[str, Any]]) -> RequestOutcome[AwsRecord]:
        """Reject the records whose own error shows that they are at fault, and retry those with other errors."""
        retry: list[AwsRecord] = []
        dead: list[RefusedEntry[AwsRecord]] = []
        reason = code = None
        for entry, answer in zip(entries, answers, strict=True):
            found = answer.get("ErrorCode")
            told = f"{found}: {answer.get('ErrorMessage', '')}"
            if found in _AT_FAULT:
                dead.append(RefusedEntry(entry, told, found))
            elif found:
                retry.append(entry)
                reason, code = reason or told, code or found
        return RequestOutcome(retry=retry, dead=dead, reason=reason, code=code)


def _has_text(kind: pa.DataType) -> bool:
    try:
        pc.cast(pa.array([], kind), pa.string())
    except pa.ArrowNotImplementedError:
        return False
    return True


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


@dataclass(frozen=True)
class KinesisAccess:
    """The client options of a process. Holds no client."""

    service: str
    region: str | None
    endpoint_url: str | None
    connect_timeout: float
    read_timeout: float
    connections: int

    def client(self) -> Any:
        """Return this process's client. Credentials come from boto3's default chain.

        Raises `BotoCoreError` or `ValueError` if no client can be created.
        """
        return _clients.get(self)

    def renew(self, client: Any) -> None:
        """Make the next call of `client` create a new client with new credentials, unless that has already happened.

        boto3 renews expiring credentials itself, if their source states the expiry. It reads keys in a file only once.
        """
        _clients.drop(self, client)

    def make(self) -> Any:
        """Create a new client."""
        config = Config(
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            max_pool_connections=self.connections,
            retries={"total_max_attempts": 1},  # the base retries and counts
        )
        client = boto3.session.Session().client(
            self.service, region_name=self.region, endpoint_url=self.endpoint_url, config=config
        )
        hide_secrets(client)
        return client


_clients = ProcessClients[KinesisAccess]()
