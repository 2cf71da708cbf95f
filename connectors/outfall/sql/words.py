"""The words of a database: what differs, as text, between its statements and those of the others.

A word is a part of a statement, or a template of one with the fields that its description names. `statements` makes
statements from words and options, without a server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from outfall.sql.options import MARKER, NUMBER, REMOVED, ROW, STAGE, TABLE

if TYPE_CHECKING:
    from outfall.sql.statements import Statements


@dataclass(frozen=True)
class Selection:
    """A selection of staged rows."""

    condition: str
    """The condition on staging."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the conditions."""
    every: bool = False
    """Whether these are all rows of the attempts."""
    removals: str | None = None
    """The condition on those that are removals, if it is another one."""
    ranked: str | None = None
    """The condition on a ranking that a database has made; `None` if several rows may have one key."""


@dataclass(frozen=True)
class Latest:
    """The rows of a selection that are written, of several with one key the last one."""

    source: str
    """What is between FROM and WHERE: a table or a query with the name `latest`."""
    order: str
    """The order in which they are written."""
    conditions: Sequence[str] = ()
    removed: str | None = None
    """Whether such a row is a removal; `None` if none is."""
    before: str = ""
    """What the statement begins with."""


@dataclass(frozen=True)
class Removed:
    """The rows of a selection that remove others."""

    source: str
    """A table or a query, without a name."""
    values: Mapping[str, str]
    """The expressions for their keys and their order, of the name `removed`, by column."""
    conditions: Sequence[str] = ()


@dataclass(frozen=True)
class Conflicts:
    """Which rows replace others of their key, by the indexes of the table."""

    within: str | None = None
    """An expression for whether a staged row can be in conflict with another one of its key; `None` for all."""
    nulls: Sequence[str] = ()
    """The keys whose NULLs are equal."""


NO_CONFLICTS = Conflicts()


class Words(ABC):
    """The words of one database. Statements have parameters in the style `pyformat`, and every other % is doubled."""

    make_schema: ClassVar[str]
    """Creates a schema, `{}`, if it is missing."""
    schemas: ClassVar[str]
    """A table and a condition that find the schemas whose name follows."""
    name: ClassVar[str]
    """The type of a name in the ledger, with up to `{}` characters."""
    time: ClassVar[str]
    """The type of a column that has the time of its INSERT by default."""
    made: ClassVar[str] = ""
    """What ends a statement that creates one of the sink's tables."""
    staging_key: ClassVar[str] = ""
    """What follows the columns of the table of attempts, to find those of a staging table."""
    staging: ClassVar[str]
    """Creates the staging table `{table}` with `{fields}`."""
    staging_index: ClassVar[str] = "CREATE INDEX ON {table} ({column})"
    """Creates an index on a `{column}` of staging."""
    staged: ClassVar[str] = "{}"
    """The type of a column of staging, from that of the target's."""
    own: ClassVar[Mapping[str, str]]
    """The types of staging's own columns."""
    tombstones: ClassVar[Sequence[str]]
    """Create the table of tombstones `{table}` with `{fields}`, the time `{deleted}` and the primary key `{keys}`."""
    altered: ClassVar[str]
    """Gives the column `{name}` another type: `{type}`, `{plain}` without its collation, or `{whole}` with NOT NULL."""
    forget: ClassVar[str]
    """Removes the tombstones of `{table}` whose time `{deleted}` is older than `%s` seconds, at most `%s`."""
    keeping: ClassVar[str]
    """What an INSERT into the ledger ends with so that an existing row of the same key is kept."""
    locking: ClassVar[str] = " FOR UPDATE"
    """What a query of the ledger ends with so that no other transaction writes the row."""
    sharing: ClassVar[str] = " FOR SHARE"
    """The same, while others may share the lock. By parts only."""
    locks_on_one_node: ClassVar[bool] = False
    """Whether another node of a cluster may write a row that is locked on this one. By parts only."""
    owned: ClassVar[str] = ""
    """What ends the table of parts, so that its rows are removed with those of the ledger in the schema `{}`."""
    first: ClassVar[str]
    """Waits for another driver that empties the table before its tasks write it, with the same `%(name)s`. By
    parts only."""
    holding: ClassVar[str]
    """Locks `{table}` as writing `{columns}` does, but writes nothing. `{nothing}` is a NULL for each. By parts
    only."""
    same_target: ClassVar[str] = "target = {}"
    """The condition that a row of the ledger is one of a table, of whose name it is a template."""

    target: ClassVar[str] = ""
    """What gives the table of an INSERT the name `target`."""
    in_order: ClassVar[str] = ""
    """What ends an INSERT of all rows."""
    delete: ClassVar[str]
    """Deletes the rows of `{table}`, as `target`, with the keys of `{source}`, as `removed`.

    `{same}` compares the keys. `{where}` has all other conditions, and `{also}` each of them after an AND.
    """
    keep: ClassVar[str]
    """Sets `{column}` of `{staging}`, as `kept`, to `_outfall_value` of `{query}`, as `found`, where `{same}`."""
    newest: ClassVar[str] = "max(CASE WHEN {condition} THEN {value} END) OVER ({window})"
    """The greatest value of the rows of a window that meet a condition; NULL if none does."""
    leaves: ClassVar[bool] = False
    """Whether an upsert can leave a row as it is, and does not count it then."""
    bury: ClassVar[str]
    """What ends an INSERT of tombstones with `{keys}`: sets `{buried}` to `{sequence}` and `{deleted}` to `{now}`."""
    now: ClassVar[str]
    """The time of the transaction, for tombstones. The parameter `now` is that of `clock` at its first statement."""
    clock: ClassVar[str]
    """The time of the server."""
    lock: ClassVar[str]
    """Waits for other publications of changes to the table with the tombstones `%(name)s`, or with the schema
    `%(table)s`. `{ledger}` is the ledger."""
    at_once: ClassVar[str | None] = None
    """Has constraints checked by each statement, and not by COMMIT."""
    address: ClassVar[Sequence[str]]
    """The columns that are the address of a staged row."""
    place: ClassVar[str]
    """The address as text, from its columns `{0}`, `{1}`."""

    @abstractmethod
    def quote(self, column: str) -> str:
        """Quote a column by the driver's own means, for a statement with parameters."""

    def listed(self, columns: Sequence[str]) -> str:
        """Return columns as SQL."""
        return ", ".join(map(self.quote, columns))

    def not_null(self, kind: str) -> str:
        """Return the type and constraint of a column of tombstones that is never NULL."""
        return f"{kind} NOT NULL"

    def all(self, stages: Sequence[int]) -> Selection:
        """Return all rows of attempts."""
        numbers = ", ".join(str(int(stage)) for stage in stages)
        return Selection(f"{self.quote(STAGE)} IN ({numbers or 'NULL'})", every=True)

    def of_table(self, rows: Selection, names: Sequence[str]) -> Selection:
        """Return those of a selection whose table is spelled in one of these ways."""
        given = {f"table_{number}": name for number, name in enumerate(names)}
        listed = ", ".join(f"%({parameter})s" for parameter in given)
        condition = f"{rows.condition} AND {self.quote(TABLE)} IN ({listed})"
        return replace(rows, condition=condition, given={**rows.given, **given})

    @abstractmethod
    def at(self, places: Sequence[str]) -> Selection:
        """Return the rows at some addresses."""

    @abstractmethod
    def held(self, statements: Statements) -> list[str]:
        """Return the statements whose plans take the locks that moving rows takes. They have no parameters."""

    @abstractmethod
    def latest(self, statements: Statements, rows: Selection, columns: Sequence[str]) -> Latest:
        """Return the rows that are written, with some columns of the target."""

    def removed(self, statements: Statements, rows: Selection) -> Removed:
        """Return the rows that remove others: all with `delete`, those with a marker with `upsert`."""
        options = statements.options
        names = [*statements.keys, *([] if options.order_column is None else [options.order_column])]
        marked = [f"removed.{self.quote(MARKER)}"] if options.delete_marker else []
        values = {name: f"removed.{self.quote(name)}" for name in names}
        return Removed(statements.staging, values, [rows.condition, *marked])

    @abstractmethod
    def upsert(self, statements: Statements) -> str:
        """Return what ends an INSERT of the rows `latest`: an existing row is updated if it is not newer."""

    def content(self, removal: str, columns: Sequence[str]) -> str:
        """Return an expression that is equal for rows whose columns have equal bytes, and for all removals.

        Needed for `write_mode="changes"` only.
        """
        raise NotImplementedError


