"""Credentials: the headers that requests carry, and their renewal after a rejection.

All requests that wait for an OAuth2 token share one token request (RFC 6749 §4.4.2).
"""

from __future__ import annotations

import base64
import copy
import hashlib
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import requests
import urllib3

from outfall.async_sink.responses import read_body
from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.http.connecting import client_certificate, trusted
from outfall.http.options import HttpOptions
from outfall.http.transport import Headers
from outfall.options import known_values, resolve_secret
from outfall.redaction import Redaction
from outfall.serde import parse_json
from outfall.urls import masked


class Credentials(ABC):
    """Creates the headers for authentication. Used by many threads concurrently."""

    @abstractmethod
    def headers(self, deadline: float) -> Headers:
        """Return the current headers. Waits for them until `deadline`, on the monotonic clock.

        Raises `OutfallError` if the headers are not available.
        """

    @abstractmethod
    def ready(self) -> Headers | None:
        """Return the current headers; `None` if they must be fetched first, which may block."""

    def renew(self, refused: Headers) -> bool:
        """Look for new credentials, after a 401 for the headers that `headers` returned before.

        Returns whether `headers` now returns others, so that another attempt makes sense.
        """
        return False


class Anonymous(Credentials):
    """No credentials."""

    def headers(self, deadline: float) -> Headers:
        return ()

    def ready(self) -> Headers:
        return ()


class Static(Credentials):
    """A token or password from the options. It is read again after a rejection, because a file may have been renewed.

    `make` reads the secret and creates the value of `Authorization`.
    """

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._headers: Headers = (("Authorization", make()),)

    def headers(self, deadline: float) -> Headers:
        return self._headers

    def ready(self) -> Headers:
        return self._headers

    def renew(self, refused: Headers) -> bool:
        self._headers = (("Authorization", self._make()),)
        return self._headers != refused


@dataclass(frozen=True)
class Token:
    """An access token (RFC 6749 §5.1)."""

    value: str
    expires_at: float
    """On the monotonic clock; infinity if the server did not state it."""


class _Fetch:
    """A token that one thread requests and others wait for."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.token: Token | None = None
        self.failure: OutfallError | None = None
        """Why there is no token, if known."""


class TokenCache:
    """The tokens of one process. While a token is fetched, all requests that need it wait and share the result."""

    MARGIN = 60.0
    """A token is not used in the last seconds of its life: this many, or a tenth of its life if that is less."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._fetches: dict[Hashable, _Fetch] = {}
        self._tokens: dict[Hashable, Token] = {}

    def get(self, key: Hashable, fetch: Callable[[], tuple[str, float | None]], deadline: float = float("inf")) -> str:
        """Return a valid token of the owner `key`.

        `fetch` requests a token, with its own timeouts. It returns it with its lifetime in seconds, if the server
        states one. `deadline`, on the clock, ends the wait for another thread's fetch. Raises `OutfallError` if the
        fetch failed, for all waiting requests, or takes too long.
        """
        good = self.peek(key)
        if good is not None:
            return good
        key = (os.getpid(), key)
        with self._lock:
            token = self._good(key)
            if token is not None:
                return token.value
            fetching = self._fetches.get(key)
            if fetching is None:
                ours = self._fetches[key] = _Fetch()
        return self._ask(key, ours, fetch) if fetching is None else self._await(key, fetching, deadline)

    def _ask(self, key: Hashable, ours: _Fetch, fetch: Callable[[], tuple[str, float | None]]) -> str:
        asked = self._clock()
        try:
            value, seconds = fetch()
            life = float("inf") if seconds is None else max(seconds - min(self.MARGIN, seconds / 10), 0.0)
            ours.token = Token(value, asked + life)
            return value
        except OutfallError as error:
            # Each waiting request gets its own error, because its reporter adds notes to it.
            ours.failure = copy.copy(error)
            raise
        finally:
            with self._lock:
                if ours.token is not None:
                    self._tokens[key] = ours.token
                self._drop(key, ours)
            ours.over.set()

    def _await(self, key: Hashable, fetching: _Fetch, deadline: float) -> str:
        left = deadline - self._clock()
        if not fetching.over.wait(min(left, threading.TIMEOUT_MAX)):
            with self._lock:
                # The next request starts a new fetch, because this one may never end.
                self._drop(key, fetching)
            raise _no_token("another thread has requested it, and there was no response in time")
        if fetching.token is None:
            raise (
                copy.copy(fetching.failure) if fetching.failure else _no_token("the request for it failed unexpectedly")
            )
        return fetching.token.value

    def _drop(self, key: Hashable, fetching: _Fetch) -> None:
        if self._fetches.get(key) is fetching:
            del self._fetches[key]

    def _good(self, key: Hashable) -> Token | None:
        token = self._tokens.get(key)
        return token if token is not None and self._clock() < token.expires_at else None

    def peek(self, key: Hashable) -> str | None:
        """Return a valid token, if there is one."""
        token = self._good((os.getpid(), key))
        return None if token is None else token.value

    def forget(self, key: Hashable, value: str) -> None:
        """Never return this token again."""
        key = (os.getpid(), key)
        with self._lock:
            token = self._tokens.get(key)
            if token is not None and token.value == value:
                del self._tokens[key]


def _no_token(why: str) -> TransientError:
    return TransientError(
        "oauth2_token_url returned no token",
        why=why,
        do="if the query has failed, start it again; if the error persists, find out why that server is slow",
    )


_tokens = TokenCache()


