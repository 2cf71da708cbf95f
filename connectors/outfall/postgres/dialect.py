"""PostgreSQL's dialect of SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.postgres.catalogue.columns import TableColumn, read_columns, read_primary_key
from outfall.postgres.catalogue.privileges import OWN_RIGHTS, check_granted
from outfall.postgres.catalogue.relation import read_relation
from outfall.postgres.catalogue.table import check_keys, check_relation
from outfall.postgres.catalogue.types import new_column_type, why_no_sequence, why_not
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase
from outfall.postgres.connection.errors import RowRefusal, is_rows_fault, may_be_mismatch
from outfall.postgres.ledger import PostgresLedger
from outfall.postgres.names import TableName, quote
from outfall.postgres.options import LONGEST, PostgresOptions
from outfall.postgres.staging.change_moving import PostgresChangeMove
from outfall.postgres.staging.load import SortingCopy, StagingCopy, StreamingCopy
from outfall.postgres.staging.moving import PostgresAppendMove, PostgresDeleteMove, PostgresMove, PostgresUpsertMove
from outfall.postgres.staging.staging_table import PostgresStaging
from outfall.postgres.staging.tombstones import PostgresTombstones
from outfall.sql.dialect import Dialect, Fault, SqlName, StagedRows, compose, staging_name

_MOVES: dict[str, type[PostgresMove]] = {
    "append": PostgresAppendMove,
    "delete": PostgresDeleteMove,
    "upsert": PostgresUpsertMove,
}


class PostgresDialect(Dialect):
    """PostgreSQL, for the sink with these options."""

    sink = "PostgresSink"
    keeping = "ON CONFLICT DO NOTHING"

    def __init__(self, options: PostgresOptions, database: PostgresDatabase) -> None:
        self.options: PostgresOptions = options
        self.database: PostgresDatabase = database
        self.adds_columns = options.payload_column is None

    def quote(self, column: str) -> str:
        return quote(column)

    def parse(self, text: str) -> TableName:
        return TableName.parse(text)

    def columns(self, session: PostgresConnection, table: SqlName) -> Sequence[TableColumn]:
        return read_columns(session, table)

    def is_same(self, session: PostgresConnection, table: SqlName, other: SqlName) -> bool:
        names = (table.quoted, other.quoted)
        found = session.execute("SELECT to_regclass(%s) = to_regclass(%s)", names).fetchone()
        return bool(found and found[0])

    def row_key(self, session: PostgresConnection) -> Sequence[str]:
        named = self.options.key_columns or self.options.offset_columns
        return named or read_primary_key(session, self.parse(self.options.table))

    def check_relation(self, session: PostgresConnection, table: Any) -> None:
        check_relation(self.options, session, table)

    def check_keys(self, session: PostgresConnection, table: Any, given: Sequence[str] | None) -> None:
        check_keys(self.options, session, table, given)

    def check_own(self, session: PostgresConnection, table: Any) -> None:
        check_granted(session, table, OWN_RIGHTS)

    def new_type(self, kind: pa.DataType, name: str) -> str:
        return new_column_type(kind, name)

    def why_not(self, kind: pa.DataType, column: TableColumn) -> str | None:
        return why_not(kind, column, json=column.name == self.options.payload_column)

    def why_no_sequence(self, kind: pa.DataType, column: Any) -> str | None:
        return why_no_sequence(kind, column)

    def why_no_column(self, name: str) -> str | None:
        fits = 0 < len(name.encode()) <= LONGEST and "\0" not in name
        return None if fits else f"{name!r} cannot be a column name: the server allows 1 to {LONGEST} bytes"

    def create_table(
        self, table: SqlName, columns: pa.Schema, key: Sequence[str] = (), *, waiting: bool = False
    ) -> str:
        fields = [_definition(field) for field in columns]
        if key:
            fields.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
        kind = "UNLOGGED TABLE" if waiting else "TABLE"
        return compose("CREATE {} {} ({})", kind, table.sql, ", ".join(fields))

    def add_column(self, table: SqlName, column: pa.Field) -> str:
        return compose("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}", table.sql, _definition(column))

    def after_delete(self, session: PostgresConnection, table: SqlName) -> str | None:
        relation = read_relation(session, table)
        return None if relation is None else ", ".join(relation.on_delete) or None

    def ledger(self, incarnation: str, step_id: str, found_in: str | None) -> PostgresLedger:
        own = TableName(self.options.metadata_schema, "ledger")
        named = self.parse(self.options.table).in_ledger(found_in)
        return PostgresLedger(self, own, named, incarnation, step_id)

    def staging(self, step_id: str, target: SqlName, found_in: str | None) -> PostgresStaging:
        schema, extra = self.options.metadata_schema, self.options.own_columns()[1:]
        return PostgresStaging(self, staging_name(schema, target.found_in(found_in), step_id, extra), target)

    def load(self, staging: Any, target: Any, schema: pa.Schema, stage: int, context: WriterInitContext) -> StagingCopy:
        kind = StreamingCopy if self.options.dead_letter_table is None else SortingCopy
        return kind(self, staging, target, schema, stage, context)

    def tombstones(self, target: SqlName) -> PostgresTombstones:
        return PostgresTombstones(self, target)

    def move(self, staging: Any, target: Any, attempts: Sequence[StagedRows]) -> PostgresMove:
        if self.options.write_mode != "changes":
            return _MOVES[self.options.write_mode](self.options, target, staging, attempts)
        tombstones: Any = self.tombstones(target).table
        return PostgresChangeMove(self.options, target, staging, tombstones, attempts)

    def faults(self, error: Any) -> frozenset[Fault]:
        found: dict[Fault, bool] = {
            "rows": is_rows_fault(error),
            "mismatch": may_be_mismatch(error),
            "table": isinstance(error, psycopg.errors.UndefinedTable),
        }
        return frozenset(fault for fault, is_so in found.items() if is_so)

    def refusal(self, error: Any) -> RowRefusal:
        return RowRefusal.of(error)

    def stored_refusal(self, reason: str, code: str | None, detail: str | None) -> RowRefusal:
        return RowRefusal(reason, code, detail)


def _definition(field: pa.Field) -> str:
    kind = new_column_type(field.type, field.name)
    return f"{quote(field.name)} {kind}{'' if field.nullable else ' NOT NULL'}"
