"""Clients of AWS services, one per process and connection, and credentials that are renewed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from pydantic import Field, field_validator

from outfall.aws.errors import is_stale
from outfall.errors import ConfigurationError, TransientError
from outfall.options import Duration, SinkOptions, parse_endpoint
from outfall.process_clients import ProcessClients, hide_secrets


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


class AwsClients(ABC):
    """Mixin of a sink with `options` of `ConnectionOptions`: the client that its threads and tasks share."""

    service: str
    options: Any
    sends_json: bool = False
    """Whether calls pass their parameters as JSON text, with `as_json`."""

    @abstractmethod
    def target(self) -> str:
        """Return the name of the target, for errors."""

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
        if self.sends_json:
            client.meta.events.register("provide-client-params", _take_json)
            client.meta.events.register("before-call", _put_json)
        return client


_clients = ProcessClients[AwsAccess]()


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
