"""How long a target that a step has never reached is waited for.

Before the first BEGIN of a step, a mistake in an address is likelier than an outage. So what no outage explains fails
at once, and the rest after `PATIENCE`. A later run may meet a failover, so it waits as long as the sink's options say.

A recovery log knows whether its step has begun only once it is read. Until then, the batch tells: a query in batch 0
has completed no epoch.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from outfall.errors import ConfigurationError, OutfallError, TargetError, TransientError, cause_and_remedy

PATIENCE = 20.0
"""Seconds until a server that a step has never reached counts as wrongly addressed."""

_first: ContextVar[bool] = ContextVar("_first", default=False)
_once: ContextVar[bool] = ContextVar("_once", default=False)


@contextmanager
def one_attempt() -> Iterator[None]:
    """Retry nothing in this thread within the body, and ignore a `TransientError`.

    For checks before `SupportsTarget.check_target`, which repeats them and knows whether the step has begun once.
    """
    before = _once.set(True)
    try:
        with suppress(TransientError):
            yield
    finally:
        _once.reset(before)


@contextmanager
def first_contact(step_id: str) -> Iterator[None]:
    """Bound the retries of this thread within the body.

    An error of the body that no outage explains becomes a `TargetError` that says what is wrong with the address.
    """
    with _bounded("A step that has never begun waits {:g} s, not until its retry_deadline."):
        try:
            yield
        except (TransientError, TargetError) as error:
            found = never_passes(error)
            if found is None or (isinstance(error, TargetError) and found is UNTRUSTED):
                raise
            raise TargetError("the target cannot be reached", step=step_id, **_wrong(found, error)) from (
                error.__cause__ or error
            )


@contextmanager
def first_read(step_id: str) -> Iterator[None]:
    """Bound the retries like `first_contact`, while a query in its first batch reads its log for the first time.

    An error of the body that no outage explains becomes a `ConfigurationError`.
    """
    note = "A query in its first batch waits {:g} s for its recovery log, not until its timeout."
    with _as_configuration("the recovery log cannot be reached", note, step=step_id):
        yield


@contextmanager
def while_defined(what: str) -> Iterator[None]:
    """Bound the retries like `first_contact`, while a query is defined: no row has moved that an outage could hold up.

    An error of the body that no outage explains becomes a `ConfigurationError` that begins with `what`.
    """
    with _as_configuration(what, "A query waits {:g} s while it is defined, and its tasks until retry_deadline."):
        yield


@contextmanager
def _as_configuration(what: str, note: str, step: str | None = None) -> Iterator[None]:
    with _bounded(note):
        try:
            yield
        except TransientError as error:
            found = never_passes(error)
            if found is None:
                raise
            raise ConfigurationError(what, step=step, **_wrong(found, error)) from (error.__cause__ or error)


@contextmanager
def _bounded(note: str) -> Iterator[None]:
    before = _first.set(True)
    try:
        yield
    except TransientError as error:
        error.add_note(note.format(PATIENCE))
        raise
    finally:
        _first.reset(before)


def _wrong(found: WrongAddress, error: OutfallError) -> dict[str, Any]:
    return {"why": f"{found.reason}. {cause_and_remedy(error)[0]}", "do": found.do}


def patience(seconds: float) -> float:
    """Return how long to retry: `seconds`, or less at the first contact of a step."""
    if _once.get():
        return 0.0
    return min(seconds, PATIENCE) if _first.get() else seconds


def fails_at_once(error: BaseException) -> bool:
    """Whether an error is not retried at the first contact of a step."""
    return _first.get() and never_passes(error) is not None


@dataclass(frozen=True)
class WrongAddress:
    """What is wrong with an address, as an error of a connection shows it."""

    reason: str
    do: str


UNTRUSTED = WrongAddress(
    "the certificate is not trusted", "name the file of its authority, or correct the name of the host"
)
"""The sink's own advice is better: it names the option."""


def never_passes(error: BaseException) -> WrongAddress | None:
    """Return what no outage explains of a failed connection; `None` if an outage may."""
    for cause in causes_of(error):
        if isinstance(cause, http.client.RemoteDisconnected):
            continue  # of the class of the next ones, and what a restart does too
        if isinstance(cause, UnexpectedProtocolError | http.client.BadStatusLine):
            return WrongAddress(
                "another protocol answers at this address", "correct the host and the port, and whether TLS is used"
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UNTRUSTED
        if isinstance(cause, ssl.SSLError) and cause.reason in NEVER_TLS:
            return WrongAddress("TLS is not possible at this address", "correct the port, or whether TLS is used")
        if isinstance(cause, socket.gaierror) and is_unknown(cause):
            return WrongAddress(
                "the name of the host is unknown", "correct the name of the host, or let this host resolve it"
            )
    return None


class UnexpectedProtocolError(OSError):
    """The cause of a driver's error after which a connector found that the server has another protocol."""


NEVER_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"}
"""Reasons of OpenSSL: the other side does not use TLS, or no common version of it."""


def is_unknown(error: socket.gaierror) -> bool:
    """Whether a name server has responded that a name does not exist."""
    return error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def causes_of(error: BaseException) -> list[BaseException]:
    """Return the error and all its causes: each library wraps them in its own way."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        cause = waiting.pop(0)
        if isinstance(cause, BaseException) and not any(cause is known for known in found):
            found.append(cause)
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
    return found
