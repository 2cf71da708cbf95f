"""Requests to a cluster: authentication, compression, the meaning of statuses, and the records of steps."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

import urllib3
from pydantic import Field, SecretStr, field_validator, model_validator
from urllib3.exceptions import HTTPError, SSLError

from outfall.async_sink.options import Concurrency
from outfall.async_sink.responses import LARGEST, Body, bounded_heads, parsed_object, read_body, retry_after
from outfall.connections import ServerOptions
from outfall.errors import ConfigurationError, TargetError, TransientError, require_extra
from outfall.options import Duration, resolve_secret
from outfall.process_clients import ProcessClients
from outfall.redaction import Redaction
from outfall.serde import parse_json
from outfall.tls import verifying_context
from outfall.unencrypted_secrets import Sent, given
from outfall.urls import HTTP, split_server
from outfall.versioned import RecordStore

PASSING = (429, 500, 502, 503, 504)
"""Statuses that pass: too many requests, and servers that are busy, starting or away."""


def is_block(error: Any) -> bool:
    """Whether an error of the cluster is a block, for example of a full disk, which ends with its cause."""
    return isinstance(error, dict) and str(error.get("type", "")).endswith("block_exception")


@dataclass(frozen=True)
class ClusterResponse:
    """The response of a cluster."""

    status: int
    body: Any
    """Of JSON; otherwise text."""
    after: float | None
    """The pause in seconds that it requests (`Retry-After`)."""

    @property
    def passes(self) -> bool:
        """Whether it is an error that may pass: too many requests, servers that are busy or away, full disks."""
        return self.status in PASSING or (self.status >= 300 and is_block(self._error()))

    def _error(self) -> Any:
        return self.body.get("error") if isinstance(self.body, dict) else self.body

    def reason(self) -> str:
        """Return the error in the server's words, shortened."""
        error = self._error()
        if isinstance(error, dict):
            error = f"{error.get('type')}: {error.get('reason')}"
        return f"status {self.status}, {str(error)[:500]}"


class OpenSearchConnection(ServerOptions, Concurrency):
    """The options of a connection to a cluster."""

    clients = ProcessClients[Any]()

    url: str = Field(description="The cluster: `https://host:port`. Without credentials.")
    api_key: SecretStr | None = Field(default=None, description="An API key, as the header `Authorization: ApiKey …`.")
    aws_region: str | None = Field(
        default=None, description="Signs requests (SigV4) for a domain in this region, with boto3's credentials."
    )
    aws_service: Literal["es", "aoss"] = Field(default="es", description="`aoss` for OpenSearch Serverless.")
    gzip: bool = Field(default=True, description="Whether the bodies of requests are compressed.")
    read_timeout: Duration = Field(
        default=timedelta(seconds=60),
        description="Maximum time to wait for a response before the request is sent again.",
    )
    max_in_flight_requests: int = Field(
        default=4, gt=0, description="Maximum number of concurrent bulk requests per task."
    )

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        split_server(value, HTTP, "an http or https URL")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _connects(self) -> Self:
        ways = [self.username or self.password, self.api_key, self.aws_region]
        if sum(way is not None for way in ways) > 1:
            raise ValueError("set only one of username with password, api_key and aws_region")
        return self

    def secrets_sent(self) -> Iterator[Sent]:
        yield Sent("url", self.url, given(self, "password", "api_key"))

    def make(self) -> OpenSearchClient:
        """Create a client. It connects when it is used."""
        return OpenSearchClient(self)


