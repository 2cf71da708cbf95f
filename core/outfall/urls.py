"""URLs that users give: parsed and shown without repeating what may be a secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

MASK = "***"
"""What every text, `repr` and error shows in place of a secret."""

_BEFORE_AT = re.compile(r"([^:/]*:/{0,2}|//)(.*)@", re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_WITHOUT_SCHEME = re.compile(r"[^/][^:]*:.*@", re.DOTALL)
_PORT = re.compile(r"\[[^\]]*\](:\d{1,5})?|[^:]*:\d{1,5}")
_NETLOC = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/]*)(.*)", re.DOTALL)
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(:.*)?", re.DOTALL)


def scheme_of(text: str) -> str:
    """Return the scheme of a location, in lower case; empty for a path. The rest need not be valid."""
    found = _SCHEME.match(text)
    return found[1].lower() if found else ""


def split_url(text: str) -> SplitResult:
    """Parse a URL (RFC 3986), also with several hosts, each with its port.

    Raises:
        ValueError: The URL is invalid. The text repeats nothing of it, because a part that is not parsed may be a
            password: unlike those of `urllib.parse`.
    """
    try:
        split = urlsplit(text)
        for host in split.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        raise ValueError(
            "cannot be parsed as a URL: percent-encode user and password (@ as %40, : as %3A, / as %2F, [ as %5B), and"
            " write the port as a number"
        ) from None
    return split


HTTP = ("http", "https")
"""The schemes of a service over HTTP."""


def is_here(host: str | None) -> bool:
    """Return whether the name or the address of a host is that of this host."""
    return host in ("localhost", "127.0.0.1", "::1")


def stays_here(host: str | None) -> bool:
    """Return whether what is sent to a host never leaves this one: an address of the loopback, not only the usual."""
    if is_here(host):
        return True
    try:
        address = ip_address(host or "")
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_overheard(url: str) -> bool:
    """Return whether others may read what a request to a URL contains."""
    split = split_url(url)
    return split.scheme not in ("https", "rediss") and not stays_here(split.hostname)


def split_server(
    text: str, schemes: Sequence[str], form: str, instead: str = "use username, password and the other options"
) -> SplitResult:
    """Parse the URL of a server that has its credentials and settings in other options.

    Args:
        text: the URL.
        schemes: the accepted schemes.
        form: how to write such a URL, after "must be".
        instead: where credentials belong.

    Raises:
        ValueError: The URL is invalid, has another scheme or no host, or contains credentials or a query. The text
            repeats nothing of it.
    """
    split = split_url(text)
    if split.scheme not in schemes or not split.hostname:
        raise ValueError(f"must be {form}")
    if "@" in split.netloc or split.query or split.fragment:
        raise ValueError(f"must contain no credentials and no query: {instead}")
    return split


def masked(text: str) -> str:
    """Return the text of a location without possible secrets: user, password, query, fragment.

    A password may contain a slash. After a name with a colon, unless a port follows, all text up to the last `@` is
    therefore treated as the password, and so is text after a host that is not a port.
    """
    found = _BEFORE_AT.match(text)
    if found is not None:
        root, slash, _ = found[2].partition("/")
        if not slash or (":" in root and not _PORT.fullmatch(root)):
            text = f"{found[1]}{MASK}@{text[found.end() :]}"
    elif _WITHOUT_SCHEME.match(text):
        text = f"{MASK}@{text.rpartition('@')[2]}"
    return _NETLOC.sub(_without_odd_ports, re.split(r"[?#]", text)[0], count=1)


def _without_odd_ports(found: re.Match[str]) -> str:
    if found[2].startswith("arn:"):
        return found[0]
    before, at, hosts = found[2].rpartition("@")
    return f"{found[1]}{before}{at}{','.join(map(_without_odd_port, hosts.split(',')))}{found[3]}"


def _without_odd_port(host: str) -> str:
    parts = _HOST.fullmatch(host)
    if parts is None:
        return MASK
    return host if re.fullmatch(r"(:\d{0,5})?", parts[2] or "") else f"{parts[1]}:{MASK}"
