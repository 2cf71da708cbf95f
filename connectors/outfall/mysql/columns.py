"""The user's table as the server describes it: its columns and indexes, and whether it keeps rows and finds keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pymysql

from outfall.errors import TargetError
from outfall.mysql.database import MySQLSession
from outfall.mysql.errors import means
from outfall.mysql.names import quote
from outfall.mysql.options import MySQLOptions
from outfall.sql.database import Means, Session
from outfall.sql.dialect import compose
from outfall.sql.names import Found, SqlName
from outfall.sql.session import AT_ONCE, Statement

_COLUMNS = """
SELECT table_name, column_name, data_type, column_type, is_nullable = 'YES', extra, column_default IS NOT NULL,
       coalesce(character_maximum_length, 0), coalesce(numeric_precision, 0), coalesce(numeric_scale, 0),
       coalesce(datetime_precision, 0), character_set_name, collation_name
FROM information_schema.columns WHERE table_schema = coalesce(%s, database()) AND table_name = %s
ORDER BY ordinal_position
"""
_TABLE = """
SELECT table_type, engine FROM information_schema.tables
WHERE table_schema = coalesce(%s, database()) AND table_name = %s
"""
_FOUND = """
SELECT table_schema, table_name FROM information_schema.tables
WHERE table_schema = coalesce(%s, database()) AND table_name = %s
"""
_NEW = """
SELECT schema_name, IF(@@lower_case_table_names = 1, LOWER(%s), %s) FROM information_schema.schemata
WHERE schema_name = coalesce(%s, database())
"""
_INDEXES = """
SELECT table_name, index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = coalesce(%s, database()) AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index
"""
_CASCADES = """
SELECT constraint_name, table_name FROM information_schema.referential_constraints
WHERE unique_constraint_schema = coalesce(%s, database()) AND referenced_table_name = %s
AND delete_rule IN ('CASCADE', 'SET NULL') LIMIT 1
"""
_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int)\(\d+\)")
_WORDS = re.compile(r"'((?:[^'\\]|''|\\.)*)'")
_ESCAPED = re.compile(r"''|\\(.)")
_CHARACTERS = {"0": "\0", "n": "\n", "r": "\r", None: "'"}
"""The meaning of escapes in a word, as the server shows it; any other escaped character stands for itself."""
_WIDER = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
"""The integer types, and their bytes."""


@dataclass(frozen=True)
class MySQLColumn:
    """One column. `type` is SQL without display widths, which the servers show differently."""

    name: str
    kind: str
    """The name of the type, for example `varchar`."""
    type: str
    not_null: bool = False
    generated: bool = False
    auto_increment: bool = False
    has_default: bool = False
    length: int = 0
    """The characters of a string, or the bytes of a binary."""
    precision: int = 0
    """The digits of a number, or the bits of a BIT."""
    scale: int = 0
    fraction: int = 0
    """The digits of fractions of a second."""
    charset: str | None = None
    collation: str | None = None

    @property
    def definition(self) -> str:
        """The type with its character set and collation, as SQL."""
        if self.charset is None:
            return self.type
        return f"{self.type} CHARACTER SET {self.charset} COLLATE {self.collation}"

    @property
    def unsigned(self) -> bool:
        """Whether a number cannot be negative."""
        return "unsigned" in self.type

    @property
    def bytes(self) -> int:
        """The bytes of an integer; 0 for other types."""
        return _WIDER.get(self.kind, 0)

    @property
    def words(self) -> list[str]:
        """The words of an ENUM or a SET."""
        if self.kind not in ("enum", "set"):
            return []
        words = _WORDS.findall(self.type)
        return [_ESCAPED.sub(lambda found: _CHARACTERS.get(found[1], found[1]), word) for word in words]

    @property
    def writable(self) -> bool:
        """Whether rows may have a value for it."""
        return not self.generated

    @property
    def filled(self) -> str:
        """What it is if it is not writable."""
        return "a column that the server fills"

    @property
    def needed(self) -> bool:
        """Whether an inserted row must have a value for it."""
        return self.writable and self.not_null and not self.has_default and not self.auto_increment

    def stores_all_of(self, other: MySQLColumn) -> bool:
        """Return whether an assignment stores each value of another column unchanged, and compares it alike."""
        if self.definition == other.definition:
            return True
        if self.kind == other.kind == "varchar":
            return (self.charset, self.collation) == (other.charset, other.collation) and self.length >= other.length
        return 0 < other.bytes <= self.bytes and self.unsigned == other.unsigned


def find_table(session: Session, table: SqlName) -> Found:
    """Return database and name of a table as the catalogue has them: the server may ignore the case of names.

    For a missing table, it is what the server would store.
    """
    found = session.execute(_FOUND, (table.schema, table.name)).fetchone()
    if found is None:
        found = session.execute(_NEW, (table.name, table.name, table.schema)).fetchone()
    schema, name = found or (table.schema, table.name)
    return schema, name


def find_tables(session: Session, tables: Sequence[SqlName]) -> list[Found]:
    """Return databases and names of tables: see `find_table`."""
    places: dict[Found, Found] = {}
    for schema, names in _by_schema((table.schema, table.name) for table in tables):
        for first in range(0, len(names), AT_ONCE):
            found = session.execute(*_several(_FOUND, schema, names[first : first + AT_ONCE])).fetchall()
            places.update({(schema, name): (place, name) for place, name in found})
    return [places.get((table.schema, table.name)) or find_table(session, table) for table in tables]


def read_ahead(session: Session, tables: Sequence[SqlName], *, keys: bool = False) -> None:
    """Read the columns of several tables with one query, and with `keys` their unique indexes with another one."""
    for schema, names in _by_schema((table.place, table.name) for table in tables):
        for query in (_COLUMNS, _INDEXES) if keys else (_COLUMNS,):
            session.look_ahead(query, partial(_one, schema), names, partial(_several, query, schema))


def _by_schema(tables: Iterable[Found]) -> list[tuple[str | None, list[str]]]:
    """Return the names of tables by schema, unless there is one only, which the server finds faster alone."""
    found: dict[str | None, dict[str, None]] = {}
    for schema, name in tables:
        found.setdefault(schema, {})[name] = None
    return [(schema, list(names)) for schema, names in found.items() if len(names) > 1]


def _one(schema: str | None, names: Sequence[str]) -> tuple[str | None, ...]:
    return (schema, *names)


def _several(query: str, schema: str | None, names: Sequence[str]) -> Statement:
    return query.replace("table_name = %s", "table_name IN %s"), (schema, tuple(names))


def exists(session: Session, table: SqlName) -> bool:
    """Return whether a table exists: a tenth of the server's work to read its columns."""
    name = (table.place, table.name)
    return bool(session.look(_FOUND, name, name))


