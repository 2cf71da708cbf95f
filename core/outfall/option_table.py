"""The options of a sink as a table for its documentation."""

from __future__ import annotations

import types
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

if TYPE_CHECKING:
    from outfall.options import SinkOptions

_DURATIONS = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1000, "millisecond": 1}
_SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def options_table(model: type[SinkOptions]) -> str:
    """Return the options as a Markdown table for the documentation."""
    lines = ["| Option | Type | Default | Meaning |", "|---|---|---|---|"]
    # Required options first, then those of the sink itself, and last those that it shares with others.
    order = [name for base in model.__mro__ for name in getattr(base, "__annotations__", {})]
    fields = sorted(model.model_fields.items(), key=lambda item: (not item[1].is_required(), order.index(item[0])))
    for name, field in fields:
        names = [name, *(alias for alias, of in model.aliases.items() if of.option == name)]
        names_cell = ", ".join(f"`{each}`" for each in names)
        cells = (names_cell, _type_text(field.annotation), _default_text(field), field.description or "")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_text(get_args(annotation)[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(arg) for arg in get_args(annotation) if arg is not types.NoneType)
    if origin is tuple:
        return f"list of {_type_text(get_args(annotation)[0])}s"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "mapping"
    names = {
        str: "string", int: "integer", float: "number", bool: "`true`, `false`", SecretStr: "secret",
        timedelta: "duration", ByteSize: "size",
    }  # fmt: skip
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default_text(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.is_required() else ""
    if field.default is None:
        return "none"
    if field.default in ("", (), {}):
        return "empty"
    return f"`{_as_written(field.default, field.annotation)}`"


def _as_written(default: Any, annotation: Any) -> str:
    """Return a default in the form in which a user can write it."""
    if isinstance(default, bool):
        return str(default).lower()
    if not default:
        return "0"
    if isinstance(default, timedelta):
        count, unit = _in_largest_unit(default // timedelta(milliseconds=1), _DURATIONS)
        return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    if ByteSize in (annotation, *get_args(annotation)):
        count, unit = _in_largest_unit(default, _SIZES)
        return f"{count} {unit}"
    return str(default)


def _in_largest_unit(number: int, units: Mapping[str, int]) -> tuple[int, str]:
    return next((number // size, unit) for unit, size in units.items() if number % size == 0)