class OAuth2(Credentials):
    """A token of the client credentials grant (RFC 6749 §4.4), shared by the tasks of a process through a cache."""

    def __init__(
        self, options: HttpOptions, fetch: Callable[[], tuple[str, float | None]], cache: TokenCache = _tokens
    ) -> None:
        secret = options.oauth2_client_secret
        digest = hashlib.sha256(secret.get_secret_value().encode() if secret else b"").hexdigest()
        self._key = (options.oauth2_token_url, options.oauth2_client_id, options.oauth2_scope, digest)
        self._fetch = fetch
        self._cache = cache

    def headers(self, deadline: float) -> Headers:
        return (("Authorization", f"Bearer {self._cache.get(self._key, self._fetch, deadline)}"),)

    def ready(self) -> Headers | None:
        token = self._cache.peek(self._key)
        return None if token is None else (("Authorization", f"Bearer {token}"),)

    def renew(self, refused: Headers) -> bool:
        for _, value in refused:
            self._cache.forget(self._key, value.removeprefix("Bearer "))
        return True


def credentials(options: HttpOptions) -> Credentials:
    """Create the credentials that the options specify.

    Raises `ConfigurationError` if a secret cannot be read here, or is not a valid header value.
    """
    bearer, name, password = options.bearer_token, options.username, options.password
    if bearer is not None:
        return Static(lambda: checked("bearer_token", f"Bearer {resolve_secret(bearer)}"))
    if name is not None and password is not None:
        return Static(lambda: _basic(name, resolve_secret(password)))
    if options.oauth2_token_url is not None:
        return OAuth2(options, TokenRequest(options))
    return Anonymous()


def _basic(name: str, password: str) -> str:
    """RFC 7617, in UTF-8."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|^\s|\s$")


def checked(what: str, value: str) -> str:
    """Return a header value, or a part of one, from the user or from a server, after validation.

    Raises `ConfigurationError` if the value would add another header, or is not valid in one. The error shows `what`,
    and not the value, because it may be a secret.
    """
    try:
        value.encode("latin-1")
        bad = _BAD_VALUE.search(value) is not None
    except UnicodeEncodeError:
        bad = True
    if bad:
        raise ConfigurationError(
            f"{what} contains a character that is not allowed in a header",
            do="remove line breaks, leading and trailing spaces, and characters outside Latin-1; the last line"
            " break of a file is removed automatically",
        )
    return value


_LONGEST = 1 << 16
_SHOWN = 200
"""Maximum number of characters of a description of an error."""


class TokenRequest:
    """Fetches a token with the client credentials, by HTTP Basic, which §2.3.1 requires of every server."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._place = masked(str(options.oauth2_token_url))

    def __call__(self) -> tuple[str, float | None]:
        """Return a token and its lifetime in seconds, `None` if the server does not state it.

        Raises `ConfigurationError` if the server rejects the client, or the token is not a valid header value, and
        `TransientError` if the server does not respond, or returns a server error.
        """
        status, answer = self._ask()
        if status >= 500 or status in (408, 429):
            raise self._failed(f"it responded with {status}")
        token = answer.get("access_token")
        kind = str(answer.get("token_type", "Bearer"))
        if status != 200 or not isinstance(token, str) or kind.lower() != "bearer":
            # Only what describes the error (RFC 6749 §5.2): the rest may contain a token.
            texts = [answer.get(name) for name in ("error", "error_description")]
            told = [repr(self._masked(text)[:_SHOWN]) for text in texts if isinstance(text, str)]
            raise ConfigurationError(
                f"{self._place} returned no bearer token",
                why=f"it responded with {status}" + (f", {': '.join(told)}" if told else ""),
                do="correct oauth2_client_id, oauth2_client_secret, oauth2_scope and oauth2_token_url",
            )
        checked(f"the token of {self._place}", f"Bearer {token}")
        seconds = answer.get("expires_in")
        try:
            return token, None if seconds is None else float(seconds)
        except (TypeError, ValueError):
            return token, None

    def _ask(self) -> tuple[int, dict[str, Any]]:
        options = self._options
        form = {"grant_type": "client_credentials"} | ({"scope": options.oauth2_scope} if options.oauth2_scope else {})
        secret = resolve_secret(options.oauth2_client_secret) if options.oauth2_client_secret else ""
        try:
            with requests.post(
                str(options.oauth2_token_url),
                data=form,
                auth=(quote_plus(options.oauth2_client_id or ""), quote_plus(secret)),
                headers={"Accept": "application/json"},
                timeout=(options.connect_timeout.total_seconds(), options.read_timeout.total_seconds()),
                verify=trusted(options) if options.verify else False,
                cert=client_certificate(options),
                allow_redirects=False,
                stream=True,
            ) as response:
                late = time.monotonic() + options.read_timeout.total_seconds()
                body = read_body(response.raw, most=_LONGEST, deadline=late)
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            # Without the cause, whose text contains the URL with its query.
            raise self._failed(type(error).__name__) from None
        if body.lacks is not None and not body.too_long:
            raise self._failed(body.lacks)
        try:
            answer = parse_json(body.data)
        except ValueError:
            answer = {}
        return response.status_code, answer if isinstance(answer, dict) else {}

    def _masked(self, text: str) -> str:
        return Redaction(known_values(self._options.oauth2_client_secret)).hide(text)

    def _failed(self, why: str) -> TransientError:
        return TransientError(
            f"{self._place} returned no token",
            why=why,
            do="if the query has failed, start it again; if the error persists, find out why that server fails",
        )
