"""PostgreSQL's dialect of SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.postgres.catalogue.columns import (
    TableColumn,
    exists,
    primary_key,
    read_ahead,
    read_columns,
    schemas_of,
)
from outfall.postgres.catalogue.conflict import conflicts, read_arbiters
from outfall.postgres.catalogue.locks import check_locks
from outfall.postgres.catalogue.privileges import OWN_RIGHTS, check_granted
from outfall.postgres.catalogue.relation import deletes_elsewhere, read_relation, read_relations
from outfall.postgres.catalogue.table import check_keys, check_relation
from outfall.postgres.catalogue.types import arrow_type, new_column_type, why_no_sequence, why_not
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase
from outfall.postgres.connection.errors import RowRefusal
from outfall.postgres.copy.stream import CopyEncoder, RunningCopy, copy_command
from outfall.postgres.names import TableName, quote
from outfall.postgres.options import LONGEST, PostgresOptions
from outfall.postgres.staging.load import SortingCopy, StagingCopy, StreamingCopy
from outfall.postgres.staging.moving import positioned_rows, row_text
from outfall.postgres.staging.truncation import emptied
from outfall.postgres.words import PostgresWords
from outfall.sql.dialect import Dialect, compose
from outfall.sql.keyed import Move, PositionedRows
from outfall.sql.ledger import StepLedger
from outfall.sql.names import Found, SqlName, staging_name
from outfall.sql.staging import Staging
from outfall.sql.tombstones import Tombstones
from outfall.sql.words import Conflicts


class PostgresDialect(Dialect):
    """PostgreSQL, for the sink with these options."""

    sink = "PostgresSink"
    words = PostgresWords()
    has_conflicts = True

    def __init__(self, options: PostgresOptions, database: PostgresDatabase) -> None:
        self.options: PostgresOptions = options
        self.database: PostgresDatabase = database
        self.adds_columns = options.payload_column is None

    def parse(self, text: str) -> TableName:
        return TableName.parse(text)

    def columns(self, session: PostgresConnection, table: SqlName) -> Sequence[TableColumn]:
        return read_columns(session, table)

    def with_options(self, options: PostgresOptions) -> PostgresDialect:
        return PostgresDialect(options, replace(self.database, options=options))

    def find_all(self, session: PostgresConnection, tables: Sequence[Any]) -> Sequence[Found]:
        return schemas_of(session, tables)

    def deletes_elsewhere(self, session: PostgresConnection, table: SqlName) -> str | None:
        return deletes_elsewhere(session, table)

    def read_ahead(self, session: PostgresConnection, tables: Sequence[Any]) -> None:
        read_ahead(session, tables, keys=self.options.keys_are_primary)

    def read_checked(self, session: PostgresConnection, tables: Sequence[Any], keys: Sequence[Sequence[str]]) -> None:
        read_relations(session, tables)
        if self.options.by_key:
            read_arbiters(session, tables, keys, self.options.conflict_where)

    def primary_key(self, session: PostgresConnection, table: Any) -> Sequence[str]:
        return primary_key(session, table)

    def in_ledger(self, found: Found) -> str:
        schema, name = found
        return TableName(None, name).in_ledger(schema)

    def exists(self, session: PostgresConnection, table: SqlName) -> bool:
        return exists(session, table)

    def is_same(self, session: PostgresConnection, table: SqlName, other: SqlName) -> bool:
        names = (table.quoted, other.quoted)
        found = session.execute("SELECT to_regclass(%s) = to_regclass(%s)", names).fetchone()
        return bool(found and found[0])

    def row_key(self, session: PostgresConnection) -> Sequence[str]:
        return self.options.key_columns or self.options.offset_columns or super().row_key(session)

    def check_relation(self, session: PostgresConnection, table: Any) -> None:
        check_relation(self.options, session, table)

    def check_keys(self, session: PostgresConnection, table: Any, given: Sequence[str] | None) -> None:
        check_keys(self.options, session, table, given)

    def check_own(self, session: PostgresConnection, table: Any) -> None:
        check_granted(session, table, OWN_RIGHTS)

    def arrow_type(self, column: TableColumn) -> pa.DataType:
        return arrow_type(column.kind)

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

    def ledger(self, incarnation: str, step_id: str, found_in: str | None) -> StepLedger:
        own = TableName(self.options.metadata_schema, "ledger")
        named = self.parse(self.options.table or "").in_ledger(found_in)
        return StepLedger(self, own, named, incarnation, step_id)

    def staging(self, step_id: str, target: SqlName, found_in: str | None) -> Staging:
        schema, extra = self.options.metadata_schema, self.options.own_columns()[1:]
        return Staging(self, staging_name(schema, target.found_in(found_in), step_id, extra), target)

    def load(
        self,
        staging: Any,
        target: Any,
        schema: pa.Schema,
        stage: int,
        context: WriterInitContext,
        session: PostgresConnection | None = None,
    ) -> StagingCopy:
        kind = StreamingCopy if self.options.dead_letter_table is None else SortingCopy
        return kind(self, staging, target, schema, stage, context, session)

    def direct(
        self, session: PostgresConnection, table: TableName, schema: pa.Schema, columns: Sequence[TableColumn]
    ) -> RunningCopy:
        encoder = CopyEncoder(schema, columns)
        return RunningCopy.start(session, copy_command(table, schema.names, encoder), encoder)

    def emptied(self, session: PostgresConnection, table: SqlName, attempts: str) -> bool:
        return emptied(session, table, attempts)

    def tombstones(self, target: SqlName) -> Tombstones:
        return Tombstones(self, target)

    def conflicts(self, session: PostgresConnection, table: Any, columns: Sequence[str]) -> Conflicts:
        return conflicts(session, table, self.options, columns)

    def check_together(self, session: PostgresConnection, moves: Sequence[Move]) -> None:
        check_locks(session, [move.table for move in moves], [each for move in moves for each in move.holding(session)])

    def positioned_rows(self, session: PostgresConnection, move: Move) -> PositionedRows:
        return positioned_rows(session, move, by_key=self.options.by_key)

    def row_text(self, session: PostgresConnection, staging: SqlName, shown: Mapping[str, str], place: str) -> str:
        return row_text(staging, shown, place)

    def refusal(self, error: Any) -> RowRefusal:
        return RowRefusal.of(error)

    def stored_refusal(self, reason: str, code: str | None, detail: str | None) -> RowRefusal:
        return RowRefusal(reason, code, detail)


def _definition(field: pa.Field) -> str:
    kind = new_column_type(field.type, field.name)
    return f"{quote(field.name)} {kind}{'' if field.nullable else ' NOT NULL'}"
