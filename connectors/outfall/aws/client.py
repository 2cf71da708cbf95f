"""Clients of AWS services, one per process and connection, and credentials that are renewed."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from pydantic import Field, field_validator

from outfall.async_sink import AimdLimiter, AsyncSink, BlockingSinkPartition, Limiter
from outfall.async_sink.options import Concurrency
from outfall.async_sink.responses import LARGEST, parsed_object, read_body, unreadable
from outfall.aws.errors import classify, code_of, is_stale
from outfall.capabilities import SupportsTarget
from outfall.connections import ConnectionOptions, ConnectionSettings
from outfall.errors import ConfigurationError, TransientError
from outfall.options import parse_endpoint
from outfall.process_clients import ProcessClients, hide_secrets
from outfall.urls import masked

E = TypeVar("E")


class AwsConnection(ConnectionOptions, Concurrency):
    """The options of a connection to AWS. A service derives from it."""

    clients = ProcessClients[Any](environment="AWS_")
    service: ClassVar[str]
    sends_json: ClassVar[bool] = False
    """Whether calls pass their parameters as JSON text, with `as_json`."""

    region: str | None = Field(default=None, description="The AWS region. Default: the region of the environment.")
    endpoint_url: str | None = Field(
        default=None, description="An alternative endpoint, for a VPC endpoint or an emulator."
    )

    _address = field_validator("endpoint_url")(parse_endpoint)

    def make(self) -> Any:
        """Create a client. Credentials come from boto3's default chain.

        boto3 renews expiring credentials itself, if their source states the expiry. It reads keys in a file only once.
        Raises `BotoCoreError` or `ValueError` if no client can be created.
        """
        seconds = self.read_timeout.total_seconds()
        config = Config(
            connect_timeout=self.connect_timeout.total_seconds(),
            read_timeout=seconds,
            max_pool_connections=self.max_in_flight_requests,
            retries={"total_max_attempts": 1},  # the base retries and counts
            parameter_validation=not self.sends_json,
        )
        client = boto3.session.Session().client(
            self.service, region_name=self.region, endpoint_url=self.endpoint_url, config=config
        )
        hide_secrets(client)
        # boto3 has no public place for it. It reads responses of any size, and takes one that was cut for a whole one.
        client._endpoint.http_session = BoundedSession(client._endpoint.http_session, seconds)
        if self.sends_json:
            client.meta.events.register("provide-client-params", _take_json)
            client.meta.events.register("before-call", _put_json)
        return client


class AwsSettings(ConnectionSettings, total=False):
    """The fields of `AwsConnection` as keyword arguments of a sink's constructor."""

    region: str | None
    endpoint_url: str | None


class AwsSink(AsyncSink[E], SupportsTarget[Any], Generic[E]):
    """Base of sinks for AWS services. `options` inherit `connection`."""

    connection: type[AwsConnection]
    options: Any

    @abstractmethod
    def name(self) -> str:
        """Return the name of the stream or table."""

    def kind(self) -> str:
        return self.connection.service

    def target(self) -> str:
        # The same name may exist in each region, and in each emulator.
        place = self.options.region or masked(self.options.endpoint_url or "")
        return f"{self.kind()}:{place}/{self.name()}" if place else f"{self.kind()}:{self.name()}"

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
            return self._access.client()
        except (BotoCoreError, ValueError) as error:
            passes = is_stale(error)
            raise (TransientError if passes else ConfigurationError)(
                f"cannot create a client for {self.target()}{' now' if passes else ''}",
                why=str(error),
                do="correct region, endpoint_url or the credentials",
            ) from error

    @cached_property
    def _access(self) -> AwsConnection:
        # Once per sink: to take the options apart costs as much as a part of a request.
        return self.connection.of(self.options)

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
            self._access.renew(client)


class AwsPartition(BlockingSinkPartition[E], Generic[E]):
    """A partition whose `send` calls an AWS service."""

    classify = staticmethod(classify)

    def code_of(self, error: Exception) -> str:
        return code_of(error) or super().code_of(error)


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

    For services with `sends_json`. boto3 checks and converts each value by the model of the service, which takes
    several times as long as everything else that a write needs.
    """
    return {_JSON: text}


_JSON = "OutfallJson"


def _take_json(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if _JSON in params:
        context[_JSON] = params.pop(_JSON)


def _put_json(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if _JSON in context:
        params["body"] = context[_JSON].encode()