def read_columns(session: Session, table: SqlName) -> list[MySQLColumn]:
    """Read the columns of a table or view, in their order; none if it is missing."""
    name = (table.place, table.name)
    return [_column(*row[1:]) for row in session.look(_COLUMNS, name, name)]


@lru_cache(maxsize=1024)
def _column(
    name: str, kind: str, type: Any, nullable: int, extra: str, has_default: int, length: int, precision: int,
    scale: int, fraction: int, charset: str | None, collation: str | None,
) -> MySQLColumn:  # fmt: skip
    # Many tables have the same columns.
    extras = extra.lower()
    text = type.decode() if isinstance(type, bytes) else str(type)
    return MySQLColumn(
        name, kind.lower(), _WIDTH.sub(r"\1", text), not nullable,
        # An expression as the default, in MySQL, is DEFAULT_GENERATED.
        "generated" in extras.replace("default_generated", ""), "auto_increment" in extras, bool(has_default),
        int(length), int(precision), int(scale), int(fraction), charset, collation,
    )  # fmt: skip


def read_primary_key(session: Session, table: SqlName) -> list[str]:
    """Return the columns of a table's primary key; empty if it has none."""
    return [name for name, _ in _unique(session, table).get("PRIMARY", [])]


def deletes_elsewhere(session: Session, table: SqlName) -> str | None:
    """Return why a DELETE of all rows of a table can reach rows of other tables; `None` if it cannot."""
    found = session.execute(_CASCADES, (table.place, table.name)).fetchone()
    return f"the foreign key {found[0]} of {found[1]} refers to it" if found else None


