"""Publishing an epoch: one transaction that holds the ledger's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import (
    CommitRefusedError,
    FencedError,
    LostCommittableError,
    OutfallError,
    TargetError,
    TargetLostError,
)
from outfall.postgres.connection import Connection, Database
from outfall.postgres.failures import explained, translated
from outfall.postgres.isolate import Refusal, too_many
from outfall.postgres.ledger import Ledger, LedgerRow
from outfall.postgres.letters import DeadLetters
from outfall.postgres.move import Move
from outfall.postgres.names import TableName
from outfall.postgres.sqlstate import is_rows_fault
from outfall.postgres.staging import StagedRows, Staging
from outfall.postgres.target import MAKING
from outfall.steps import reached

Request = CommitRequest[StagedRows]


@dataclass(frozen=True)
class _Moved:
    """What became of the rows of an epoch."""

    changed: int
    letters: int = 0
    """How many rows publishing refused; those that staging refused are counted by their tasks."""


class PostgresCommitter(Committer[StagedRows]):
    """Moves the rows of an epoch's winners from staging into the table, all or none, and writes the epoch beside them.

    Two drivers that publish the same epoch meet at the ledger's row: whoever comes second finds the epoch there.
    """

    strict = True

    def __init__(
        self,
        database: Database,
        table: TableName,
        staging: Staging,
        ledger: Ledger,
        letters: DeadLetters | None,
        context: CommitterInitContext,
    ) -> None:
        self._database = database
        self._table = table
        self._staging = staging
        self._ledger = ledger
        self._letters = letters
        self._moved: _Moved | None = None
        self._context = context

    def commit(self, requests: Sequence[Request]) -> None:
        self._prepare_letters()
        try:
            self._database.run("publishing to", lambda connection: self._publish(connection, requests))
        except _RowsLostError:
            self.find_lost(requests)
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise translated(
                    self._database, f"publishing to {self._table}", error, self._context.step_id
                ) from error
            refusal = self._refusal(requests, error)
            for request in requests:
                request.signal_failed_with_known_reason(refusal)
        else:
            self._count()

    def find_lost(self, requests: Sequence[Request]) -> None:
        stages = _stages(requests)
        counts = self._database.run(
            "looking into staging of", lambda connection: self._staging.counts(connection, stages)
        )
        waiting = self._waiting(stages)
        for request in requests:
            staged = request.committable
            found, letters = counts[staged.stage], waiting.get(staged.stage, staged.letters)
            if (found, letters) != (staged.rows, staged.letters):
                request.signal_lost(
                    f"{self._staging.table} holds {found} of the {staged.rows} rows of attempt {staged.stage}, and"
                    f" {letters} of its {staged.letters} dead letters are there: a crash of the server empties both"
                )

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        row = self._database.run(
            "looking at the ledger of", lambda connection: self._ledger.read(connection, lock=True)
        )
        return row is not None and not row.holds(self._context.epoch)

    def revoke(self, requests: Sequence[Request]) -> None:
        self._database.run("revoking rows of", lambda connection: self._revoke(connection, requests))
        reached("postgres: revoked")

    def _prepare_letters(self) -> None:
        """Make the tables for dead letters.

        A recorded epoch is finished before the target is opened, perhaps under options that ask for letters only now.
        """
        letters = self._letters
        if letters is None:
            return
        with explained(self._database, f"making the table {letters.table}", self._context.step_id):
            self._database.run("making dead letters of", lambda connection: self._make_letters(connection, letters))

    def _make_letters(self, connection: Connection, letters: DeadLetters) -> None:
        letters.check(connection)
        if not letters.missing_ddl(connection):
            return
        if self._database.options.create_staging == "never":
            raise TargetError(
                f"a table for dead letters is missing: {letters.table} or what waits for it",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why="create_staging is 'never'",
                do="have a DBA run what PostgresSink.ddl() prints",
            )
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (MAKING,))
        for statement in letters.missing_ddl(connection):
            connection.execute(statement)

    def _publish(self, connection: Connection, requests: Sequence[Request]) -> None:
        context = self._context
        row = self._locked(connection)
        if row.holds(context.epoch):
            for request in requests:
                request.signal_already_committed()
            return
        if row.generation > context.generation or row.revoked >= context.generation:
            raise FencedError(
                f"the ledger of {self._table} is at generation {max(row.generation, row.revoked)}",
                step=context.step_id,
                epoch=context.epoch,
                why=f"these rows were written under generation {context.generation}; a newer driver writes them anew",
                do="nothing, if the newer one is meant to run",
            )
        reached("postgres: publishing")
        self._make_way(connection, row)
        self._moved = self._move(connection, requests)
        self._ledger.published(connection, epoch=context.epoch, rows=self._moved.changed)
        self._staging.forget(connection, _stages(requests))
        for request in requests:
            request.signal_committed()

    def _make_way(self, connection: Connection, row: LedgerRow | None) -> None:
        """Delete what the table holds, where the first epoch is to do so."""
        if row is not None and row.epoch is None and self._database.options.on_existing == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(self._table.identifier()))

    def _move(self, connection: Connection, requests: Sequence[Request]) -> _Moved:
        move = self._moving(requests)
        staged = {request.committable.stage: request.committable.letters for request in requests}
        if self._letters is None:
            self._check_no_letters(sum(staged.values()))
            changed = move.whole(connection)
            self._check_all_there(connection, move, changed)
            return _Moved(changed)
        waiting = sum(staged.values())
        if waiting and self._letters.publish(connection, list(staged)) != waiting:
            raise _RowsLostError
        try:
            with connection.transaction():
                # A constraint that waits for COMMIT could not be told from others there.
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                changed = move.whole(connection)
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return self._move_sorting(connection, move, self._letters, waiting)
        self._check_all_there(connection, move, changed)
        return _Moved(changed)

    def _move_sorting(self, connection: Connection, move: Move, letters: DeadLetters, already: int) -> _Moved:
        """Move what the table takes, and write what it refuses as dead letters."""
        self._check_all_there(connection, move, None)
        sorting = move.sorting(connection)
        for refusal in sorting.run():
            if already + len(sorting.refused) > letters.most:
                name = move.name(connection, list(sorting.refused)[-1])
                raise too_many(letters.most, name, refusal, step=self._context.step_id, epoch=self._context.epoch)
        for place, refusal in sorting.refused.items():
            letters.add(
                connection, move.row_text(place), refusal, step=self._context.step_id, epoch=self._context.epoch
            )
        reached("postgres: set aside")
        return _Moved(sorting.changed, len(sorting.refused))

    def _check_no_letters(self, count: int) -> None:
        if count:
            raise CommitRefusedError(
                f"{count} rows of this epoch were set aside as dead letters, and there is no table for them any more",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="set dead_letter_table again, at least until this epoch is published",
            )

    def _check_all_there(self, connection: Connection, move: Move, changed: int | None) -> None:
        # Appends tell by themselves that no row was lost, unless the table's triggers or rules leave rows out.
        told = self._database.options.write_mode == "append" and changed == sum(move.expected.values())
        if not told and self._staging.counts(connection, move.expected) != move.expected:
            raise _RowsLostError

    def _waiting(self, stages: Sequence[int]) -> dict[int, int]:
        letters = self._letters
        if letters is None:
            return {}
        return self._database.run("looking for dead letters of", lambda connection: letters.counts(connection, stages))

    def _refusal(self, requests: Sequence[Request], error: psycopg.Error) -> OutfallError:
        name, refusal = self._named(requests) or ("rows of this epoch", Refusal.of(error))
        return CommitRefusedError(
            f"{self._table} refuses {name}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=str(refusal),
            do="correct the row at its source or change the table, and start the query again, or set dead_letter_table;"
            " nothing of the epoch is in the table",
        )

    def _named(self, requests: Sequence[Request]) -> tuple[str, Refusal] | None:
        """Find a row that is refused, by moving the rows once more without committing; nothing when none is now."""
        move = self._moving(requests)
        try:
            with self._database.connection() as connection, connection.transaction(force_rollback=True):
                self._database.limit(connection)
                self._make_way(connection, self._ledger.read(connection))
                sorting = move.sorting(connection)
                found = sorting.first()
                return None if found is None else (move.name(connection, found[0]), found[1])
        except (psycopg.Error, OutfallError):
            return None

    def _count(self) -> None:
        """Count once what was committed, however often it was tried."""
        if self._moved is not None:
            self._context.metrics.add("rows_changed", self._moved.changed)
            if self._moved.letters:
                self._context.metrics.add("dead_letters", self._moved.letters)

    def _moving(self, requests: Sequence[Request]) -> Move:
        attempts = [request.committable for request in requests]
        return Move(self._database.options, self._table, self._staging.table, attempts)

    def _revoke(self, connection: Connection, requests: Sequence[Request]) -> None:
        context = self._context
        if self._locked(connection).holds(context.epoch):
            raise LostCommittableError(
                f"epoch {context.epoch} is in {self._table} already and cannot be revoked",
                step=context.step_id,
                epoch=context.epoch,
                do="start the query again: the ledger settles it",
            )
        self._ledger.revoke(connection, generation=context.generation)
        self._staging.forget(connection, _stages(requests))

    def _locked(self, connection: Connection) -> LedgerRow:
        row = self._ledger.read(connection, lock=True)
        if row is None:
            raise TargetLostError(
                f"the ledger has no row for this query's writes to {self._table}",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why="the ledger was emptied, or the database was restored from a copy older than this query",
                do="restore the database, or start the query with a new checkpoint",
            )
        return row


class _RowsLostError(Exception):
    """Fewer rows are in staging than were recorded: the transaction must not commit."""


def _stages(requests: Sequence[Request]) -> list[int]:
    return [request.committable.stage for request in requests]
