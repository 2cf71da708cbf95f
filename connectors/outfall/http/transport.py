"""One request and its response, and the interface of the HTTP clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Headers = tuple[tuple[str, str], ...]
"""Names and values, in order."""


class Call(NamedTuple):
    """One attempt of one request."""

    method: str
    url: str
    """With its query, escaped."""
    body: bytes
    headers: Headers
    """The common headers of such requests, without `Host` and `Content-Length`."""
    key: Headers
    """The idempotency key header, if any."""
    trusted: bool
    """Whether credentials may be sent to the URL."""
    deadline: float
    """When it must have ended, on the monotonic clock."""
    repeatable: bool
    """Whether the server may receive it more than once: it has a key, or the method is idempotent (RFC 9110 §9.2.2)."""


@dataclass(frozen=True)
class Response:
    """A response."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; a repeated header is joined by commas."""
    body: bytes
    """At most the requested number of bytes, not decoded."""
    whole: bool = True
    """Whether the body is complete."""

    def excerpt(self) -> str:
        """Return the body's beginning as text."""
        return self.body[:4000].decode("utf-8", "replace")


class Fault(Enum):
    """Why there is no response."""

    NOT_SENT = "nothing was sent"
    LOST = "the response was lost"
    """The server may have acted on the request."""
    LATE = "no response in time"
    """The server may have acted on the request."""
    CONFIGURATION = "it can never be sent"
    """The host name is unknown, its certificate is not trusted, or an option does not work here."""


class ExchangeError(Exception):
    """There is no response. `why` is the cause, without secrets."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(f"{fault.value}: {why}")
        self.fault = fault
        self.why = why


class Transport(ABC):
    """Carries requests: the whole interface to a client library. Used by many threads concurrently.

    transport = ClientTransport(options)
    response = transport.exchange(call)
    transport.close()
    """

    @abstractmethod
    def exchange(self, call: Call) -> Response:
        """Send a request and wait for its response; raise `ExchangeError` if there is none.

        Follows no redirect; repeats at most what `call.repeatable` allows.
        """

    def start(self, call: Call, done: Callable[[Response | ExchangeError], None]) -> bool:
        """Send a request without waiting for its response. Return whether this transport supports it.

        If not, use `exchange`. `done` is called with the result, once, by another thread, but not after `close`; it
        must not block.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Cancel requests in flight, and close unused connections."""
