"""What commands print: tables, JSON, and texts without credentials."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outfall.location import masked

_WIDE = 200
"""Columns where no terminal says how many it has: a pipe or a file."""


def console() -> Console:
    """Return what prints to the process's output. Markup is off: data is shown as it is."""
    made = Console(markup=False, highlight=False, emoji=False)
    return made if made.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_WIDE)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a dataclass, or what JSON knows, as JSON."""
    click.echo(json.dumps(value, default=_plain, indent=indent, ensure_ascii=False))


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]], *, right: Iterable[str] = ()) -> Table:
    """Make a table; what is `None` is left empty."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in set(right) else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return made


def moment(time: datetime | None) -> str | None:
    """A time as people read it, in UTC."""
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


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
