"""Columns used outside the body: as keys, or in URLs such as `https://host/users/{user}/events`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.urls import masked, split_url
from outfall.values import require_columns, spark_type


def check_column(schema: pa.Schema, name: str, use: str) -> None:
    """Reject a missing column, or one whose values have no unambiguous text form.

    `use` is its purpose, for error texts: `"the url"`. Raises `ConfigurationError` with the column and its type.
    """
    require_columns(schema.names, {use: name})
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
            f"{use} cannot use column {name!r} of type {spark_type(kind)}", do="cast the column to a string"
        )


def texts(batch: pa.RecordBatch, name: str, use: str) -> list[str]:
    """Return a column's values as strings.

    Raises `ConfigurationError` as `check_column` does, and `ValueRefusedError` if a value is NULL, empty or not UTF-8.
    """
    check_column(batch.schema, name, use)
    column = batch.column(name)
    empty = pc.fill_null(pc.equal(text := column.cast(pa.large_string()), ""), True)
    if pc.any(empty).as_py():
        row = pc.index(empty, True).as_py()
        raise ValueRefusedError(
            f"column {name!r} is NULL or empty, and {use} requires it",
            why=f"row {row} of the batch has no value",
            do="remove such rows, or set a value",
        )
    try:
        found: list[str] = text.to_pylist()
    except UnicodeDecodeError as error:
        raise ValueRefusedError(
            f"column {name!r} contains a string that is not UTF-8, and {use} requires it", do="decode the column"
        ) from error
    return found


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class UrlTemplate:
    """A URL, optionally with columns in braces in its path or query.

    A value becomes part of one path segment. Every character except letters, digits and `_.-~` is escaped (RFC 3986
    §2.1), so it cannot change host, path or query. Raises `ValueError` if the URL is not absolute http or https,
    contains credentials, or has a column elsewhere.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.columns: Sequence[str] = tuple(dict.fromkeys(_PLACEHOLDER.findall(url)))
        _check(url)
        pieces = _PLACEHOLDER.split(url)
        self._literals, self._names = pieces[::2], pieces[1::2]

    def expand(self, batch: pa.RecordBatch) -> list[str] | None:
        """Return each row's URL; `None` if all have the same.

        Raises `ValueRefusedError` if a value is NULL or empty, or gives a segment `.` or `..`.
        """
        if not self._names:
            return None
        values = {name: [quote(text, safe="") for text in texts(batch, name, "the url")] for name in self.columns}
        urls = [self._join(row) for row in zip(*(values[name] for name in self._names), strict=True)]
        for row, url in enumerate(urls):
            if _moves(url):
                raise ValueRefusedError(
                    f"a value gives a segment '.' or '..' in the url {masked(self.url)}",
                    why=f"servers interpret such segments as another directory; row {row} of the batch has one",
                    do="remove such rows, or add text around the column in the url",
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
    split = split_url(url)
    if split.scheme not in ("http", "https") or not split.hostname or split.port == 0:
        raise ValueError("must be an absolute URL, https:// or http://")
    if "@" in split.netloc:
        raise ValueError("must not contain user and password: set username and password")
    if "{" in split.netloc or "}" in split.netloc:
        raise ValueError("must have columns in its path or query only, never in the host")
    if split.fragment or "#" in url:
        raise ValueError("must have no fragment")
    if any(not name for name in _PLACEHOLDER.findall(url)) or set("{}") & set(_PLACEHOLDER.sub("", url)):
        raise ValueError("must have a column name in each pair of braces")
    if not _PLACEHOLDER.sub("", url).isascii() or any(
        code <= " " or code == "\x7f" for code in _PLACEHOLDER.sub("", url)
    ):
        raise ValueError("must be ASCII without spaces: escape other characters (%20), and write the host in Punycode")
    if _moves(_PLACEHOLDER.sub("x", url)):
        raise ValueError("must have no segment '.' or '..'")
