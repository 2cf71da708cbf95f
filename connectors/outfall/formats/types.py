"""Which types JSON and CSV carry there and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

import pyarrow as pa

from outfall.errors import ConfigurationError

_REASONS = [
    (pa.types.is_duration, "Spark's reader needs an interval's exact type in its text", "cast it to a string"),
    (pa.types.is_time, "Spark's reader does not take times", "cast it to a string"),
    (pa.types.is_timestamp, "it has nanoseconds, which Spark would cut", "cast it to microseconds"),
]

ONE_VALUE = "a JSON object has one value per name"


def check_names(fields: Iterable[Any], path: str, why: str) -> None:
    """Refuse two columns of one name: a reader keeps one of the values.

    Raises:
        ConfigurationError: naming the column.
    """
    twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
    if twice:
        where = f" of {path!r}" if path else ""
        raise ConfigurationError(
            f"the columns{where} hold the name {twice[0]!r} twice",
            why=why,
            do="rename or drop one of them",
        )


def check_json_type(kind: Any, path: str) -> None:
    """Refuse a type that Spark's JSON reader would not give back unchanged.

    Raises:
        ConfigurationError: naming the column, its type and a way out.
    """
    children = _children(kind)
    if children is not None:
        _check_names(kind, path)
        for name, child in children:
            check_json_type(child, f"{path}.{name}")
    elif not (is_plain(kind) or is_bytes(kind) or pa.types.is_null(kind)):
        _refuse("JSON", kind, path)


def check_csv_type(field: Any) -> None:
    """Refuse a type that Spark's CSV reader would not give back unchanged.

    Raises:
        ConfigurationError: naming the column, its type and a way out.
    """
    kind = field.type
    if pa.types.is_nested(kind):
        why, do = "CSV has no nested values", 'write it with to_json(), or use format="jsonl" or "parquet"'
        refuse("CSV", kind, field.name, why, do)
    if is_bytes(kind):
        why, do = "Spark's CSV reader does not give bytes back", "encode it with Spark's base64()"
        refuse("CSV", kind, field.name, why, do)
    if not is_plain(kind):
        _refuse("CSV", kind, field.name)


def is_bytes(kind: Any) -> bool:
    """Tell whether a type is Spark's binary."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _children(kind: Any) -> list[tuple[str, Any]] | None:
    if pa.types.is_struct(kind):
        return [(kind.field(index).name, kind.field(index).type) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [("value", kind.item_type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [("element", kind.value_type)]
    return None


def is_plain(kind: Any) -> bool:
    """Tell whether values of a type are one piece of text that both readers take."""
    types = pa.types
    return bool(
        types.is_boolean(kind)
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
            why = "an object's names are strings, and Spark's JSON reader takes no other map key"
            refuse("JSON", kind, path, why, "cast the keys to strings")
    elif pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        if any(field.metadata and field.metadata.get(b"variant") == b"true" for field in fields):
            refuse("JSON", kind, path, "it is a variant, which Spark sends in a binary form", "write it with to_json()")
        check_names(fields, path, ONE_VALUE)


def refuse(format: str, kind: Any, path: str, why: str, do: str) -> NoReturn:
    """Refuse a column.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(f"{format} does not carry column {path!r} of type {kind}", why=why, do=do)


def _refuse(format: str, kind: Any, path: str) -> NoReturn:
    why, do = next(
        ((why, do) for matches, why, do in _REASONS if matches(kind)),
        ("the type is not supported", "cast it to a string"),
    )
    refuse(format, kind, path, why, do)
