"""JSON as columns, by the JSON Schema of the reader: the types that it names, and no other constraint than those.

JSON names its fields, so the writer's schema is not needed to read a value. Drafts 4 to 2020-12 have the same words for
what is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from outfall.schema_registry.decoding.by_value import UnreadableTypeError, ValueMismatchError, by_value
from outfall.schema_registry.schemas import WholeSchema
from outfall.serde import parse_json

Read = Callable[[Any, str], Any]
"""Returns a value for its column, of parsed JSON that is not null and its path. Raises `ValueMismatchError`."""

_LONGS = range(-(2**63), 2**63)
_COMBINED = ("oneOf", "anyOf", "allOf")
_COLUMNS = (*_COMBINED, "properties", "items")
"""Words that say what columns there are."""
_EXACT = 2**53
"""From here on not each integer is a double, and Python parses a number with a fraction or an exponent as one."""
_DEEPEST = 100


@dataclass(frozen=True)
class _Column:
    """How a part of a schema becomes a column."""

    type: pa.DataType
    read: Read
    nullable: bool


class JsonReader:
    """Decodes the values of any writer. Use `json_reader`, which keeps them."""

    def __init__(self, reader: WholeSchema) -> None:
        """Read the schema. Raises `UnreadableTypeError` if a part of it has no column type."""
        root = _parsed(reader.schema.text)
        others = {name: _parsed(schema.text) for name, schema in reader.referenced}
        self._column = _Parts(root, others).column(root, "", ())
        self.type = self._column.type

    def column(self, values: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return the column of JSON texts, and why some of them, by position, cannot be read: these are NULL."""
        return by_value(values, start, self._decoded, lambda found: pa.array(found, self.type), self.type)

    def _decoded(self, value: bytes) -> Any:
        try:
            found = parse_json(value, parse_constant=_refuse_constant)
        except UnicodeDecodeError:
            raise ValueMismatchError("it is not UTF-8") from None
        except ValueError as error:
            raise ValueMismatchError(f"it is not JSON: {error}") from error
        return _read(self._column, found, "")


@lru_cache(1000)
def json_reader(reader: WholeSchema) -> JsonReader:
    """Return the reader of a schema, which the process keeps. Raises `UnreadableTypeError`."""
    return JsonReader(reader)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UnreadableTypeError(f"it cannot be parsed: {error}") from error


