"""Access tokens of OAuth2's client credentials (RFC 6749 §4.4): their responses, and a cache that threads share.

All requests that wait for a token share one token request.
"""

from __future__ import annotations

import copy
import os
import re
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.serde import parse_json


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
            raise _late("another thread has requested it, and there was no response in time")
        if fetching.token is None:
            raise (copy.copy(fetching.failure) if fetching.failure else _late("the request for it failed unexpectedly"))
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


def _late(why: str) -> TransientError:
    return TransientError(
        "oauth2_token_url returned no token",
        why=why,
        do="if the query has failed, start it again; if the error persists, find out why that server is slow",
    )


_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|^\s|\s$")


def checked_header(what: str, value: str) -> str:
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


_SHOWN = 200
"""Maximum number of characters of a description of an error."""


def token_in(status: int, body: bytes, place: str, hide: Callable[[str], str]) -> tuple[str, float | None]:
    """Return the token of a response (RFC 6749 §5), and its lifetime in seconds, `None` if the server states none.

    `place` is the server without secrets, and `hide` masks secrets in its words. Raises `ConfigurationError` if the
    server rejects the client, or the token is not a valid header value, and `TransientError` for a server error.
    """
    if status >= 500 or status in (408, 429):
        raise no_token(place, f"it responded with {status}")
    try:
        answer = parse_json(body)
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    token = answer.get("access_token")
    kind = str(answer.get("token_type", "Bearer"))
    if status != 200 or not isinstance(token, str) or kind.lower() != "bearer":
        # Only what describes the error (RFC 6749 §5.2): the rest may contain a token.
        texts = [answer.get(name) for name in ("error", "error_description")]
        told = [repr(hide(text)[:_SHOWN]) for text in texts if isinstance(text, str)]
        raise ConfigurationError(
            f"{place} returned no bearer token",
            why=f"it responded with {status}" + (f", {': '.join(told)}" if told else ""),
            do="correct oauth2_client_id, oauth2_client_secret, oauth2_scope and oauth2_token_url",
        )
    checked_header(f"the token of {place}", f"Bearer {token}")
    seconds = answer.get("expires_in")
    try:
        return token, None if seconds is None else float(seconds)
    except (TypeError, ValueError):
        return token, None


def no_token(place: str, why: str) -> TransientError:
    """Return the error for a server that returned no token, which may pass."""
    return TransientError(
        f"{place} returned no token",
        why=why,
        do="if the query has failed, start it again; if the error persists, find out why that server fails",
    )
