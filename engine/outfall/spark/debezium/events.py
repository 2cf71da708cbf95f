"""The events in records, in SQL: the operation of each, its row and table, and which are no changes of rows at all.

Sources: Debezium's documentation, "Data change events" of the connectors for PostgreSQL and MySQL (envelope,
tombstones, truncations, logical messages), "New Record State Extraction" (the flat form), "Transaction metadata",
"Schema change topic", "Heartbeats"; and Kafka's `JsonConverter` (`schema` and `payload`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from outfall.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

EVENT = "_outfall_event"
"""The column with the event, a struct."""

_DAMAGED = "_outfall_damaged"
_SOURCE = "STRUCT<db: STRING, schema: STRING, table: STRING>"
_FLAT = ("__deleted", "__schema", "__db", "__table")
_ABOUT = ("status", "id", "ts_ms", "databaseName", "ddl", "tableChanges")
"""Fields of what is no change of a row."""


def quoted(name: str) -> str:
    """Return a name as SQL."""
    return "`{}`".format(name.replace("`", "``"))


def literal(text: str) -> str:
    """Return a text as SQL."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


class Events(ABC):
    """The expressions for one form of events. Those for a part of an event are on `EVENT`."""

    def __init__(self, columns: StructType, value: DataType) -> None:
        """Keep the columns of the table and the type of the records' values.

        Raises `ConfigurationError` if the values can have no events.
        """
        from pyspark.sql import types

        self._columns = columns
        self._typed = value if isinstance(value, types.StructType) else None
        if self._typed is None and not isinstance(value, types.StringType | types.BinaryType):
            raise ConfigurationError(
                f"the column 'value' has the type {value.simpleString()}",
                why="an event is JSON, or a struct",
                do="pass the records as Spark's Kafka source has them, or their values through deserialize",
            )

    @property
    def are_structs(self) -> bool:
        """Whether the values are structs, and not JSON."""
        return self._typed is not None

    @abstractmethod
    def _body(self) -> dict[str, str]:
        """Return the fields of an event in JSON, with their types."""

    @abstractmethod
    def operation(self) -> str:
        """Return the operation."""

    @abstractmethod
    def row(self) -> str:
        """Return the row: after a write, before a removal, of which PostgreSQL sends only the key."""

    @abstractmethod
    def table(self) -> tuple[str, str]:
        """Return the schema or database, and the name of the table; NULL if the event does not have it."""

    @abstractmethod
    def row_types(self) -> dict[str, DataType]:
        """Return the types of the row's fields in the event.

        Raises `ConfigurationError` if it lacks a column of the table.
        """

    def event(self) -> str:
        """Return the event of a record."""
        if self._typed is not None:
            return "value"
        body = self._body()
        wrapped = {"payload": _struct(body)} if self._may_have_schema() else {}
        schema = literal(_struct({**body, **wrapped, _DAMAGED: "STRING"}))
        options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_DAMAGED}')"
        return f"from_json(cast(value AS string), {schema}, {options})"

    def damaged(self) -> str:
        """Return whether the value is no JSON object."""
        return "false" if self._typed is not None else f"({EVENT} IS NULL OR {EVENT}.{_DAMAGED} IS NOT NULL)"

    def is_about_others(self) -> str:
        """Return whether the event is no change of a row, and known as such."""
        return "false"

    def hides_removals(self) -> str:
        """Return whether removals are tombstones only."""
        return "false"

    def text(self) -> str:
        """Return the value of a record as text; NULL if it is a struct."""
        return "cast(value AS string)" if self._typed is None else "cast(NULL AS string)"

    def fields(self, text: str) -> str:
        """Return the names of the fields that a row in JSON has."""
        path = self._path()
        paths = [f"$.payload{path}", f"${path}"] if self._may_have_schema() else [f"${path}"]
        names = (f"coalesce(json_object_keys(get_json_object({text}, '{path}')), array())" for path in paths)
        return f"concat({', '.join(names)})"

    def _path(self) -> str:
        """Return the path of a row that was written, below that of its event."""
        return ""

    def _part(self, *path: str) -> str:
        """Return a part of an event, with or without a schema beside it; NULL if a struct has no such field."""
        inner = ".".join(map(quoted, path))
        if self._typed is not None:
            return f"{EVENT}.{inner}" if _has(self._typed, path) else "cast(NULL AS string)"
        if not self._may_have_schema():
            return f"{EVENT}.{inner}"
        return f"if({EVENT}.payload IS NULL, {EVENT}.{inner}, {EVENT}.payload.{inner})"

    def _may_have_schema(self) -> bool:
        """Return whether an event may have its schema beside it."""
        return True

    def _texts(self) -> dict[str, str]:
        return dict.fromkeys(self._columns.names, "STRING")

    def _found(self, row: DataType | None) -> dict[str, DataType]:
        from pyspark.sql import types

        if self._typed is None:
            return dict.fromkeys(self._columns.names, types.StringType())
        found = {field.name: field.dataType for field in row} if isinstance(row, types.StructType) else {}
        for name in self._columns.names:
            if name not in found:
                raise ConfigurationError(
                    f"the events have no field {name!r}, which is in columns",
                    do="correct columns, or the schema that the events are read with",
                )
        return found


