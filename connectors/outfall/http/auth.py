"""Credentials: the headers that requests carry, and their renewal after a rejection.

All requests that wait for an OAuth2 token share one token request (RFC 6749 §4.4.2).
"""

from __future__ import annotations

import base64
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from urllib.parse import quote_plus

import requests
import urllib3

from outfall.async_sink.responses import read_body
from outfall.http.connecting import client_certificate, trusted
from outfall.http.options import HttpOptions
from outfall.http.transport import Headers
from outfall.options import known_values, resolve_secret
from outfall.redaction import Redaction
from outfall.tokens import TokenCache, checked_header, no_token, token_in
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
        return Static(lambda: checked_header("bearer_token", f"Bearer {resolve_secret(bearer)}"))
    if name is not None and password is not None:
        return Static(lambda: _basic(name, resolve_secret(password)))
    if options.oauth2_token_url is not None:
        return OAuth2(options, TokenRequest(options))
    return Anonymous()


def _basic(name: str, password: str) -> str:
    """RFC 7617, in UTF-8."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


_LONGEST = 1 << 16


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
        status, body = self._ask()
        return token_in(status, body, self._place, self._masked)

    def _ask(self) -> tuple[int, bytes]:
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
            raise no_token(self._place, type(error).__name__) from None
        if body.lacks is not None and not body.too_long:
            raise no_token(self._place, body.lacks)
        return response.status_code, body.data

    def _masked(self, text: str) -> str:
        return Redaction(known_values(self._options.oauth2_client_secret)).hide(text)