class _Parts:
    """Makes columns of the parts of a schema, with those that it refers to."""

    def __init__(self, root: Any, others: Mapping[str, Any]) -> None:
        self._root, self._others = root, others

    def column(self, part: Any, path: str, inside: tuple[str, ...]) -> _Column:
        """Return the column of a part. `inside` are the references that led there."""
        if isinstance(part, dict) and isinstance(part.get("$ref"), str):
            return self._referenced(part["$ref"], path, inside)
        if not isinstance(part, dict):
            raise UnreadableTypeError(f"{path or 'the schema'} may be anything")
        for word in _COMBINED:
            if isinstance(part.get(word), list):
                return self._one_of(word, part, path, inside)
        names = _types(part)
        others = names - {"null"}
        if len(others) != 1:
            found = " or ".join(sorted(names)) or "anything"
            raise UnreadableTypeError(f"{path or 'the schema'} may be {found}, for which there is no column type")
        (name,) = others
        made = self._named(name, part, path, inside)
        return _Column(made.type, made.read, made.nullable or "null" in names)

    def _named(self, name: str, part: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> _Column:
        if name == "object":
            return self._object(part, path, inside)
        if name == "array":
            items = self.column(part.get("items"), f"{path}[]", inside)
            return _Column(pa.list_(items.type), _reads_items(items), False)
        if name not in _SCALARS:
            raise UnreadableTypeError(f"{path or 'the schema'} has the unknown type {name}")
        kind, read = _SCALARS[name]
        symbols = part.get("enum")
        if name == "string" and isinstance(symbols, list):
            return _Column(kind, _reads_symbols(frozenset(each for each in symbols if isinstance(each, str))), False)
        return _Column(kind, read, False)

    def _object(self, part: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> _Column:
        given = part.get("properties")
        if isinstance(given, dict) and given:
            columns = {name: self.column(each, _inner(path, name), inside) for name, each in given.items()}
            required = part.get("required")
            needed = frozenset(required) if isinstance(required, list) else frozenset()
            kind = pa.struct([pa.field(name, each.type) for name, each in columns.items()])
            return _Column(kind, _reads_object(columns, needed), False)
        values = part.get("additionalProperties")
        if not isinstance(values, dict):
            raise UnreadableTypeError(f"{path or 'the schema'} is an object without properties")
        items = self.column(values, f"{path}{{}}", inside)
        return _Column(pa.map_(pa.string(), items.type), _reads_map(items), False)

    def _one_of(self, word: str, part: Mapping[str, Any], path: str, inside: tuple[str, ...]) -> _Column:
        parts = part[word]
        if beside := [each for each in _COLUMNS if part.get(each) and each != word]:
            raise UnreadableTypeError(
                f"{path or 'the schema'} has {beside[0]} beside {word}, for which there is no column type"
            )
        others = [each for each in parts if not (isinstance(each, dict) and each.get("type") == "null")]
        if len(others) != 1:
            raise UnreadableTypeError(
                f"{path or 'the schema'} is {word} of {len(others)} schemas, for which there is no column type"
            )
        made = self.column(others[0], path, inside)
        return _Column(made.type, made.read, made.nullable or len(others) < len(parts))

    def _referenced(self, reference: str, path: str, inside: tuple[str, ...]) -> _Column:
        name, _, pointer = reference.partition("#")
        known = f"{id(self._others.get(name, self._root))}#{pointer}"
        if known in inside or len(inside) > _DEEPEST:
            raise UnreadableTypeError(f"{path or 'the schema'} contains itself")
        found = self._others.get(name) if name else self._root
        for step in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            raise UnreadableTypeError(f"{path or 'the schema'} refers to {reference}, which there is not")
        # The references of another schema begin there.
        parts = _Parts(self._others[name], self._others) if name else self
        return parts.column(found, path, (*inside, known))


def _read(column: _Column, value: Any, path: str) -> Any:
    if value is not None:
        return column.read(value, path)
    if not column.nullable:
        raise ValueMismatchError(f"{path or 'the value'} is null, which the reader's schema does not allow")
    return None


def _reads_object(columns: Mapping[str, _Column], required: frozenset[str]) -> Read:
    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _other(value, "an object", path)
        found = {}
        for name, column in columns.items():
            each = value.get(name)
            if each is not None:
                found[name] = column.read(each, _inner(path, name))
            elif name in required and (name not in value or not column.nullable):
                what = "is null" if name in value else "is absent"
                raise ValueMismatchError(f"{_inner(path, name)} {what}, and the reader's schema requires it")
        return found

    return read


def _reads_items(items: _Column) -> Read:
    def read(value: Any, path: str) -> Any:
        if type(value) is not list:
            raise _other(value, "an array", path)
        return [_read(items, each, f"{path}[]") for each in value]

    return read


def _reads_map(items: _Column) -> Read:
    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _other(value, "an object", path)
        return [(name, _read(items, each, f"{path}{{}}")) for name, each in value.items()]

    return read


def _reads_symbols(symbols: frozenset[str]) -> Read:
    def read(value: Any, path: str) -> Any:
        if value not in symbols:
            raise ValueMismatchError(f"{path or 'the value'} is not in the enum of the reader's schema")
        return value

    return read


def _boolean(value: Any, path: str) -> Any:
    if type(value) is not bool:
        raise _other(value, "a boolean", path)
    return value


def _integer(value: Any, path: str) -> Any:
    # JSON Schema: a number without a fraction is an integer, however it is written.
    if type(value) is float and value.is_integer():
        if abs(value) >= _EXACT:
            raise ValueMismatchError(f"{path or 'the value'} is an integer with a fraction or an exponent, beyond 2^53")
        value = int(value)
    if type(value) is not int:
        raise _other(value, "an integer", path)
    if value not in _LONGS:
        raise ValueMismatchError(f"{path or 'the value'} is larger than a bigint")
    return value


def _number(value: Any, path: str) -> Any:
    if type(value) not in (int, float):
        raise _other(value, "a number", path)
    try:
        found = float(value)
    except OverflowError:
        found = float("inf")
    if found in (float("inf"), float("-inf")):
        raise ValueMismatchError(f"{path or 'the value'} is larger than a double")
    return found


def _string(value: Any, path: str) -> Any:
    if type(value) is not str:
        raise _other(value, "a string", path)
    return value


_SCALARS: dict[str, tuple[pa.DataType, Read]] = {
    "boolean": (pa.bool_(), _boolean),
    "integer": (pa.int64(), _integer),
    "number": (pa.float64(), _number),
    "string": (pa.string(), _string),
}
_NAMES = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object"}


def _other(value: Any, wanted: str, path: str) -> ValueMismatchError:
    found = _NAMES.get(type(value), "null")
    return ValueMismatchError(f"{path or 'the value'} is {found}, and the reader's schema has {wanted}")


def _types(part: Mapping[str, Any]) -> set[str]:
    """Return the types that a part names, or shows by its other words."""
    named = part.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {each for each in named if isinstance(each, str)}
    if "properties" in part:
        return {"object"}
    symbols = part.get("enum", [part["const"]] if "const" in part else [])
    if isinstance(symbols, list) and symbols and all(each is None or isinstance(each, str) for each in symbols):
        return {"null" if each is None else "string" for each in symbols}
    return set()


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