class OpenSearchClient:
    """Sends requests; threads share it."""

    def __init__(self, access: OpenSearchConnection) -> None:
        """Read the secrets. Raises `ConfigurationError` if one cannot be read, and `ImportError` without boto3."""
        self._access = access
        self._headers = {"Content-Type": "application/json"}
        secrets = []
        if access.username is not None or access.password is not None:
            password = "" if access.password is None else resolve_secret(access.password)
            pair = base64.b64encode(f"{access.username or ''}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
            secrets = [password]
        if access.api_key is not None:
            secrets = [resolve_secret(access.api_key)]
            self._headers["Authorization"] = f"ApiKey {secrets[0]}"
        self._hidden = Redaction(secrets)
        self._signer = _signer() if access.aws_region else None
        try:
            self._pool = bounded_heads(
                urllib3.PoolManager(
                    maxsize=access.max_in_flight_requests,
                    ssl_context=verifying_context(access.ca_bundle) if access.url.startswith("https:") else None,
                    timeout=urllib3.Timeout(
                        connect=access.connect_timeout.total_seconds(), read=access.read_timeout.total_seconds()
                    ),
                    retries=False,  # the base retries and counts
                )
            )
        except OSError as error:
            raise ConfigurationError("the file of ca_bundle cannot be read", why=str(error), do="correct it") from error

    def send(self, method: str, path: str, body: bytes | None = None, *, kind: str | None = None) -> ClusterResponse:
        """Send one request.

        Raises `TransientError` if the cluster cannot be reached, and `TargetError` if its certificate is not trusted.
        """
        headers = dict(self._headers)
        if kind is not None:
            headers["Content-Type"] = kind
        if body is not None and self._access.gzip and len(body) > _WORTH_IT:
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        url = self._access.url + path
        if self._signer is not None:
            headers = self._signed(method, url, body, headers)
        try:
            found = self._pool.request(method, url, body=body, headers=headers, redirect=False, preload_content=False)
        except SSLError as error:
            raise TargetError(
                f"{self._access.url} has no trusted certificate", why=str(error), do="correct url or ca_bundle"
            ) from error
        except HTTPError as error:
            raise TransientError(
                f"{self._access.url} does not respond", why=str(error), do="check the cluster, the url and the network"
            ) from error
        deadline = time.monotonic() + self._access.read_timeout.total_seconds()
        content = read_body(found, most=LARGEST, deadline=deadline)
        after = retry_after(found.headers.get("Retry-After"), longest=_DAY)
        # A cluster or a gateway may repeat what it was sent. Signed requests have credentials of their own.
        signed = [headers[name] for name in _SIGNED if name in headers] if self._signer else []

        def hide(text: str) -> str:
            return self._hidden.hide(text, signed)

        if found.status >= 300:
            return ClusterResponse(found.status, _hidden_strings(_error_in(content), hide), after)
        what = f"the response of {self._access.url} with status {found.status}"
        return ClusterResponse(found.status, _hidden_errors(parsed_object(content, what, hide), hide), after)

    def _signed(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> dict[str, str]:
        session, request_of, auth_of = self._signer or _signer()
        request = request_of(method=method, url=url, data=body, headers=dict(headers))
        credentials = session.get_credentials()
        if credentials is None:
            raise ConfigurationError("boto3 finds no AWS credentials", do="set them, or omit aws_region")
        auth_of(credentials.get_frozen_credentials(), self._access.aws_service, self._access.aws_region).add_auth(
            request
        )
        return dict(request.headers)


_WORTH_IT = 1000
"""Bytes. A smaller body is not compressed."""


def _signer() -> Any:
    require_extra("aws", "boto3")
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.session import Session

    return Session(), AWSRequest, SigV4Auth


def _error_in(content: Body) -> Any:
    """Return the content of an error response as JSON, else as text. Its status determines the outcome."""
    try:
        return parse_json(content.data)
    except ValueError:
        return content.data[:_SHOWN].decode(errors="replace")


def _hidden_strings(value: Any, hide: Callable[[str], str]) -> Any:
    """Hide secrets in all strings of a JSON value, which are shortened."""
    if isinstance(value, str):
        return hide(value[:_SHOWN])
    if isinstance(value, dict):
        return {hide(key): _hidden_strings(item, hide) for key, item in value.items()}
    return [_hidden_strings(item, hide) for item in value] if isinstance(value, list) else value


def _hidden_errors(body: dict[str, Any], hide: Callable[[str], str]) -> dict[str, Any]:
    """Hide secrets in the errors of single documents."""
    for found in (*listed(body.get("items")), *listed(body.get("docs"))):
        for item in (found, *found.values()) if isinstance(found, dict) else ():
            if isinstance(item, dict) and "error" in item:
                item["error"] = _hidden_strings(item["error"], hide)
    return body


def listed(value: Any) -> list[Any]:
    """Return a value of a response if it is a list, and no elements otherwise."""
    return value if isinstance(value, list) else []


_SIGNED = ("Authorization", "X-Amz-Security-Token")
_SHOWN = 1000
"""Maximum number of bytes of a response that is no JSON."""
_DAY = 86_400.0
"""Seconds. The base bounds the pause by `max_retry_after`."""


def check(response: ClusterResponse, what: str) -> ClusterResponse:
    """Return a successful response. Raises `TransientError` or `TargetError` for another one."""
    if response.status < 300:
        return response
    if response.passes:
        raise TransientError(f"{what} failed", why=response.reason(), do="try again; if it persists, check the cluster")
    do = "correct the credentials or their permissions" if response.status in (401, 403) else "correct the options"
    raise TargetError(f"{what} failed", why=response.reason(), do=do)


class OpenSearchRecords(RecordStore):
    """Records as documents of an index, replaced by sequence number."""

    INDEX = "outfall-records"

    def __init__(self, access: OpenSearchConnection) -> None:
        """Keep records in this cluster."""
        self.where = f"opensearch:{urlsplit(access.url).netloc}"
        self._client = access.client()

    def read(self, name: str) -> str | None:
        found = self._read(name)
        return None if found is None else self._text(name, found)

    def _text(self, name: str, found: Any) -> str:
        source = found.get("_source")
        text = source.get("text") if isinstance(source, dict) else None
        if not isinstance(text, str) or not {"_seq_no", "_primary_term"} <= found.keys():
            raise TargetError(
                f"the document {name} of the index {self.INDEX} is not a record of Outfall",
                why="it has no text: something else has written it",
                do="restore the document; write rows into other indices",
            )
        return text

    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        path, condition = f"/{self.INDEX}/_doc/{quote(name, safe='')}", "op_type=create"
        if old is not None:
            found = self._read(name)
            if found is None or self._text(name, found) != old:
                return False
            condition = f"if_seq_no={found['_seq_no']}&if_primary_term={found['_primary_term']}"
        if new is None:
            response = self._client.send("DELETE", f"{path}?{condition}")
        else:
            response = self._client.send("PUT", f"{path}?{condition}", json.dumps({"text": new}).encode())
        if response.status in (404, 409) and (response.status == 409 or new is None):
            return False
        check(response, f"writing the record {name} into the index {self.INDEX}")
        return True

    def _read(self, name: str) -> Any:
        # By id, which is not delayed by refreshes.
        response = self._client.send("GET", f"/{self.INDEX}/_doc/{quote(name, safe='')}")
        if response.status == 404:
            return None
        return check(response, f"reading the record {name} of the index {self.INDEX}").body
