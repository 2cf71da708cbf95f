"""MySQL's dialect of SQL, which MariaDB shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.errors import TargetError, ValueRefusedError
from outfall.mysql.columns import (
    MySQLColumn,
    check_keys,
    check_one_transaction,
    check_relation,
    deletes_elsewhere,
    exists,
    find_tables,
    read_ahead,
    read_columns,
    read_kinds,
    read_primary_key,
)
from outfall.mysql.database import MySQLDatabase, MySQLSession
from outfall.mysql.errors import MySQLRefusal
from outfall.mysql.load import StagingLoad, TableLoad
from outfall.mysql.moving import positioned_rows, row_text
from outfall.mysql.names import MySQLName, quote, why_no_name
from outfall.mysql.options import MySQLOptions
from outfall.mysql.send import RowSender, RowTooLargeError
from outfall.mysql.tombstones import MySQLTombstones
from outfall.mysql.types import KEY_LENGTH, arrow_type, new_column_type, why_no_sequence, why_not
from outfall.mysql.words import MySQLWords
from outfall.sql.dialect import Dialect, among, compose
from outfall.sql.keyed import Move, PositionedRows
from outfall.sql.ledger import StepLedger
from outfall.sql.names import Found, SqlName, ledger_name, staging_name
from outfall.sql.options import STAGE
from outfall.sql.staging import Staging

_ID = "_outfall_id"
"""The primary key of a table that is created without one: row-based replication and clusters require one."""


class MySQLDialect(Dialect):
    """MySQL or MariaDB, for the sink with these options."""

    sink = "MySQLSink"
    words = MySQLWords()
    volatile = "they were removed, or the database was restored"

    def __init__(self, options: MySQLOptions) -> None:
        self.options: MySQLOptions = options
        self.database: MySQLDatabase = MySQLDatabase(options)
        self.adds_columns = options.payload_column is None

    def parse(self, text: str) -> MySQLName:
        return MySQLName.parse(text)

    def columns(self, session: MySQLSession, table: SqlName) -> Sequence[MySQLColumn]:
        return read_columns(session, table)

    def with_options(self, options: MySQLOptions) -> MySQLDialect:
        return MySQLDialect(options)

    def primary_key(self, session: MySQLSession, table: MySQLName) -> Sequence[str]:
        return read_primary_key(session, table)

    def find_all(self, session: MySQLSession, tables: Sequence[MySQLName]) -> Sequence[Found]:
        return find_tables(session, tables)

    def read_ahead(self, session: MySQLSession, tables: Sequence[Any]) -> None:
        read_ahead(session, tables, keys=self.options.keys_are_primary)

    def read_checked(self, session: MySQLSession, tables: Sequence[Any], keys: Sequence[Sequence[str]]) -> None:
        read_ahead(session, tables, keys=self.options.by_key)
        read_kinds(session, tables)

    def deletes_elsewhere(self, session: MySQLSession, table: SqlName) -> str | None:
        return deletes_elsewhere(session, table)

    def exists(self, session: MySQLSession, table: SqlName) -> bool:
        return exists(session, table)

    def is_same(self, session: MySQLSession, table: SqlName, other: SqlName) -> bool:
        query = "SELECT COUNT(DISTINCT table_schema, table_name) = 1 FROM information_schema.tables WHERE {0} OR {0}"
        which = "(table_schema = COALESCE(%s, DATABASE()) AND table_name = %s)"
        given = [part for name in (table, other) for part in (name.place, name.name)]
        # Names that differ only in case may be one table, depending on the server's lower_case_table_names.
        both = session.execute(query.format(which), given).fetchone()[0]
        return bool(both and read_columns(session, table) and read_columns(session, other))

    def check_relation(self, session: MySQLSession, table: SqlName) -> None:
        check_relation(session, table)
        if self.options.parts is not None:
            check_one_transaction(session)

    def check_keys(self, session: MySQLSession, table: SqlName, given: Sequence[str] | None) -> None:
        check_keys(self.options, session, table, given)

    def arrow_type(self, column: MySQLColumn) -> pa.DataType:
        return arrow_type(column)

    def new_type(self, kind: pa.DataType, name: str) -> str:
        return new_column_type(kind, name)

    def why_not(self, kind: pa.DataType, column: MySQLColumn) -> str | None:
        return why_not(kind, column)

    def why_no_sequence(self, kind: pa.DataType, column: Any) -> str | None:
        return why_no_sequence(kind, column)

    def why_no_column(self, name: str) -> str | None:
        return why_no_name(name)

    def create_table(
        self, table: SqlName, columns: pa.Schema, key: Sequence[str] = (), *, waiting: bool = False
    ) -> str:
        fields = [_definition(field, is_key=field.name in key) for field in columns]
        if key:
            fields.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
        else:
            fields.append(f"{quote(_ID)} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE")
            # Removing the rows of an attempt must not search the table: that would wait for rows of other attempts.
            first = f"{quote(STAGE)}, " if waiting else ""
            fields.append(f"PRIMARY KEY ({first}{quote(_ID)}), KEY ({quote(_ID)})")
        collation = "ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        return compose("CREATE TABLE {} ({}) {}", table.sql, ", ".join(fields), collation)

    def add_column(self, table: SqlName, column: pa.Field) -> str:
        return compose("ALTER TABLE {} ADD COLUMN {}", table.sql, _definition(column))

    def after_delete(self, session: MySQLSession, table: SqlName) -> str | None:
        # A trigger can fail a DELETE, but not skip a row.
        return None

    def ledger(self, incarnation: str, step_id: str, found_in: str | None) -> StepLedger:
        table = self.parse(self.options.table or "")
        named = ledger_name(table.schema or self.database.database_name(), table.name)
        own = MySQLName(self.options.metadata_schema, "ledger")
        return StepLedger(self, own, named, incarnation, step_id)

    def staging(self, step_id: str, target: SqlName, found_in: str | None) -> Staging:
        extra = self.options.own_columns()[2:]
        spelled = target.found_in(self.database.database_name())
        name = staging_name(self.options.metadata_schema, spelled, step_id, extra)
        return Staging(self, name, target)

    def discard(self, session: MySQLSession, column: str, table: SqlName, attempts: str) -> None:
        # By their numbers: a DELETE that searches would wait for the rows that a task is writing.
        query = "SELECT DISTINCT {0} FROM {1} WHERE NOT EXISTS (SELECT 1 FROM {2} AS live WHERE live.stage = {1}.{0})"
        found = session.execute(compose(query, column, table.sql, attempts)).fetchall()
        for (stage,) in found:
            session.later(compose("DELETE FROM {} WHERE {} {}", table.sql, column, among([stage])))

    def insert_dead_letters(self, session: MySQLSession, table: SqlName, rows: pa.RecordBatch) -> None:
        # What fails before is no refusal of a dead letter.
        session.flush()
        sender = RowSender(session, table, rows.schema, rows.schema.names)
        try:
            refusal = sender.send(rows)
        except RowTooLargeError as error:
            raise ValueRefusedError(
                f"the table {table} cannot take a dead letter", why=error.why, do=error.do
            ) from None
        if refusal is not None:
            do = "drop the table, and create it as MySQLSink.ddl() prints it"
            raise TargetError(f"the table {table} rejects dead letters", why=refusal.reason, do=do)

    def load(
        self,
        staging: SqlName,
        target: SqlName,
        schema: pa.Schema,
        stage: int,
        context: WriterInitContext,
        session: MySQLSession | None = None,
    ) -> StagingLoad:
        return StagingLoad(self, staging, target, schema, stage, context, session)

    def direct(
        self, session: MySQLSession, table: SqlName, schema: pa.Schema, columns: Sequence[MySQLColumn]
    ) -> TableLoad:
        check_one_transaction(session)
        return TableLoad(self, session, table, schema, columns)

    def rows_changed(self, session: MySQLSession, statement: str, result: Any) -> int:
        # An update counts as two rows.
        return int(result.records if statement.startswith("INSERT") else result.rowcount)

    def positioned_rows(self, session: MySQLSession, move: Move) -> PositionedRows:
        return positioned_rows(session, move, self.options.ordered_by)

    def row_text(self, session: MySQLSession, staging: SqlName, shown: Mapping[str, str], place: str) -> str:
        return row_text(session, staging, shown, place)

    def tombstones(self, target: SqlName) -> MySQLTombstones:
        return MySQLTombstones(self, target)

    def refusal(self, error: Any) -> MySQLRefusal:
        return MySQLRefusal.of(error, ordered=self.options.write_mode != "append")

    def stored_refusal(self, reason: str, code: str | None, detail: str | None) -> MySQLRefusal:
        return MySQLRefusal(reason, code, detail)


def _definition(field: pa.Field, *, is_key: bool = False) -> str:
    kind = new_column_type(field.type, field.name)
    if is_key:
        # A longer type has no index on all of it.
        kind = {"longtext": f"varchar({KEY_LENGTH})", "longblob": f"varbinary({KEY_LENGTH})"}.get(kind, kind)
    return f"{quote(field.name)} {kind} {'NULL' if field.nullable and not is_key else 'NOT NULL'}"
