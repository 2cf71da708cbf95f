"""The columns of the files in a directory, and which changes of them its readers can unite.

Formats that name their values are read by name: Spark (`mergeSchema`, or a schema), DuckDB (`union_by_name`), pyarrow
(a schema) and polars (`missing_columns`, `extra_columns`) return NULL for a column that a file does not have. None of
them returns the values of two files in which one column has different types: they fail, or round and truncate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import pyarrow as pa

from outfall.values import spark_type

Kind = str | dict[str, Any]
"""The name of a type, or for a nested one `{"struct": [[name, kind], …]}`, `{"array": kind}`, `{"map": [key, value]}`.
"""
Columns = tuple[tuple[str, Kind], ...]
"""The columns of files in their order."""
Addressing = Literal["by name", "by position", "none"]
"""How readers find the columns of a file; `none` for a file without columns."""

_WIDER = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))
"""Types whose values have the same text, each with the wider ones after it. Those take its values."""


class ColumnsChangedError(Exception):
    """A change that readers cannot unite: what has changed, and what else to write."""

    def __init__(self, what: str, *, instead: str) -> None:
        super().__init__(what)
        self.instead = instead


def columns_of(fields: Iterable[pa.Field]) -> Columns:
    """Return the columns of Arrow fields."""
    return tuple((field.name, _kind(field.type)) for field in fields)


def _kind(kind: pa.DataType) -> Kind:
    types = pa.types
    if types.is_struct(kind):
        return {"struct": [[field.name, _kind(field.type)] for field in kind]}
    if types.is_map(kind):
        return {"map": [_kind(kind.key_type), _kind(kind.item_type)]}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"array": _kind(kind.value_type)}
    return spark_type(kind)


def shown(kind: Kind) -> str:
    """Return the name of a type, as Spark prints it."""
    if isinstance(kind, str):
        return kind
    if "struct" in kind:
        return f"struct<{','.join(f'{name}:{shown(inner)}' for name, inner in kind['struct'])}>"
    if "map" in kind:
        return f"map<{','.join(map(shown, kind['map']))}>"
    return f"array<{shown(kind['array'])}>"


def united(was: Columns, now: Columns, addressing: Addressing, *, as_text: bool, case_sensitive: bool) -> Columns:
    """Return the columns of a directory whose files have had those of `was`, and get those of `now`.

    `as_text` says whether values are stored as text, so that narrower numbers are read like those before. Raises
    `ColumnsChangedError` if no reader returns the values of both.
    """
    if addressing == "none":
        return now
    if addressing == "by position":
        return _by_position(was, now, as_text=as_text)
    return _by_name(was, now, "", as_text=as_text, case_sensitive=case_sensitive)


def _by_position(was: Columns, now: Columns, *, as_text: bool) -> Columns:
    instead = f"select the earlier columns in their order: {', '.join(name for name, _ in was)}"
    for place, ((name, kind), (new_name, new_kind)) in enumerate(zip(was, now, strict=False), 1):
        if name != new_name:
            raise ColumnsChangedError(
                f"column {place} has changed from {name!r} ({shown(kind)}) to {new_name!r} ({shown(new_kind)})",
                instead=instead,
            )
    if len(was) != len(now):
        which, fields = ("is missing", was) if len(was) > len(now) else ("is new", now)
        name, kind = fields[min(len(was), len(now))]
        raise ColumnsChangedError(
            f"column {min(len(was), len(now)) + 1}, {name!r} ({shown(kind)}), {which}", instead=instead
        )
    return tuple(
        (name, _united_kind(kind, new, name, as_text=as_text, case_sensitive=True))
        for (name, kind), (_, new) in zip(was, now, strict=True)
    )


def _by_name(
    was: Iterable[Sequence[Any]], now: Iterable[Sequence[Any]], path: str, *, as_text: bool, case_sensitive: bool
) -> Columns:
    merged: dict[str, Kind] = dict(map(tuple, was))
    folded = {name.lower(): name for name in merged}
    for name, kind in now:
        other = folded.get(name.lower(), name)
        if name in merged:
            options = {"as_text": as_text, "case_sensitive": case_sensitive}
            merged[name] = _united_kind(merged[name], kind, f"{path}{name}", **options)
        elif other != name and not case_sensitive:
            raise ColumnsChangedError(
                f"column {path + other!r} is called {path + name!r} now",
                instead=f"rename it to {path + other!r}, since readers may not distinguish case",
            )
        else:
            merged[name] = kind
    return tuple(merged.items())


def _united_kind(was: Kind, now: Kind, path: str, *, as_text: bool, case_sensitive: bool) -> Kind:
    if was == now:
        return was
    options = {"as_text": as_text, "case_sensitive": case_sensitive}
    if isinstance(was, str) or isinstance(now, str):
        for widths in _WIDER if as_text else ():
            if was in widths and now in widths and widths.index(str(now)) < widths.index(str(was)):
                return was
    elif was.keys() == now.keys() == {"struct"}:
        return {"struct": [list(field) for field in _by_name(was["struct"], now["struct"], f"{path}.", **options)]}
    elif was.keys() == now.keys() == {"array"}:
        return {"array": _united_kind(was["array"], now["array"], f"{path}.element", **options)}
    elif was.keys() == now.keys() == {"map"}:
        pairs = zip(("key", "value"), was["map"], now["map"], strict=True)
        return {"map": [_united_kind(old, new, f"{path}.{name}", **options) for name, old, new in pairs]}
    raise ColumnsChangedError(
        f"column {path!r} has changed from {shown(was)} to {shown(now)}",
        instead=f"cast {path!r} to {shown(was)}, or write it as a column of another name",
    )
