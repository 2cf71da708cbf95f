"""Clients of AWS services, one per process and connection, and credentials that are renewed."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from pydantic import Field, field_validator

from outfall.async_sink import AimdLimiter, AsyncSink, BlockingSinkPartition, Limiter
from outfall.async_sink.responses import LARGEST, parsed_object, read_body, unreadable
from outfall.aws.errors import classify, code_of, is_stale
from outfall.capabilities import SupportsTarget
from outfall.errors import ConfigurationError, TransientError
from outfall.options import Duration, SinkOptions, parse_endpoint
from outfall.process_clients import ProcessClients, hide_secrets
from outfall.urls import masked

E = TypeVar("E")


class ConnectionOptions(SinkOptions):
    """Options for the connection to AWS."""

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


class AwsSink(AsyncSink[E], SupportsTarget[Any], Generic[E]):
    """Base of sinks for AWS services. `options` are `ConnectionOptions` too."""

    service: str
    options: Any
    sends_json: bool = False
    """Whether calls pass their parameters as JSON text, with `as_json`."""

    @abstractmethod
    def name(self) -> str:
        """Return the name of the stream or table."""

    def kind(self) -> str:
        return self.service

    def target(self) -> str:
        # The same name may exist in each region, and in each emulator.
        place = self.options.region or masked(self.options.endpoint_url or "")
        return f"{self.service}:{place}/{self.name()}" if place else f"{self.service}:{self.name()}"

    def host(self) -> str:
        return f"{masked(self.options.endpoint_url or '')}/{self.target()}"

    def limiter(self) -> Limiter:
        # Proportional, because the shards and partitions of a target are throttled independently: a hot key must not
        # throttle all others.
        return AimdLimiter(self.options.max_batch_size * self.options.max_in_flight_requests, proportional=True)

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

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the client. After a credential error, the next call uses new credentials."""
        client = self.client()
        try:
            return getattr(client, method)(**arguments)
        except Exception as error:
            self.renew(client, error)
            raise

    def renew(self, client: Any, error: BaseException | None) -> None:
        """Make the next call of `client` read the credentials again, if an error shows that they are stale."""
        if error is not None and is_stale(error):
            self._access().renew(client)

    def _access(self) -> AwsAccess:
        options = self.options
        return AwsAccess(
            self.service,
            options.region,
            options.endpoint_url,
            options.connect_timeout.total_seconds(),
            options.read_timeout.total_seconds(),
            options.max_in_flight_requests,
            self.sends_json,
        )


class AwsPartition(BlockingSinkPartition[E], Generic[E]):
    """A partition whose `send` calls an AWS service."""

    classify = staticmethod(classify)

    def code_of(self, error: Exception) -> str:
        return code_of(error) or super().code_of(error)


@dataclass(frozen=True)
class AwsAccess:
    """The client options of a process. Holds no client."""

    service: str
    region: str | None
    endpoint_url: str | None
    connect_timeout: float
    read_timeout: float
    connections: int
    sends_json: bool = False

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
            parameter_validation=not self.sends_json,
        )
        client = boto3.session.Session().client(
            self.service, region_name=self.region, endpoint_url=self.endpoint_url, config=config
        )
        hide_secrets(client)
        # boto3 has no public place for it. It reads responses of any size, and takes one that was cut for a whole one.
        client._endpoint.http_session = BoundedSession(client._endpoint.http_session, self.read_timeout)
        if self.sends_json:
            client.meta.events.register("provide-client-params", _take_json)
            client.meta.events.register("before-call", _put_json)
        return client


_clients = ProcessClients[AwsAccess]()


class BoundedSession:
    """A session of botocore for services of JSON. It reads responses within bounds, and completely."""

    def __init__(self, session: Any, seconds: float) -> None:
        """Send through `session`, a `botocore.httpsession.URLLib3Session`. A body may take `seconds`."""
        self._session = session
        self._seconds = seconds

    def send(self, request: Any) -> AWSResponse:
        """Send a prepared request. Raises `TransientError` if the response is incomplete."""
        request.stream_output = True  # the body is read here
        found = self._session.send(request)
        deadline = time.monotonic() + self._seconds
        body = read_body(found.raw, most=LARGEST, deadline=deadline, decode=False)
        lacks, length = body.lacks, str(found.headers.get("content-length", ""))
        if lacks is None and length.isdecimal() and int(length) != len(body.data):
            lacks = f"it has {len(body.data)} of {length} bytes"
        what = f"the response of {urlsplit(request.url).netloc} with status {found.status_code}"
        if lacks is not None:
            raise unreadable(what, lacks)
        if found.status_code < 300 and body.data and "cbor" not in str(found.headers.get("content-type", "")):
            # botocore takes anything else for an empty object.
            parsed_object(body, what)
        return AWSResponse(found.url, found.status_code, found.headers, _Read(body.data))

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


class _Read:
    """A body that was read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> Iterator[bytes]:
        yield self._data


def as_json(text: str) -> dict[str, str]:
    """Return the argument of a call whose parameters are this JSON text, as the service reads it.

    For clients with `sends_json`. boto3 checks and converts each value by the model of the service, which takes several
    times as long as everything else that a write needs.
    """
    return {_JSON: text}


_JSON = "OutfallJson"


def _take_json(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if _JSON in params:
        context[_JSON] = params.pop(_JSON)


def _put_json(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if _JSON in context:
        params["body"] = context[_JSON].encode()
