"""Which types JSON carries there and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError

_REASONS = [
    (pa.types.is_binary, "binary is not supported yet", "encode it with Spark's base64()"),
    (pa.types.is_large_binary, "binary is not supported yet", "encode it with Spark's base64()"),
    (pa.types.is_duration, "Spark's JSON reader needs an interval's exact type in its text", "cast it to a string"),
    (pa.types.is_time, "Spark's JSON reader does not take times", "cast it to a string"),
    (pa.types.is_timestamp, "it has nanoseconds, which Spark would cut", "cast it to microseconds"),
]


def check_names(fields: Iterable[Any], path: str) -> None:
    """Refuse two columns of one name: a reader keeps one of the values."""
    twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
    if twice:
        where = f" of {path!r}" if path else ""
        raise ConfigurationError(
            f"the columns{where} hold the name {twice[0]!r} twice",
            why="a JSON object has one value per name",
            do="rename or drop one of them",
        )


def check_type(kind: Any, path: str) -> None:
    """Refuse a type that Spark's JSON reader would not give back unchanged.

    Raises:
        ConfigurationError: naming the column, its type and a way out.
    """
    children = _children(kind)
    if children is not None:
        _check_names(kind, path)
        for name, child in children:
            check_type(child, f"{path}.{name}")
    elif not _is_plain(kind):
        _refuse(kind, path)


def _children(kind: Any) -> list[tuple[str, Any]] | None:
    if pa.types.is_struct(kind):
        return [(kind.field(index).name, kind.field(index).type) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [("value", kind.item_type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [("element", kind.value_type)]
    return None


def _is_plain(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_null(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit != "ns")
    )


def _check_names(kind: Any, path: str) -> None:
    if pa.types.is_map(kind):
        if not (pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)):
            raise ConfigurationError(
                f"JSON does not carry column {path!r} of type {kind}",
                why="an object's names are strings, and Spark's JSON reader takes no other map key",
                do="cast the keys to strings",
            )
    elif pa.types.is_struct(kind):
        check_names((kind.field(index) for index in range(kind.num_fields)), path)


def _refuse(kind: Any, path: str) -> None:
    why, do = next(
        ((why, do) for matches, why, do in _REASONS if matches(kind)),
        ("the type is not supported", "cast it to a string"),
    )
    raise ConfigurationError(f"JSON does not carry column {path!r} of type {kind}", why=why, do=do)
