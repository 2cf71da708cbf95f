"""Columns whose values stand outside the body: as keys, or in addresses as `https://host/users/{user}/events`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.location import masked
from outfall.values import spark_type


def check_column(schema: pa.Schema, name: str, use: str) -> None:
    """Refuse a column that is not there, or whose values have no text that is the same everywhere.

    Args:
        schema: of the rows.
        name: the column.
        use: what it is for, for texts: `"the url"`.

    Raises:
        ConfigurationError: naming the column and its type.
    """
    if name not in schema.names:
        raise ConfigurationError(
            f"{use} needs the column {name!r}, and the rows have {', '.join(schema.names)}", do="correct the name"
        )
    kind = schema.field(name).type
    types = pa.types
    if not (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_decimal(kind)
    ):
        raise ConfigurationError(
            f"{use} cannot be made of column {name!r} of type {spark_type(kind)}", do="cast the column to a string"
        )


def texts(batch: pa.RecordBatch, name: str, use: str) -> list[str]:
    """Return a column's values as text.

    Raises:
        ConfigurationError: as `check_column`.
        ValueRefusedError: a value is NULL or empty, or no UTF-8.
    """
    check_column(batch.schema, name, use)
    column = batch.column(name)
    empty = pc.fill_null(pc.equal(text := column.cast(pa.large_string()), ""), True)
    if pc.any(empty).as_py():
        row = pc.index(empty, True).as_py()
        raise ValueRefusedError(
            f"column {name!r} is NULL or empty, and {use} needs it",
            why=f"it is so in row {row} of the batch",
            do="leave such rows out, or give them a value",
        )
    try:
        found: list[str] = text.to_pylist()
    except UnicodeDecodeError as error:
        raise ValueRefusedError(
            f"column {name!r} holds a string that is not UTF-8, and {use} needs it", do="decode the column"
        ) from error
    return found


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class UrlTemplate:
    """A URL, perhaps with columns in braces in its path or query.

    A value becomes part of one path segment: every character but letters, digits and `_.-~` is escaped (RFC 3986
    §2.1), so that it can change neither host nor path nor query.

    Raises:
        ValueError: it is no absolute http or https URL, holds credentials, or has a column elsewhere.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.columns: Sequence[str] = tuple(dict.fromkeys(_PLACEHOLDER.findall(url)))
        _check(url)
        pieces = _PLACEHOLDER.split(url)
        self._literals, self._names = pieces[::2], pieces[1::2]

    def expand(self, batch: pa.RecordBatch) -> list[str] | None:
        """Return each row's URL; `None` when all have the same.

        Raises:
            ValueRefusedError: a value is NULL or empty, or makes a segment `.` or `..`.
        """
        if not self._names:
            return None
        values = {name: [quote(text, safe="") for text in texts(batch, name, "the url")] for name in self.columns}
        urls = [self._join(row) for row in zip(*(values[name] for name in self._names), strict=True)]
        for row, url in enumerate(urls):
            if _moves(url):
                raise ValueRefusedError(
                    f"a value makes a url with a segment '.' or '..', in {masked(self.url)}",
                    why=f"servers take such segments for another directory; it is in row {row} of the batch",
                    do="leave such rows out, or write text around the column in the url",
                )
        return urls

    def _join(self, values: Sequence[str]) -> str:
        parts = [self._literals[0]]
        for value, literal in zip(values, self._literals[1:], strict=True):
            parts += (value, literal)
        return "".join(parts)


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL (RFC 6454)."""
    split = urlsplit(url)
    return split.scheme, (split.hostname or "").lower(), split.port or (443 if split.scheme == "https" else 80)


def _moves(url: str) -> bool:
    return any(segment in (".", "..") for segment in url.partition("?")[0].split("/"))


def _check(url: str) -> None:
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise ValueError("must be a URL as https://host/path") from None
    if split.scheme not in ("http", "https") or not split.hostname or port == 0:
        raise ValueError("must be an absolute URL, https:// or http://")
    if "@" in split.netloc:
        raise ValueError("must hold no user and password: give username and password")
    if "{" in split.netloc or "}" in split.netloc:
        raise ValueError("must have columns in its path or query only, never in the host")
    if split.fragment or "#" in url:
        raise ValueError("must have no fragment")
    if any(not name for name in _PLACEHOLDER.findall(url)) or set("{}") & set(_PLACEHOLDER.sub("", url)):
        raise ValueError("must have the name of a column in each pair of braces")
    if not _PLACEHOLDER.sub("", url).isascii() or any(
        code <= " " or code == "\x7f" for code in _PLACEHOLDER.sub("", url)
    ):
        raise ValueError("must be ASCII, without blanks: escape other characters (%20), and write the host in Punycode")
    if _moves(_PLACEHOLDER.sub("x", url)):
        raise ValueError("must have no segment '.' or '..'")