def read_kinds(session: Session, tables: Sequence[SqlName]) -> None:
    """Read with few round trips what `check_relation` asks of tables."""
    names = [(table.place, table.name) for table in tables]
    session.look_each([(_TABLE, name) for name in names], names)


def check_relation(session: MySQLSession, table: SqlName) -> None:
    """Reject a table that would lose or hide rows without an error. A missing table passes. Changes nothing.

    Raises `TargetError` if it is not a table, or its engine has no transactions.
    """
    name = (table.place, table.name)
    found = session.look(_TABLE, name, name)
    if not found:
        return
    ((kind, engine),) = found
    if str(kind).upper() not in ("BASE TABLE", "SYSTEM VERSIONED"):
        raise TargetError(
            f"{table} is a {str(kind).lower()}",
            why="the server does not report which table stores its rows, so its engine and keys are unknown",
            do="write to the table below it",
        )
    if str(engine).lower() != "innodb":
        raise TargetError(
            f"{table} has the engine {engine}",
            why="the sink publishes in transactions of InnoDB; without them a crash could leave a part of an epoch, or"
            " write it twice",
            do=f"ALTER TABLE {table.quoted} ENGINE = InnoDB",
        )
    if session.in_group and not _has_row_key(session, table):
        raise TargetError(
            f"{table} has no primary key",
            why="Group Replication rejects rows of a table without one",
            do=f"ALTER TABLE {table.quoted} ADD PRIMARY KEY (…), or ADD COLUMN outfall_id BIGINT UNSIGNED NOT NULL"
            " AUTO_INCREMENT INVISIBLE PRIMARY KEY",
        )


def check_one_transaction(session: Session) -> None:
    """Reject a server that commits parts of a LOAD DATA, which nothing undoes. Changes nothing."""
    # MariaDB only, and not in each build.
    for name, value in session.execute("SHOW GLOBAL VARIABLES LIKE 'wsrep_load_data_splitting'").fetchall():
        if value == "ON":
            raise TargetError(
                f"{name} is ON: the server commits each 10,000 rows of a LOAD DATA",
                why="by parts, rows go straight into the table, and those of a task that fails must not stay",
                do=f"SET GLOBAL {name} = OFF on each node, which is the default; or omit parts",
            )


def _has_row_key(session: Session, table: SqlName) -> bool:
    """Return whether a table has a primary key, or a unique index that stands for one: no NULL, and no prefixes."""
    never_null = {column.name for column in read_columns(session, table) if column.not_null}
    return any(never_null.issuperset(map(_whole, parts)) for parts in _unique(session, table).values())


