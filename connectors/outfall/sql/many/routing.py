"""Which table a row goes to, where a column names it.

A name in a row is parsed as that of the option `table`, and then found by the server: names that it takes for one are
one table. A task asks once about each name. Rows of all tables with the same columns are loaded together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, TargetError
from outfall.sql.changes import Problem
from outfall.sql.database import ExpectedTables
from outfall.sql.dialect import Column
from outfall.sql.many.listed import ListedTables
from outfall.sql.many.tables import ManyTables
from outfall.sql.names import Found, SqlName, is_own
from outfall.sql.staging import layout_of
from outfall.sql.table import Table, dropped, missing
from outfall.sql.tables import StepTables

_NO_TABLE = Problem("its table is NULL", "give each row a table, or leave it out with a filter")


@dataclass(frozen=True)
class Route:
    """Where the rows with one name of a table go."""

    tables: StepTables[Any]
    """The tables of the step, of which the target is this one, or another one with its layout."""
    found: Found
    layout: int
    """The number of the layout. Rows of tables with the same layout are loaded together."""
    unknown: tuple[str, ...]
    """The columns of the rows that the table does not have."""


@dataclass(frozen=True)
class RoutedRows:
    """Rows of a batch for tables of one layout."""

    route: Route
    """That of one of them."""
    batch: pa.RecordBatch
    rows: Mapping[str, int]
    """The number of rows by the name of their table."""


@dataclass(frozen=True)
class _Named:
    """A table that rows name."""

    spelled: str
    table: SqlName
    """The name in the schema in which the server has found it."""
    found: Found


class Router:
    """Finds the tables that rows of one task name. `tables` are those of the step, and `session` is the task's."""

    def __init__(self, tables: ManyTables[Any], session: Any, schema: pa.Schema) -> None:
        self._tables = tables
        self._session = session
        self._schema = schema
        dialect = tables.dialect
        self._dialect = dialect
        self._column = tables.options.table_column or ""
        self._listed = ListedTables(dialect, tables.target.place)
        self._known: dict[str | None, Route | Problem] = {None: _NO_TABLE}
        self._layouts: dict[Hashable, int] = {}
        """The numbers of layouts: columns in their order, keys, and the table that has the layout alone."""
        self._fitting: dict[Hashable, Route] = {}
        """The routes of tables that rows fit, by columns and keys. What is known of one is known of the others."""

    def knows(self, batch: pa.RecordBatch) -> bool:
        """Return whether the server need not be asked about a batch."""
        return all(name in self._known for name in self._names(batch).dictionary.to_pylist())

    def problems(self, batch: pa.RecordBatch) -> Mapping[int, Problem]:
        """Return the rows whose table cannot be written, in their order. Asks the server about names that are new."""
        names = self._names(batch)
        self._meet([name for name in names.dictionary.to_pylist() if name not in self._known])
        found: dict[int, Problem] = {}
        listed = [*names.dictionary.to_pylist(), None]
        places = pc.fill_null(names.indices, len(listed) - 1)
        for place, name in enumerate(listed):
            route = self._known[name]
            if isinstance(route, Problem):
                found |= dict.fromkeys(pc.indices_nonzero(pc.equal(places, place)).to_pylist(), route)
            elif any(batch.column(column).null_count < batch.num_rows for column in route.unknown):
                found |= self._unknown_values(batch, pc.equal(places, place), route, str(name))
        return dict(sorted(found.items()))

    def split(self, batch: pa.RecordBatch) -> Iterator[RoutedRows]:
        """Yield the rows of a batch by layout. `problems` has none for them."""
        names = self._names(batch)
        listed: list[str] = names.dictionary.to_pylist()
        places, counts = pc.value_counts(names.indices).flatten()
        routes = {place: self._route(listed[place]) for place in places.to_pylist()}
        of_layout: dict[int, dict[str, int]] = {}
        for (place, route), count in zip(routes.items(), counts.to_pylist(), strict=True):
            of_layout.setdefault(route.layout, {})[listed[place]] = count
        if len(of_layout) > 1:
            layouts = [routes[place].layout if place in routes else None for place in range(len(listed))]
            of_row = pc.take(pa.array(layouts, pa.int32()), names.indices)
        for layout, rows in of_layout.items():
            route = next(route for route in routes.values() if route.layout == layout)
            some = batch if len(of_layout) == 1 else batch.filter(pc.equal(of_row, layout))
            yield RoutedRows(route, some.drop_columns(list(route.unknown)) if route.unknown else some, rows)

    def found(self, name: str) -> Found:
        """Return the table of a name for which there is no problem."""
        return self._route(name).found

    def _route(self, name: str) -> Route:
        route = self._known[name]
        if isinstance(route, Problem):
            raise LookupError(route.reason)
        return route

    def _names(self, batch: pa.RecordBatch) -> pa.DictionaryArray:
        column = batch.column(self._column)
        if not pa.types.is_dictionary(column.type):
            # A column of rows from Python that are all NULL has no type.
            column = column.cast(pa.string()).dictionary_encode()
        return column

    def _unknown_values(self, batch: pa.RecordBatch, mask: Any, route: Route, table: str) -> dict[int, Problem]:
        """Return the rows of a table that have a value for a column that it does not have."""
        found: dict[int, Problem] = {}
        for name in route.unknown:
            problem = Problem(
                f"the table {table} has no column {name!r}, in which the row has a value",
                "add the column, or leave the row out with a filter",
            )
            for row in pc.indices_nonzero(pc.and_(mask, batch.column(name).is_valid())).to_pylist():
                found.setdefault(row, problem)
        return found

    # --- names that are new

    def _meet(self, names: Sequence[str | None]) -> None:
        parsed: dict[str, SqlName] = {}
        for name in names:
            if name is None:
                continue
            try:
                parsed[name] = self._dialect.parse(name)
            except ConfigurationError as error:
                self._known[name] = Problem(f"{error.what}{f': {error.why}' if error.why else ''}", _CORRECT)
        if not parsed:
            return
        found = self._dialect.find_all(self._session, list(parsed.values()))
        named = {
            name: _Named(name, each.resolved(at), at) for (name, each), at in zip(parsed.items(), found, strict=True)
        }
        allowed = [each for name, each in named.items() if self._may_be_written(each, parsed[name])]
        self._read(allowed)
        self._refuse_dropped([each for each in allowed if not self._columns(each)])
        made = []
        for each in allowed:
            if self._is_like_others(each):
                continue
            if self._made(each):
                made.append(each)
            elif each.spelled not in self._known:
                self._known[each.spelled] = self._routed(each)
        if made:
            # Another session has created them.
            self._session.forget()
            self._read(made)
            for each in made:
                self._known[each.spelled] = self._routed(each)

    def _is_like_others(self, named: _Named) -> bool:
        """Return whether a table has the columns of one that rows fit; if so, its rows go the same way."""
        route = self._fitting.get(self._likeness(named))
        if route is None:
            return False
        self._known[named.spelled] = replace(route, found=named.found)
        return True

    def _likeness(self, named: _Named) -> Hashable:
        """Return what two tables have in common if rows go the same way."""
        return self._columns(named), self._keys(named), self._listed.columns(named.table, named.found)

    def _may_be_written(self, named: _Named, parsed: SqlName) -> bool:
        letters, name = self._tables.dead_letters, named.spelled
        if is_own(named.table, self._tables.options.metadata_schema):
            self._known[name] = Problem(f"the table {name!r} contains Outfall's own records", _CORRECT)
        elif letters is not None and self._dialect.is_same(self._session, letters.table, named.table):
            self._known[name] = Problem(f"the table {name!r} is dead_letter_table", _CORRECT)
        elif not self._listed.allows(parsed, named.found):
            self._known[name] = Problem(
                f"allowed_tables does not allow the table {name!r}",
                "correct the row, or add the table to allowed_tables",
            )
        return name not in self._known

    def _read(self, tables: Sequence[_Named]) -> None:
        self._dialect.read_ahead(self._session, [each.table for each in tables])

    def _columns(self, named: _Named) -> tuple[Column, ...]:
        return tuple(self._dialect.columns(self._session, named.table))

    def _keys(self, named: _Named) -> tuple[str, ...]:
        """Return what identifies the rows of a table, if it is not the same for all."""
        return self._listed.keys(self._session, named.table, named.found)

    def _refuse_dropped(self, absent: Sequence[_Named]) -> None:
        """Raise `TargetLostError` for a table that is missing, although this query has written to it."""
        named = {self._dialect.in_ledger(each.found): each for each in absent}
        for target in self._tables.ledger.known_tables(self._session, list(named)):
            raise dropped(self._dialect.parse(named[target].spelled), self._tables.step_id, one_of_many=True)

    def _made(self, named: _Named) -> bool:
        """Create a missing table or column, as the options allow; return whether anything was missing.

        The rows of a table that they do not fit have a problem.
        """
        keys, columns = self._keys(named), self._listed.columns(named.table, named.found)
        tables = self._tables.of_table(named.found, named.spelled, keys=keys, columns=columns)
        table = Table(tables.dialect, tables.target)
        try:
            exists = table.check_columns(self._session, self._schema)
            if not exists and tables.options.create_table == "never":
                raise missing(tables.target)
            if self._tables.options.keys_are_primary and not keys:
                raise TargetError(
                    f"{tables.target} {'has' if exists else 'is to be created with'} no primary key",
                    do="create one, or name the key in table_keys" if exists else "name the key in table_keys",
                )
        except (ConfigurationError, TargetError) as error:
            problem = Problem(f"{error.what}{f': {error.why}' if error.why else ''}", error.do or _CORRECT)
            self._known[named.spelled] = problem
            return False
        if not table.missing_ddl(self._session, self._schema):
            return False
        tables.make(ExpectedTables((tables.target.name,), lambda session: table.missing_ddl(session, self._schema)))
        return True

    def _routed(self, named: _Named) -> Route:
        every = self._columns(named)
        columns = layout_of(every)
        keys = self._keys(named)
        tables = self._tables.of_table(named.found, named.spelled, layout=columns, keys=keys)
        options = tables.options
        names = {column.name for column in columns}
        unknown = tuple(each for each in self._schema.names if each not in names and each not in options.not_stored)
        # Whether NULL is a key of its own depends on the indexes of the table.
        nullable = any(not getattr(each, "not_null", False) for each in columns if each.name in options.key_columns)
        alone = named.found if nullable and options.write_mode in ("upsert", "delete") else None
        layout = (tuple(columns), keys, alone)
        route = Route(tables, named.found, self._layouts.setdefault(layout, len(self._layouts)), unknown)
        if alone is None:
            self._fitting[self._likeness(named)] = route
        return route


_CORRECT = "correct the row, or leave it out with a filter"
