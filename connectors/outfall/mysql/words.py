"""The words of MySQL and MariaDB.

ON DUPLICATE KEY UPDATE writes rows one after another, and the last one of a key wins: so an upsert writes all rows in
order, and keys are compared by the index of the table, under its own collation. The newest change of each key is found
by one sort.

All of the sink's tables have a primary key, as clusters require. There are no unlogged tables, so a crash of the server
keeps staged rows. Creating a table commits, so no table is created within an epoch's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from outfall.mysql.names import quote
from outfall.sql.dialect import compose
from outfall.sql.options import MARKER, NUMBER, OPERATION, REMOVED, ROW, STAGE, TABLE
from outfall.sql.statements import Statements
from outfall.sql.words import Latest, Selection, Words

_STAGE, _ROW = quote(STAGE), quote(ROW)
_ADDRESS = f"{_STAGE}, {_ROW}"
_MADE = " ENGINE = InnoDB CHARACTER SET utf8mb4"


class MySQLWords(Words):
    """The words of MySQL and MariaDB."""

    make_schema = "CREATE DATABASE IF NOT EXISTS {}"
    schemas = "information_schema.schemata WHERE schema_name"
    # Names compare by their bytes. An index of InnoDB has at most 3072 bytes.
    name = "VARCHAR({}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
    time = "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
    made = _MADE
    staging_key = ", KEY (staging)"
    staging = f"CREATE TABLE {{table}} ({{fields}}, PRIMARY KEY ({_ADDRESS})){_MADE}"
    staging_index = "CREATE INDEX {column} ON {table} ({column})"
    # A TIMESTAMP is NOT NULL by default.
    staged = "{} NULL"
    # Other collations ignore what separates the names of columns that an operation keeps.
    operation = "TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    table = "VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    own = {STAGE: "BIGINT NOT NULL", ROW: "BIGINT NOT NULL", MARKER: "TINYINT", OPERATION: operation, TABLE: table}
    tombstones = (
        "CREATE TABLE {table} ({fields}, {deleted} DATETIME(6) NOT NULL, PRIMARY KEY ({keys}), KEY ({deleted}))"
        + _MADE,
    )
    altered = "MODIFY COLUMN {name} {whole}"
    forget = "DELETE FROM {table} WHERE {deleted} < NOW(6) - INTERVAL %s SECOND ORDER BY {deleted} LIMIT %s"
    keeping = "ON DUPLICATE KEY UPDATE begun = begun"
    # Rows have names as they were spelled, of which the server may take several for one table.
    same_target = "target = {0} OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER({0})"

    in_order = f" ORDER BY {_ADDRESS}"
    delete = "DELETE target FROM {table} AS target JOIN {source} AS removed ON {same} WHERE {where}"
    bury = "ON DUPLICATE KEY UPDATE {buried} = latest.{sequence}, {deleted} = {now}"
    # NOW(6) is that of the statement.
    now = "%(now)s"
    clock = "NOW(6)"
    # The row is changed, because the nodes of a cluster have no common locks, and compare what transactions changed.
    lock = (
        "INSERT INTO {ledger} (incarnation, target, step, generation, begun) VALUES ('', %(name)s, '', 0, -1)"
        " ON DUPLICATE KEY UPDATE begun = begun + 1"
    )
    first = lock
    # MariaDB has no FOR SHARE.
    sharing = " LOCK IN SHARE MODE"
    locks_on_one_node = True
    holding = "INSERT INTO {table} ({columns}) SELECT {nothing} FROM DUAL WHERE false"
    keep = "UPDATE {staging} AS kept JOIN ({query}) AS found ON {same} SET kept.{column} = found._outfall_value"
    address = (_STAGE, _ROW)
    place = "CONCAT({0}, ':', {1})"

    def quote(self, column: str) -> str:
        return quote(column)

    def at(self, places: Sequence[str]) -> Selection:
        some = ", ".join(f"({stage}, {row})" for stage, row in map(address_of, places))
        return Selection(f"({_ADDRESS}) IN ({some})")

    def held(self, statements: Statements) -> list[str]:
        # The plan of a query below another one may execute it.
        if statements.options.write_mode == "delete":
            return [compose("DELETE FROM {} WHERE false", statements.table)]
        return [statements.append(Selection("false")).removesuffix(self.in_order)]

    def latest(self, statements: Statements, rows: Selection, columns: Sequence[str]) -> Latest:
        options, number, keys = statements.options, quote(NUMBER), self.listed(statements.keys)
        if options.write_mode == "changes":
            source = statements.filled(
                "(SELECT *, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {sequence} DESC) AS {number} FROM {staging}"
                " WHERE {these}) AS latest",
                rows,
            )
            return Latest(source, keys, [f"latest.{number} = 1"], statements.is_removal)
        order = [*([quote(options.order_column)] if options.order_column else []), *self.address]
        if not options.delete_marker:
            return Latest(f"{statements.staging} AS latest", ", ".join(order), [rows.condition])
        # A row is written unless it is a removal or a removal of its key follows.
        source = statements.filled(
            "(SELECT {columns}, {address}, SUM({is_removal}) OVER (PARTITION BY {keys} ORDER BY {newest}"
            " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS {removed} FROM {staging} WHERE {these}) AS latest",
            rows, address=_ADDRESS, newest=", ".join(f"{column} DESC" for column in order),
        )  # fmt: skip
        return Latest(source, ", ".join(order), [f"{quote(REMOVED)} = 0"])

    def upsert(self, statements: Statements) -> str:
        table, ordered, updated = statements.table, statements.options.ordered_by, statements.updated()
        if ordered is None:
            key = f"{quote(statements.keys[0])} = {table}.{quote(statements.keys[0])}"
            pairs = [f"{quote(name)} = latest.{quote(name)}" for name in updated] or [key]
        else:
            newer = statements.not_newer(table, ordered, f"latest.{quote(ordered)}")
            # The server assigns from left to right, and what is compared must be assigned last.
            updated = [*(name for name in updated if name != ordered), ordered]
            text = "{0} = IF({newer}, latest.{0}, {table}.{0})"
            pairs = [compose(text, quote(name), newer=newer, table=table) for name in updated]
        return f"ON DUPLICATE KEY UPDATE {', '.join(pairs)}"

    def content(self, removal: str, columns: Sequence[str]) -> str:
        # By a hash of each value as text, because some types compare different values as equal.
        hashes = ", ".join(f"COALESCE(SHA2({column}, 256), '-')" for column in columns)
        return f"IF({removal}, '-', CONCAT_WS('/', {hashes}))"

    def not_null(self, kind: str) -> str:
        # Without a default, servers may give a TIMESTAMP one that changes with each update of the row.
        default = " DEFAULT '2000-01-01 00:00:00'" if kind.startswith("timestamp") else ""
        return f"{kind} NOT NULL{default}"


def address_of(place: str) -> tuple[int, int]:
    """Return the number of an attempt, and that of a row in it, from the text of an address."""
    stage, _, row = place.partition(":")
    return int(stage), int(row)
