"""Texts that people see, without credentials."""

from __future__ import annotations

import re
from typing import Any

from outfall.location import masked

# The scheme's length is bounded, or a long word would be gone through from each of its letters on.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}://[^\s\"'<>\\]+")


def without_credentials(text: str) -> str:
    """Mask user, password, query and fragment of every URL in a text."""
    return _URL.sub(lambda found: masked(found[0]), text)


def all_without_credentials(value: Any) -> Any:
    """Mask all texts of a JSON value, keys of objects left as they are."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: all_without_credentials(item) for key, item in value.items()}
    return [all_without_credentials(item) for item in value] if isinstance(value, list) else value
