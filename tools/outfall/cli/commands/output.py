"""Output of commands: tables and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

import click
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from outfall.errors import printable
from outfall.metrics.in_words import Severity
from outfall.metrics.location_status import LocationStatus

SEVERITY_STYLES: dict[Severity, str] = {"ok": "green", "busy": "cyan", "warning": "yellow", "failed": "bold red"}

_UNWRAPPED = 100_000
"""Columns of an output that is not a terminal."""


def console() -> Console:
    """Return a console for the standard output, without markup, so that data is shown unchanged.

    It has the width of the terminal. In a pipe or a file, no line is wrapped, so that the output can be searched. It
    uses no colors there, nor with NO_COLOR.
    """
    out = Console(markup=False, highlight=False, emoji=False)
    if not out.is_terminal:
        out.width = _UNWRAPPED
    return out


def say(line: str, *, err: bool = False) -> None:
    """Print one line. Text in it that came from a row, a server or a log cannot control the terminal."""
    click.echo(printable(line), err=err)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a dataclass or a JSON value as JSON, which controls no terminal either."""
    dump = partial(json.dumps, value, default=_plain, indent=indent)
    text = dump(ensure_ascii=False)
    click.echo(text if text.replace("\n", "").isprintable() else dump(ensure_ascii=True))


def all_printable(value: Any) -> Any:
    """Return a value in which all strings are printable: those of dataclasses, models, lists and dictionaries too."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [all_printable(item) for item in value]
    if isinstance(value, dict):
        return {all_printable(key): all_printable(item) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return value.model_copy(update=all_printable(dict(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **all_printable(_plain(value)))
    return value


def location_as_json(found: LocationStatus) -> dict[str, Any]:
    """Return a location as a JSON object, without fields that do not apply."""
    below = {"checkpoints": [location_as_json(each) for each in found.checkpoints]} if found.checkpoints else {}
    problem = {"problem": found.problem} if found.problem else {}
    return {"recovery": found.recovery, "steps": found.steps} | below | problem


def table(columns: Iterable[str], *, right: Iterable[str] = ()) -> Table:
    """Return an empty table without lines. Headings can contain line breaks; `right` are the right-aligned ones."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    numbers = {heading.replace("\n", " ") for heading in right}
    for column in columns:
        is_number = column.replace("\n", " ") in numbers
        made.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    return made


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")
