"""Columns: the fit between rows and tables, new tables for rows, and columns that a table lacks.

A table's columns are Arrow fields; a format adds its types and the way its readers find a column. A type is accepted if
no value changes. Files keep the metadata of the table's fields, such as field ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError
from outfall.tables.arrow_types import Takes, decimal, is_list
from outfall.values import spark_type

_is = pa.types
_CHANGE = "rename, cast or drop these columns"

IsNeeded = Callable[[pa.Field], bool]
"""Whether the table is partitioned by a column, or by a field inside it."""
Lacking = list[tuple[tuple[str, ...], pa.DataType]]
"""The path of each column, and its type. Elements of lists and values of maps are called `element` and `value`."""


class _MismatchError(Exception):
    """The reason why a column cannot be written."""


@dataclass(frozen=True)
class ColumnRules:
    """The columns of a table format."""

    format: str
    """Its name, for errors."""
    takes: Sequence[tuple[pa.DataType, Takes]]
    """Primitive types of tables, with the accepted types of rows and their types in the file.

    A new column gets the first that fits: an int before a long, a float before a double.
    """
    by_id: bool
    """Whether readers find columns by id. Fields inside a struct then keep the names of the rows."""
    has_fixed: bool
    """Whether there are binary types of a fixed size."""
    grows_inside: bool
    """Whether fields can be added to structs inside lists and maps."""
    type_text: Callable[[pa.DataType], str] = spark_type
    """Returns the name of a table's type, for errors."""

    def file_schema(self, table: pa.Schema, rows: pa.Schema, needed: IsNeeded) -> pa.Schema:
        """Return the schema of a data file for rows with these columns. It lacks columns that the rows lack.

        Top-level columns have the table's order and names. Inside a struct, fields keep the order of the rows. Raises
        `ConfigurationError` with each column that does not fit.
        """
        fit = _Fit(self)
        fields = dict(fit.columns(list(table), list(rows), "", needed))
        fit.check(
            "the rows do not fit the table: ",
            f'{_CHANGE}, or add them to the table: manually, or new ones with schema_evolution="add_columns"',
        )
        if not fields:
            raise ConfigurationError("the rows have no column", do="select the columns of the table")
        return pa.schema([fields[column.name].with_name(column.name) for column in table if column.name in fields])

    def new_columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns, all optional, of a new table. `ConfigurationError` has each that has no table type."""
        fit = _Fit(self)
        made = fit.new_fields(rows, "")
        if not made and not fit.problems:
            fit.problems.append("they have no column")
        fit.check("cannot create a table for these rows: ", _CHANGE)
        return pa.schema(made)

    def lacking(self, table: pa.Schema, rows: pa.Schema) -> Lacking:
        """Return the columns of the rows that a table lacks, with their new types. Raises like `new_columns`."""
        fit = _Fit(self)
        found = list(fit.lacking(list(table), list(rows), ()))
        fit.check("columns cannot be added to the table: ", _CHANGE)
        return found


@dataclass
class _Fit:
    """One comparison, with the problems found so far."""

    rules: ColumnRules
    problems: list[str] = field(default_factory=list)

    def check(self, what: str, do: str) -> None:
        """Raise the error with all problems, if there are any."""
        if self.problems:
            raise ConfigurationError(what + "; ".join(self.problems), do=do)

    # --- rows in a table

    def columns(
        self, columns: Sequence[pa.Field], rows: Sequence[pa.Field], path: str, needed: IsNeeded
    ) -> Iterator[tuple[str, pa.Field]]:
        """Yield the name of each table column that the rows have, and its file field; note those that do not fit."""
        found = {name: column for column, name in _matched(columns, rows)}
        for row in rows:
            column, name = found.get(row.name), f"{path}{row.name}"
            if column is None or (path and column.name != row.name and not self.rules.by_id):
                self.problems.append(self._not_there(name, path, row, columns))
                continue
            if path and row.nullable and not column.nullable:
                self.problems.append(f"{name} may be NULL, and the table requires it")
            try:
                kind = self.fits(column.type, row.type, name, needed)
            except _MismatchError as error:
                self.problems.append(str(error))
            else:
                yield column.name, column.with_type(kind).with_name(row.name)
        for column in columns:
            if column not in found.values():
                if not column.nullable:
                    self.problems.append(f"{path}{column.name} is missing, and the table requires it")
                elif needed(column):
                    self.problems.append(f"{path}{column.name} is missing, and the table is partitioned by it")

    def _not_there(self, name: str, path: str, row: pa.Field, columns: Iterable[pa.Field]) -> str:
        near = next((column.name for column in columns if column.name.lower() == row.name.lower()), None)
        if near is None:
            return f"{name} is not in the table"
        other = ", which another column is written to" if self.rules.by_id else ""
        return f"{name} differs only in case from {path}{near}{other}"

    def fits(self, kind: pa.DataType, given: pa.DataType, name: str, needed: IsNeeded) -> pa.DataType:
        """Return the type in the file for values of a given type. Raises `_MismatchError` if values would change."""
        given = self._plain(given)
        if _is.is_null(given):
            return kind
        if _is.is_struct(kind) and _is.is_struct(given):
            inside = self.columns(list(kind), list(given), f"{name}.", needed if self.rules.by_id else _not_needed)
            return pa.struct([file_field for _, file_field in inside])
        if is_list(kind) and is_list(given):
            element = self._inside(kind.value_field, given.value_field, f"{name}.element")
            return pa.large_list(element) if _is.is_large_list(given) else pa.list_(element)
        if _is.is_map(kind) and _is.is_map(given):
            key = kind.key_field.with_type(self.fits(kind.key_type, given.key_type, f"{name}.key", _not_needed))
            return pa.map_(key, self._inside(kind.item_field, given.item_field, f"{name}.value"))
        file_type = self._primitive(kind, given)
        if file_type is None:
            moment = _is.is_timestamp(given) or (_is.is_time(given) and _is.is_time(kind))
            why = (
                ": it may have nanoseconds, and the table stores microseconds" if moment and given.unit == "ns" else ""
            )
            raise _MismatchError(f"{name} is {spark_type(given)}, and {self.rules.type_text(kind)} in the table{why}")
        return file_type

    def _inside(self, column: pa.Field, given: pa.Field, name: str) -> pa.Field:
        """Return the file field of the elements of a list or the values of a map. They are not partition columns."""
        if given.nullable and not column.nullable:
            self.problems.append(f"{name} may be NULL, and the table requires it")
        return column.with_type(self.fits(column.type, given.type, name, _not_needed))

    def _plain(self, given: pa.DataType) -> pa.DataType:
        """Return the value type of a dictionary, or the storage type of an extension that tables do not have."""
        if _is.is_dictionary(given):
            return self._plain(given.value_type)
        if isinstance(given, pa.BaseExtensionType) and all(given != stored for stored, _ in self.rules.takes):
            return self._plain(given.storage_type)
        return given

    def _primitive(self, kind: pa.DataType, given: pa.DataType) -> pa.DataType | None:
        """Return the type in the file for a primitive type; `None` if values would change."""
        if _is.is_decimal(kind):
            return decimal(kind, given)
        if _is.is_fixed_size_binary(kind):
            return kind if given in (pa.binary(), kind) else None
        return next((takes(given) for stored, takes in self.rules.takes if stored == kind), None)

    # --- new columns

    def new_fields(self, given: Iterable[Any], path: str) -> list[pa.Field]:
        made: list[pa.Field] = []
        folded: dict[str, str] = {}
        for row in given:
            name, other = f"{path}{row.name}", folded.get(row.name.lower())
            if other is not None and not (path and self.rules.by_id):
                self.problems.append(f"{name} differs only in case from {path}{other}")
            folded[row.name.lower()] = row.name
            try:
                made.append(pa.field(row.name, self.new_type(row.type, name)))
            except _MismatchError as error:
                self.problems.append(str(error))
        return made

    def new_type(self, given: pa.DataType, name: str) -> pa.DataType:
        """Return the type of a new column for values of a type. Raises `_MismatchError` if none preserves them."""
        given = self._plain(given)
        if _is.is_struct(given):
            return pa.struct(self.new_fields(given, f"{name}."))
        if is_list(given):
            return pa.list_(pa.field("element", self.new_type(given.value_type, f"{name}.element")))
        if _is.is_map(given):
            key = self.new_type(given.key_type, f"{name}.key")
            return pa.map_(key, self.new_type(given.item_type, f"{name}.value"))
        if _is.is_decimal(given) and given.precision <= 38 and 0 <= given.scale <= given.precision:
            return pa.decimal128(given.precision, given.scale)
        if _is.is_fixed_size_binary(given) and self.rules.has_fixed:
            return given
        for stored, takes in self.rules.takes:
            if takes(given) is not None:
                return stored
        why = (
            "it has no type, because all its values are NULL"
            if _is.is_null(given)
            else f"{self.rules.format} has no type for {spark_type(given)}"
        )
        raise _MismatchError(f"{name}: {why}")

    # --- columns that a table lacks

    def lacking(
        self, columns: Sequence[pa.Field], rows: Sequence[pa.Field], path: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
        found = {name: column for column, name in _matched(columns, rows)}
        known = {column.name.lower(): column.name for column in columns}
        for row in rows:
            here, name = (*path, row.name), row.name.lower()
            if row.name in found:
                yield from self._lacking_inside(found[row.name], row.type, path)
            elif name in known:
                near = ".".join((*path, known[name]))
                self.problems.append(f"{'.'.join(here)} differs only in case from {near}")
            else:
                known[name] = row.name
                try:
                    yield here, self.new_type(row.type, ".".join(here))
                except _MismatchError as error:
                    self.problems.append(str(error))

    def _lacking_inside(
        self, column: pa.Field, given: pa.DataType, path: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
        kind, given, here = column.type, self._plain(given), (*path, column.name)
        if _is.is_struct(kind) and _is.is_struct(given):
            yield from self.lacking(list(kind), list(given), here)
        elif not self.rules.grows_inside:
            return
        elif is_list(kind) and is_list(given):
            yield from self._lacking_inside(kind.value_field, given.value_type, here)
        elif _is.is_map(kind) and _is.is_map(given):
            yield from self._lacking_inside(kind.item_field, given.item_type, here)


def _not_needed(column: pa.Field) -> bool:
    return False


def _matched(columns: Iterable[pa.Field], rows: Sequence[pa.Field]) -> Iterator[tuple[pa.Field, str]]:
    """Yield each table column with the name of its row column: an exact match, else a case-insensitive one."""
    for column in columns:
        alike = [row.name for row in rows if row.name.lower() == column.name.lower()]
        if column.name in alike:
            yield column, column.name
        elif len(alike) == 1:
            yield column, alike[0]
