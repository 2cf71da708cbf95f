"""Parser for Spark's DDL schemas, such as `id int, name string`, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from outfall.errors import ConfigurationError

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\W\d]\w*|\d+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")
_DO = "write columns in Spark's DDL, for example 'id bigint, name string, tags array<string>, price decimal(10,2)'"

_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


def parse_ddl(text: str) -> pa.Schema:
    """Parse a DDL string. Raises `ConfigurationError` if it is invalid or has a duplicate column."""
    parser = _Parser(text)
    fields = parser.fields(end=None)
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"the schema has the column {max(names, key=names.count)!r} twice", do=_DO)
    return pa.schema(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._quoted = False
        """Whether the last name was in backticks."""

    def fields(self, end: str | None) -> list[pa.Field]:
        """Parse `name type, …` up to a delimiter or the end of the text."""
        found = []
        while True:
            name = self._name()
            self._skip(":")
            kind = self._type()
            nullable = not self._words("not", "null")
            if self._words("comment"):
                self._next()
            found.append(pa.field(name, kind, nullable))
            if not self._skip(","):
                break
        if end is None:
            if self._peek():
                raise self._wrong()
        else:
            self._expect(end)
        return found

    def _type(self) -> pa.DataType:
        name = self._name().lower()
        made = self._NESTED.get(name)
        if made is not None:
            self._expect("<")
            return made(self)
        if name in ("decimal", "dec", "numeric"):
            return pa.decimal128(*self._numbers((10, 0)))
        if name in ("varchar", "char"):
            self._numbers((0,))
            return pa.string()
        if name not in _TYPES:
            raise ConfigurationError(f"the schema has the unknown type {name!r}", do=_DO)
        return _TYPES[name]

    def _array(self) -> pa.DataType:
        element = self._type()
        self._expect(">")
        return pa.list_(element)

    def _map(self) -> pa.DataType:
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return pa.map_(key, value)

    def _struct(self) -> pa.DataType:
        return pa.struct(self.fields(end=">"))

    _NESTED: dict[str, Callable[[_Parser], pa.DataType]] = {"array": _array, "map": _map, "struct": _struct}

    def _numbers(self, default: tuple[int, ...]) -> list[int]:
        if not self._skip("("):
            return list(default)
        found = [int(self._name())]
        while self._skip(","):
            found.append(int(self._name()))
        self._expect(")")
        return (found + list(default[len(found) :]))[: len(default)]

    def _peek(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        return found[0].strip() if found else self._text[self._at :].strip()

    def _next(self) -> re.Match[str]:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._wrong()
        self._at = found.end()
        return found

    def _name(self) -> str:
        found = self._next()
        if found[1] is None and found[2] is None:
            raise self._wrong()
        return found[2] or found[1].replace("``", "`")

    def _skip(self, sign: str) -> bool:
        if self._peek() != sign:
            return False
        self._next()
        return True

    def _words(self, *words: str) -> bool:
        at = self._at
        for word in words:
            if self._peek().lower() != word:
                self._at = at
                return False
            self._next()
        return True

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            raise self._wrong()

    def _wrong(self) -> ConfigurationError:
        rest = self._text[self._at :].strip()
        return ConfigurationError(
            f"the schema is invalid at {rest[:40]!r}" if rest else "the schema ends too early", do=_DO
        )