def check_keys(options: MySQLOptions, session: Session, table: SqlName, given: Sequence[str] | None) -> None:
    """Reject a table in which an upsert would not find exactly the row of a key. Changes nothing.

    `given` are the columns of the rows, if they are known. Raises `TargetError`.
    """
    columns = {column.name: column for column in read_columns(session, table)}
    if not options.by_key or not columns:
        return
    keys, indexes = options.key_columns, _unique(session, table)
    listed = ", ".join(quote(key).replace("%%", "%") for key in keys)
    ours = [name for name, parts in indexes.items() if sorted(map(_whole, parts)) == sorted(keys)]
    if not ours:
        raise TargetError(
            f"{table} has no unique index on {', '.join(keys)}",
            why="the sink needs it to find the row of a key; one on prefixes or expressions compares other values",
            do=f"CREATE UNIQUE INDEX outfall_key ON {table.quoted} ({listed})",
        )
    for name, parts in indexes.items():
        numbered = any(
            part in columns and columns[part].auto_increment and part not in (given or ()) for part, _ in parts
        )
        if name not in ours and not numbered:
            raise TargetError(
                f"{table} has a second unique index, {name}",
                why="ON DUPLICATE KEY UPDATE updates the row that any unique index finds, which may have another key",
                do=f"drop the index {name}, or make it non-unique; the index of an AUTO_INCREMENT column may stay if"
                " the rows do not have the column",
            )


def _whole(part: tuple[str, int | None]) -> str:
    name, prefix = part
    return name if prefix is None else ""


def _unique(session: Session, table: SqlName) -> dict[str, list[tuple[str, int | None]]]:
    """Return the unique indexes with their columns; an expression has no name, and a prefix a length."""
    found: dict[str, list[tuple[str, int | None]]] = {}
    name = (table.place, table.name)
    for _, index, column, prefix in session.look(_INDEXES, name, name):
        found.setdefault(str(index), []).append((column or "", prefix))
    return found


_NEEDED = {
    "append": ("INSERT",),
    "upsert": ("INSERT", "UPDATE", "SELECT"),
    "delete": ("DELETE", "SELECT"),
    "changes": ("INSERT", "UPDATE", "DELETE", "SELECT"),
}
"""The privileges needed on the table, by `write_mode`."""


def check_rights(options: MySQLOptions, session: Any, table: SqlName, names: Sequence[SqlName]) -> list[str]:
    """Return a sentence for each existing table that its privileges are granted: the target, then the sink's own.

    Raises `TargetError` for a privilege that the server does not show for this user.
    """
    wanted = {table: _NEEDED[options.write_mode] + (("DELETE",) if options.deletes else ())}
    # New parts go on after their last row.
    wanted[table] += ("SELECT",) if options.numbered else ()
    wanted |= dict.fromkeys(names, ("SELECT", "INSERT", "UPDATE", "DELETE"))
    found = []
    for name, rights in wanted.items():
        if not read_columns(session, name):
            found.append(f"{name} does not exist yet, or is not visible to this user")
            continue
        for right in dict.fromkeys(rights):
            _check_right(session, name, right)
        found.append(f"{', '.join(dict.fromkeys(rights))} on {name} granted")
    return found


def _check_right(session: Any, name: SqlName, right: str) -> None:
    columns = [column for column in read_columns(session, name) if column.writable]
    column = quote(columns[0].name)
    # EXPLAIN needs the privileges of its statement, and an INSERT with the columns that the table requires.
    given = [quote(each.name) for each in columns if each.needed] or [column]
    template = {
        "SELECT": "EXPLAIN SELECT {1} FROM {0} WHERE false",
        "INSERT": "EXPLAIN INSERT INTO {0} ({2}) SELECT {3} FROM (SELECT 1) AS one WHERE false",
        "UPDATE": "EXPLAIN UPDATE {0} SET {1} = NULL WHERE false",
        "DELETE": "EXPLAIN DELETE FROM {0} WHERE false",
    }[right]
    try:
        session.execute(compose(template, name.sql, column, ", ".join(given), ", ".join(["NULL"] * len(given))))
    except pymysql.MySQLError as error:
        if not means(error) & (Means.DENIED | Means.REFUSED):
            raise
        user, _, host = session.execute("SELECT current_user()").fetchone()[0].rpartition("@")
        account = "@".join("'" + part.replace("'", "''") + "'" for part in (user, host))
        raise TargetError(
            f"the privilege is missing: {right} on {name}", do=f"GRANT {right} ON {name.quoted} TO {account}"
        ) from error
