"""Secrets in requests that a server may echo, and that no text may show."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus, urljoin, urlsplit

import requests

from outfall.urls import MASK

_SHORTEST = 4
"""Characters. Shorter values that may not be secrets occur in too many words to mask each."""


def in_url(url: str) -> Iterator[str]:
    """Return the values in the query of a URL, or of a URL template: each may be a token."""
    for pair in urlsplit(url).query.split("&"):
        value = pair.partition("=")[2]
        if value and "{" not in value:
            yield from (value, unquote_plus(value)) if len(value) >= _SHORTEST else (pair,)


def in_header(value: str) -> Iterator[str]:
    """Return a header's value, the part after a scheme such as `Bearer`, and the decoded value of `Basic`."""
    scheme, _, rest = value.partition(" ")
    yield value
    if len(rest) >= _SHORTEST:
        yield rest
    if scheme.lower() == "basic":
        try:
            password = base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return
        yield from (password.decode("utf-8", "ignore"), password.decode("latin-1"))


def masked_location(location: str, place: str, known: str) -> str:
    """Return the target of a redirect for a text: its origin, and the path only if it is the path of the URL.

    The path of the header's value `location` may be a token. `place` is the URL that it is relative to, and `known` the
    URL of the options.
    """
    try:
        target, own = urlsplit(urljoin(place, location.strip())), urlsplit(known)
    except ValueError:
        return MASK
    if not location or not target.hostname:
        return MASK if location else ""
    origin = f"{target.scheme}://{target.netloc.rpartition('@')[2]}"
    same = target.path.rstrip("/") in (own.path.rstrip("/"), "")
    return f"{origin}{target.path if same else f'/{MASK}'}"


def in_session(session: requests.Session | None, auth: Any) -> Iterator[str]:
    """Return what a session and an auth object of `requests` add to requests, as far as it is visible."""
    if session is not None:
        usual = requests.utils.default_headers()
        given = [(name, value) for name, value in session.headers.items() if usual.get(name) != value]
        values = [_text(value) for _, value in given] + [_text(value) for value in session.cookies.values()]
        values += [_text(value) for value in dict(session.params or {}).values()]
        yield from _long(part for value in values for part in in_header(value))
    for each in (auth, session and session.auth):
        if isinstance(each, tuple):
            yield from _long(map(_text, each[1:]))
        elif each is not None:
            yield from _long(
                _text(value) for name, value in getattr(each, "__dict__", {}).items() if name != "username"
            )


def in_proxies(*proxies: Mapping[str, str]) -> Iterator[str]:
    """Return the passwords in proxy addresses, by scheme, and their form for Basic authentication."""
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
