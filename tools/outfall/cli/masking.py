"""Texts that people see, without credentials."""

from __future__ import annotations

import re
from typing import Any

from outfall.location import masked

# Lengths are bounded, or a long word would be gone through from each of its letters on.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}://[^\s\"'<>\\]+")
_WORD = re.compile(r"\S+")
_PASSWORD = re.compile(r"(\b[a-z_.]{0,40}pass(?:word|wd|phrase)\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Mask user, password, query and fragment of every URL in a text, and what stands behind `password=`.

    Rather too much: all up to the last `@` of a word is taken for credentials.
    """
    text = _WORD.sub(lambda found: _without_user(found[0]), text)
    return _PASSWORD.sub(r"\1***", _URL.sub(lambda found: masked(found[0]), text))


def _without_user(word: str) -> str:
    # By the last @, since a password may hold what ends a URL: a quote, a slash, an @.
    scheme, _, rest = word.partition("://")
    _, at, place = rest.rpartition("@")
    return f"{scheme}://***@{place}" if at else word


def all_without_credentials(value: Any) -> Any:
    """Mask all texts of a JSON value, keys of objects left as they are."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: all_without_credentials(item) for key, item in value.items()}
    return [all_without_credentials(item) for item in value] if isinstance(value, list) else value
