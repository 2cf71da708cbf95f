"""What the options say of single tables, where a column names them: `allowed_tables`, `table_keys`, `table_columns`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from outfall.sql.dialect import Dialect
from outfall.sql.names import Found, SqlName
from outfall.tables.allowed import ByTable

T = TypeVar("T")


class Listed(Generic[T]):
    """What an option says of tables: entries in the form of the option `table`, also with `*`.

    `default` is the schema of a name that has none and does not exist.
    """

    def __init__(self, dialect: Dialect, entries: Iterable[tuple[str, T]], default: str | None) -> None:
        self._default = default
        names = ((dialect.parse(entry), value) for entry, value in entries)
        self._of = ByTable((_parts(name.schema, name.name), value) for name, value in names)

    def find(self, named: SqlName, found: Found) -> T | None:
        """Return what the option says of a table, which a row or an option names and the server has found."""
        # A name without schema stands for the table that the server finds, as in the option `table`.
        elsewhere = named.schema is not None and found[0] != self._default
        own = self._of.find((found[0] or "", found[1]))
        return self._of.find((found[1],)) if own is None and not elsewhere else own


class ListedTables:
    """What the options say of each of many tables. `dialect` and `default` are those of the step: see `Listed`."""

    def __init__(self, dialect: Dialect, default: str | None) -> None:
        options = dialect.options
        self._dialect = dialect
        self._allowed = Listed(dialect, ((entry, True) for entry in options.allowed_tables), default)
        self._keys = Listed(dialect, options.table_keys.items(), default)
        self._columns = Listed(dialect, options.table_columns.items(), default)

    def allows(self, named: SqlName, found: Found) -> bool:
        """Return whether a row may name a table, which the server has found."""
        return self._allowed.find(named, found) is not None

    def given_keys(self, named: SqlName, found: Found) -> tuple[str, ...]:
        """Return the keys that `table_keys` has for a table."""
        return self._keys.find(named, found) or ()

    def keys(self, session: Any, named: SqlName, found: Found) -> tuple[str, ...]:
        """Return what identifies the rows of a table, if it is not the same for all."""
        given = self.given_keys(named, found)
        if given or not self._dialect.options.keys_are_primary:
            return given
        return tuple(self._dialect.primary_key(session, named.resolved(found)))

    def columns(self, named: SqlName, found: Found) -> tuple[str, ...]:
        """Return the columns that a table gets; none stands for all of the rows."""
        return self._columns.find(named, found) or ()


def _parts(schema: str | None, name: str) -> tuple[str, ...]:
    return (name,) if schema is None else (schema, name)
