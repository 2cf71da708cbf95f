"""Secrets that a server may say back, taken out of texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

import requests

_SHORTEST = 4
"""Characters. Of what may be no secret at all, shorter values stand in too many words to be taken out of each."""


class Hidden:
    """Takes secrets out of texts, as they are, percent-encoded, and as JSON writes them.

    Args:
        secrets: empty ones are left out.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._forms = frozenset(_forms(secrets))

    def hide(self, text: str, more: Iterable[str] = ()) -> str:
        """Return a text with `***` in place of each secret, and of each in `more`."""
        # A secret that holds another one goes first, or the rest of it would stay.
        for form in sorted(self._forms.union(_forms(more)), key=len, reverse=True):
            text = text.replace(form, "***")
        return text


def in_url(url: str) -> Iterator[str]:
    """What the query of a URL, or of a template of one, says by itself: it may be a token."""
    for pair in urlsplit(url).query.split("&"):
        value = pair.partition("=")[2]
        if value and "{" not in value:
            yield from (value, unquote_plus(value)) if len(value) >= _SHORTEST else (pair,)


def in_session(session: requests.Session | None, auth: Any) -> Iterator[str]:
    """What a session and an auth object of `requests` add to requests, as far as it can be told by looking at them."""
    if session is not None:
        usual = requests.utils.default_headers()
        given = [(name, value) for name, value in session.headers.items() if usual.get(name) != value]
        values = [_text(value) for _, value in given] + [_text(value) for value in session.cookies.values()]
        values += [_text(value) for value in dict(session.params or {}).values()]
        yield from _long(part for value in values for part in (value, value.partition(" ")[2]))
    for each in (auth, session and session.auth):
        if isinstance(each, tuple):
            yield from _long(map(_text, each[1:]))
        elif each is not None:
            yield from _long(
                _text(value) for name, value in getattr(each, "__dict__", {}).items() if name != "username"
            )


def in_proxies(*proxies: Mapping[str, str]) -> Iterator[str]:
    """What the addresses of proxies, by scheme, make their requests carry: passwords, and these in Basic's form."""
    for proxy in (address for by_scheme in proxies for address in by_scheme.values()):
        user, password = requests.utils.get_auth_from_url(proxy)
        if password:
            yield from (password, requests.auth._basic_auth_str(user, password).partition(" ")[2])


def _long(values: Iterable[str]) -> Iterator[str]:
    return (value for value in values if len(value) >= _SHORTEST)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def _forms(secrets: Iterable[str]) -> Iterator[str]:
    for secret in filter(None, secrets):
        yield from (secret, quote(secret, safe=""), quote(secret), quote_plus(secret))
        yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
