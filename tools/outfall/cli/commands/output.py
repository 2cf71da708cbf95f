"""What commands print: tables and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")