class Envelopes(Events):
    """Events as a connector writes them: the row before and after, the source, and the operation."""

    def _body(self) -> dict[str, str]:
        row = _struct(self._texts())
        return {"before": row, "after": row, "op": "STRING", "source": _SOURCE, **dict.fromkeys(_ABOUT, "STRING")}

    def operation(self) -> str:
        return self._part("op")

    def row(self) -> str:
        return f"CASE WHEN {self._part('op')} = 'd' THEN {self._part('before')} ELSE {self._part('after')} END"

    def table(self) -> tuple[str, str]:
        schema = f"coalesce({self._part('source', 'schema')}, {self._part('source', 'db')})"
        return schema, self._part("source", "table")

    def row_types(self) -> dict[str, DataType]:
        if self._typed is None:
            return self._found(None)
        for part in ("before", "after"):
            if part not in self._typed.names:
                raise ConfigurationError(
                    f"the events have no field {part!r}",
                    do="read them with the schema of whole events, or pass form='flat' for those of"
                    " ExtractNewRecordState",
                )
        return self._found(self._typed["after"].dataType)

    def _path(self) -> str:
        return ".after"

    def is_about_others(self) -> str:
        if self._typed is not None:
            return f"coalesce({self.operation()} = 'm', false)"
        transaction = f"{self._part('status')} IN ('BEGIN', 'END') AND {self._part('id')} IS NOT NULL"
        change = f"coalesce({self._part('ddl')}, {self._part('tableChanges')})"
        schema = f"{self._part('databaseName')} IS NOT NULL AND {change} IS NOT NULL"
        heartbeat = f"{self._part('ts_ms')} IS NOT NULL AND cast(key AS string) LIKE '%\"serverName\"%'"
        none = f"{self.operation()} IS NULL AND ({transaction} OR {schema} OR {heartbeat})"
        return f"coalesce({self.operation()} = 'm' OR {none}, false)"


class FlatEvents(Events):
    """Events of `ExtractNewRecordState`: the row itself, with the operation beside its columns."""

    def _body(self) -> dict[str, str]:
        return {**self._texts(), **dict.fromkeys(("__op", *_FLAT), "STRING")}

    def _may_have_schema(self) -> bool:
        return "payload" not in {name.lower() for name in self._columns.names}

    def operation(self) -> str:
        return f"CASE WHEN {self._part('__deleted')} = 'true' THEN 'd' ELSE {self._part('__op')} END"

    def row(self) -> str:
        columns = ", ".join(f"{literal(name)}, {self._part(name)}" for name in self._columns.names)
        return f"named_struct({columns})"

    def table(self) -> tuple[str, str]:
        return f"coalesce({self._part('__schema')}, {self._part('__db')})", self._part("__table")

    def hides_removals(self) -> str:
        return f"{self._part('__deleted')} IS NULL"

    def row_types(self) -> dict[str, DataType]:
        return self._found(self._typed)


def _struct(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{quoted(name)}: {kind}' for name, kind in fields.items())}>"


def _has(kind: DataType, path: Sequence[str]) -> bool:
    from pyspark.sql import types

    if not path:
        return True
    return isinstance(kind, types.StructType) and path[0] in kind.names and _has(kind[path[0]].dataType, path[1:])
