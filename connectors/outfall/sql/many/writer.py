"""One attempt whose rows name their tables: those of each layout go to a staging table, all in one transaction."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.sql.database import ExpectedTables
from outfall.sql.dialect import Dialect, Load, StagedRows, StagedTable
from outfall.sql.many.routing import Router
from outfall.sql.many.tables import ManyTables
from outfall.sql.names import Found
from outfall.sql.staging import new_stage
from outfall.sql.tables import StepTables
from outfall.sql.writer import StagingAttempt, StagingWriter


@dataclass
class _Unrouted:
    """The rejected rows for which there is no staging table."""

    session: Any
    rows: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)


class RoutingWriter(StagingWriter):
    """Loads rows into the staging tables for the tables that they name. All have one connection and transaction."""

    def __init__(self, tables: ManyTables[Any], context: WriterInitContext) -> None:
        super().__init__(tables, context)
        self._many = tables
        self._lent = ExitStack()
        self._router: Router | None = None
        """What routes rows, once there are some."""
        self._rows: defaultdict[Hashable, Counter[tuple[Found, str]]] = defaultdict(Counter)
        """The number of rows by layout, by table and name."""

    def close(self) -> None:
        # First the connection: a running COPY is of no use to it.
        self._lent.close()
        super().close()

    @cached_property
    def _session(self) -> Any:
        database = self._tables.database
        return database.repeated("staging rows for", lambda: self._lent.enter_context(database.task()))

    @cached_property
    def _unrouted(self) -> _Unrouted:
        return _Unrouted(self._session)

    def _write(self, batch: pa.RecordBatch) -> None:
        router = self._router = self._router or Router(self._many, self._session, batch.schema)
        if not router.knows(batch):
            # No statement can be executed while a COPY runs.
            self._pause()
        problems = router.problems(batch)
        accepted = self._without_refused(self._unrouted, self._tables, batch, problems, _CANNOT_BE_ROUTED)
        self._unrouted.rows += accepted.num_rows
        for routed in router.split(accepted) if accepted.num_rows else ():
            layout = routed.route.layout
            attempt = self._attempt(layout, routed.route.tables, routed.batch.schema)
            aside = len(attempt.load.dead_letters)
            self._send(attempt, routed.batch)
            self._rows[layout].update({(router.found(name), name): count for name, count in routed.rows.items()})
            for letter in attempt.load.dead_letters[aside:]:
                name = json.loads(letter.row)[self._tables.options.table_column]
                self._rows[layout][router.found(name), name] -= 1

    def _attempt(self, layout: Hashable, tables: StepTables[Any], schema: pa.Schema) -> StagingAttempt:
        if layout not in self._attempts:
            self._pause()
            self._make(tables)
        return super()._attempt(layout, tables, schema)

    def _make(self, tables: StepTables[Any]) -> None:
        """Create a staging table that is missing, if the sink may."""
        if tables.options.create_staging == "if_missing" and tables.staging.missing_ddl(self._session):
            tables.make(ExpectedTables((tables.staging.table.name,), tables.staging.missing_ddl))
            self._session.forget()

    def _load(self, tables: StepTables[Any], schema: pa.Schema, stage: int) -> Load:
        dialect: Dialect = tables.dialect
        return dialect.load(tables.staging.table, tables.target, schema, stage, self._context, self._session)

    def _registered(self) -> list[StagedRows]:
        found, letters = super()._registered(), self._unrouted.dead_letters
        if letters:
            staged = StagedRows(stage=new_stage(), rows=0, columns=(), letters=len(letters), owner=self._owner)
            self._register(self._session, staged, letters, self._tables)
            found.append(staged)
        return found

    def _staged(self, layout: Hashable, attempt: StagingAttempt) -> StagedRows:
        spelled: dict[Found, dict[str, int]] = {}
        for (table, name), count in self._rows[layout].items():
            if count:
                spelled.setdefault(table, {})[name] = count
        tables = tuple(
            StagedTable(found=table, spelled=tuple(names), rows=sum(names.values())) for table, names in spelled.items()
        )
        keys = attempt.tables.options.key_columns if self._tables.options.keys_differ else ()
        return attempt.staged().model_copy(update={"owner": self._owner, "keys": keys, "tables": tables})

    def _commit(self) -> None:
        self._session.finish("COMMIT")

    @property
    def _owner(self) -> tuple[str, str]:
        return self._context.step_id, self._context.incarnation


_CANNOT_BE_ROUTED = "{row} cannot be written to the table {table}"
