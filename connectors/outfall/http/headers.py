"""What may stand in a header (RFC 9110 §5.5)."""

from __future__ import annotations

import re

from outfall.errors import ConfigurationError

_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|^\s|\s$")


def checked(what: str, value: str) -> str:
    """Return a header's value, or a part of one, that is fit to be sent.

    Args:
        what: what it is the value of, for the error, which does not show the value: it may be a secret.
        value: from the user, or from a server.

    Raises:
        ConfigurationError: it would be another header, or none.
    """
    try:
        value.encode("latin-1")
        bad = _BAD_VALUE.search(value) is not None
    except UnicodeEncodeError:
        bad = True
    if bad:
        raise ConfigurationError(
            f"{what} holds a character that no header may hold",
            do="take out line breaks, blanks at its ends and characters beyond Latin-1; a file's last line break is"
            " taken off by itself",
        )
    return value
