"""Publishing an epoch: one transaction that holds the ledger's row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from psycopg import sql

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import (
    CommitRefusedError,
    LostCommittableError,
    OutfallError,
    TargetError,
)
from outfall.postgres.bisect import Refusal, too_many
from outfall.postgres.connection import Connection, Database
from outfall.postgres.ddl import Wanted, make
from outfall.postgres.dead_letters import DeadLetters
from outfall.postgres.epoch_ledger import EpochLedger
from outfall.postgres.failures import explained, translated
from outfall.postgres.ledger import Ledger, LedgerRow
from outfall.postgres.move import Move
from outfall.postgres.names import TableName
from outfall.postgres.sqlstate import is_rows_fault, may_be_misfit
from outfall.postgres.staging import StagedRows, Staging
from outfall.postgres.staging_check import LostRows
from outfall.trace_points import reached

Request = CommitRequest[StagedRows]
T = TypeVar("T")


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
        letters: DeadLetters | None,
        ledger: Ledger,
        context: CommitterInitContext,
    ) -> None:
        self._database = database
        self._table = table
        self._staging = staging
        self._ledger = EpochLedger(ledger, table, context)
        self._letters = letters
        self._moved: _Moved | None = None
        self._tries = 0
        self._context = context
        self._lost = LostRows(database.options, table, staging, letters)

    def commit(self, requests: Sequence[Request]) -> None:
        self._prepare_letters(requests)
        try:
            self._database.run("publishing to", lambda connection: self._publish(connection, requests))
        except _RowsLostError:
            self._signal_lost(requests)
        except _RevokedError:
            if not self._signal_lost(requests):
                raise self._ledger.fenced() from None
        except psycopg.Error as error:
            if may_be_misfit(error) and self._signal_lost(requests):
                return
            if is_rows_fault(error):
                refusal = self._refusal(requests, error)
                for request in requests:
                    request.signal_failed_with_known_reason(refusal)
            else:
                raise translated(
                    self._database, f"publishing to {self._table}", error, self._context.step_id
                ) from error
        else:
            self._count()

    def find_lost(self, requests: Sequence[Request]) -> None:
        def find(connection: Connection) -> Mapping[int, str]:
            row = self._ledger.read(connection, _attempts(requests))
            # Another driver may have published them meanwhile, and cleared staging.
            return {} if row.holds(self._context.epoch) else self._lost.find(connection, _attempts(requests))

        _signal(requests, self._run("looking into staging of", find))

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        row = self._run("looking at the ledger of", lambda connection: self._locked(connection, requests))
        return not row.holds(self._context.epoch)

    def revoke(self, requests: Sequence[Request]) -> None:
        self._run("revoking rows of", lambda connection: self._revoke(connection, requests))
        reached("postgres: revoked")

    def _run(self, doing: str, work: Callable[[Connection], T]) -> T:
        with explained(self._database, f"{doing} {self._table}", self._context.step_id):
            return self._database.run(doing, work)

    def _signal_lost(self, requests: Sequence[Request]) -> bool:
        """Find what is lost of an epoch that is being published: the rest of it, then, is lost as well.

        Under the ledger's lock, so that a driver that wakes up late does not publish rows that this one takes for lost.

        Returns:
            Whether something is lost, or all is published.
        """

        def find(connection: Connection) -> Mapping[int, str] | None:
            row = self._locked(connection, requests)
            if row.holds(self._context.epoch):
                return None
            lost = self._lost.find(connection, _attempts(requests))
            if lost:
                self._ledger.revoke(connection, row)
                self._staging.forget(connection, _stages(requests))
            return lost

        lost = self._run("looking into staging of", find)
        if lost is None:
            for request in requests:
                request.signal_already_committed()
            return True
        if lost:
            with_them = f"given up with another of its epoch: {next(iter(lost.values()))}"
            _signal(requests, {stage: lost.get(stage, with_them) for stage in _stages(requests)})
        return bool(lost)

    def _prepare_letters(self, requests: Sequence[Request]) -> None:
        """Make the tables for dead letters.

        A recorded epoch is finished before the target is opened, perhaps under options that ask for letters only now.
        """
        letters = self._letters
        if letters is None:
            return

        def missing(connection: Connection) -> Sequence[sql.Composed]:
            self._ledger.read(connection, _attempts(requests))
            letters.check(connection, self._table)
            return letters.missing_ddl(connection)

        if not self._run("looking for the dead letters of", missing):
            return
        options = self._database.options
        if options.create_staging == "never":
            raise TargetError(
                f"a table for dead letters is missing: {letters.table} or what waits for it",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why="create_staging is 'never'",
                do="have a DBA run what PostgresSink.ddl() prints",
            )
        with explained(self._database, f"making dead letters of {self._table}", self._context.step_id):
            make(self._database, Wanted((options.metadata_schema, letters.table.name), letters.missing_ddl))

    def _publish(self, connection: Connection, requests: Sequence[Request]) -> None:
        context = self._context
        self._tries += 1
        row = self._locked(connection, requests)
        if row.holds(context.epoch):
            for request in requests:
                request.signal_already_committed()
            return
        if row.revoked >= context.generation:
            raise _RevokedError
        reached("postgres: publishing")
        self._make_way(connection, row)
        self._moved = self._move(connection, requests)
        self._ledger.published(connection, row, self._moved.changed)
        self._staging.forget(connection, _stages(requests))
        for request in requests:
            request.signal_committed()

    def _make_way(self, connection: Connection, row: LedgerRow) -> None:
        """Delete what the table holds, where the first epoch is to do so."""
        if row.epoch is None and self._database.options.on_existing == "overwrite":
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
        self._letters.check_bound(connection, staged, epoch=self._context.epoch, step=self._context.step_id)
        if waiting and self._letters.publish(connection, list(staged)) != waiting:
            raise _RowsLostError
        try:
            with connection.transaction():
                # A constraint that waits for COMMIT could not be told from others there.
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                changed = move.whole(connection)
        except psycopg.Error as error:
            # Where no row of the epoch can be taken as it was staged, none is a dead letter.
            if not is_rows_fault(error) or (may_be_misfit(error) and self._lost.find(connection, _attempts(requests))):
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
                self._make_way(connection, self._ledger.read(connection, _attempts(requests)))
                sorting = move.sorting(connection)
                found = sorting.first()
                return None if found is None else (move.name(connection, found[0]), found[1])
        except (psycopg.Error, OutfallError):
            return None

    def _count(self) -> None:
        """Count once what was committed, however often it was tried."""
        if self._tries > 1:
            self._context.metrics.add("retries", self._tries - 1)
        if self._moved is not None:
            self._context.metrics.add("rows_changed", self._moved.changed)
            if self._moved.letters:
                self._context.metrics.add("dead_letters", self._moved.letters)

    def _moving(self, requests: Sequence[Request]) -> Move:
        return Move(self._database.options, self._table, self._staging.table, _attempts(requests))

    def _revoke(self, connection: Connection, requests: Sequence[Request]) -> None:
        context = self._context
        row = self._locked(connection, requests)
        if row.holds(context.epoch):
            raise LostCommittableError(
                f"epoch {context.epoch} is in {self._table} already and cannot be revoked",
                step=context.step_id,
                epoch=context.epoch,
                do="start the query again: the ledger settles it",
            )
        self._ledger.revoke(connection, row)
        self._staging.forget(connection, _stages(requests))

    def _locked(self, connection: Connection, requests: Sequence[Request]) -> LedgerRow:
        return self._ledger.read(connection, _attempts(requests), lock=True)


class _RowsLostError(Exception):
    """Fewer rows are in staging than were recorded: the transaction must not commit."""


class _RevokedError(Exception):
    """The generation may publish no more: some of what it wrote was found to be lost."""


def _attempts(requests: Sequence[Request]) -> list[StagedRows]:
    return [request.committable for request in requests]


def _signal(requests: Sequence[Request], lost: Mapping[int, str]) -> None:
    for request in requests:
        if request.committable.stage in lost:
            request.signal_lost(lost[request.committable.stage])


def _stages(requests: Sequence[Request]) -> list[int]:
    return [request.committable.stage for request in requests]