class StandardWords(Words):
    """Words that several databases have: windows, ON CONFLICT with the row `excluded`, and EXISTS in a DELETE."""

    keeping = "ON CONFLICT DO NOTHING"
    staging = "CREATE TABLE {table} ({fields})"
    target = " AS target"
    delete = "DELETE FROM {table} AS target WHERE EXISTS (SELECT 1 FROM {source} AS removed WHERE {same}{also})"

    def held(self, statements: Statements) -> list[str]:
        return [statements.append(Selection("false"))]

    def latest(self, statements: Statements, rows: Selection, columns: Sequence[str]) -> Latest:
        ordered = statements.options.ordered_by
        newest = [f"{self.quote(name)} DESC" for name in (ordered, STAGE, ROW) if name]
        source = statements.filled(
            "(SELECT *, {is_removal} AS {removed}, row_number() OVER (PARTITION BY {keys} ORDER BY {newest})"
            " AS {number} FROM {staging} WHERE {these}) AS latest",
            rows, newest=", ".join(newest),
        )  # fmt: skip
        return Latest(source, self.listed(statements.keys), [f"{self.quote(NUMBER)} = 1"], self.quote(REMOVED))

    def upsert(self, statements: Statements) -> str:
        ordered = statements.options.ordered_by
        pairs = ", ".join(f"{name} = excluded.{name}" for name in map(self.quote, statements.updated()))
        if not pairs:
            return statements.filled("ON CONFLICT ({keys}) DO NOTHING")
        newer = statements.not_newer("target", ordered, f"excluded.{self.quote(ordered)}") if ordered else "true"
        return statements.filled("ON CONFLICT ({keys}) DO UPDATE SET {pairs} WHERE {newer}", pairs=pairs, newer=newer)


def doubled(text: str) -> str:
    """Return SQL of a user or the server unchanged, for a statement with parameters."""
    return text.replace("%", "%%")
