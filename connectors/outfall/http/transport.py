"""One request and its response, and the small interface of what carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Headers = tuple[tuple[str, str], ...]
"""Names and values, in their order."""


class Call(NamedTuple):
    """One try of one request."""

    method: str
    url: str
    """With its query, and escaped."""
    body: bytes
    headers: Headers
    """What all such requests carry, without `Host` and `Content-Length`."""
    key: Headers
    """The idempotency key's header, or nothing."""
    trusted: bool
    """Whether it goes where credentials may go."""
    deadline: float
    """When it must be over, on the monotonic clock."""
    repeatable: bool
    """Whether the server may see it twice: a key names it, or the method is idempotent (RFC 9110 §9.2.2)."""


@dataclass(frozen=True)
class Response:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; a header that stands more than once is joined by commas."""
    body: bytes
    """At most as much as was asked for, not decoded."""
    whole: bool = True
    """Whether that is all of it."""

    def excerpt(self) -> str:
        """Return the body's beginning as text."""
        return self.body[:4000].decode("utf-8", "replace")


class Fault(Enum):
    """Why there is no answer."""

    NOT_SENT = "nothing was sent"
    LOST = "the answer was lost"
    """The server may have acted on the request."""
    LATE = "no answer in time"
    """Likewise."""
    CONFIGURATION = "it will never be sent"
    """The host has no name, its certificate is not trusted, an option does not work here."""


class ExchangeError(Exception):
    """There is no answer.

    Args:
        fault: what is known about it.
        why: the cause, free of secrets.
    """

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(f"{fault.value}: {why}")
        self.fault = fault
        self.why = why


class Transport(ABC):
    """Carries requests: all that the sink needs of a client library. Used by many threads at once.

    transport = ClientTransport(options)
    response = transport.exchange(call)
    transport.close()
    """

    @abstractmethod
    def exchange(self, call: Call) -> Response:
        """Send a request and wait for its response. Follows no redirect; repeats at most what `call.repeatable` allows.

        Raises:
            ExchangeError: there is none.
        """

    def start(self, call: Call, done: Callable[[Response | ExchangeError], None]) -> bool:
        """Send a request without waiting for its response.

        Args:
            call: the request.
            done: is told what came of it; not after `close`. Called once, by another thread, and must not block.

        Returns:
            Whether this transport can do that. If not, `exchange` is the way.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """End what is under way, and let go of connections that nobody uses."""
