"""Publishing an epoch: one transaction that moves its rows from staging into the table, and writes the ledger's row.

All rows are moved by one statement; or, where some are refused and become dead letters, all but those. Which statement
that is, `publish_sql` knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, FencedError, LostCommittableError, OutfallError, TargetError
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import is_rows_fault, may_be_misfit, may_go_later, translated
from outfall.postgres.ledger import LedgerRow
from outfall.postgres.names import MARKER, TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.dead_letters import DeadLetterTable, RowRefusal, isolate, row_log, too_many
from outfall.postgres.staging.publish_sql import Places, Rows, places, statements
from outfall.postgres.staging.staging_table import StagedRows
from outfall.postgres.tables import StepTables, Wanted
from outfall.row_logging import RowLog
from outfall.trace_points import reached

Request = CommitRequest[StagedRows]
T = TypeVar("T")


class StagedCommitter(Committer[StagedRows]):
    """What committers of staged attempts have in common: the step's row in the ledger, and staging."""

    strict = True

    def __init__(self, tables: StepTables, context: CommitterInitContext) -> None:
        self._tables = tables
        self._staging = tables.staging
        self._ledger = tables.ledger
        self._context = context

    def _row(self, connection: PostgresConnection, requests: Sequence[Request], *, lock: bool = False) -> LedgerRow:
        return self._ledger.read_published(connection, self._context, attempts_of(requests), lock=lock)

    def _is_published(self, row: LedgerRow, requests: Sequence[Request]) -> bool:
        """Tell whether the epoch is in the table; the requests are answered then."""
        if not row.holds(self._context.epoch):
            return False
        for request in requests:
            request.signal_already_committed()
        return True


@dataclass(frozen=True)
class _Moved:
    """What became of the rows of an epoch."""

    changed: int
    letters: int = 0
    """How many rows publishing refused; those that staging refused are counted by their tasks."""


class PostgresCommitter(StagedCommitter):
    """Moves the rows of an epoch's winners from staging into the table, all or none, and writes the epoch beside them.

    Two drivers that publish the same epoch meet at the ledger's row: whoever comes second finds the epoch there.
    """

    def __init__(self, tables: StepTables, context: CommitterInitContext) -> None:
        super().__init__(tables, context)
        self._table = tables.target
        self._options = tables.options
        self._letters = tables.letters
        self._moved: _Moved | None = None
        self._tries = 0

    def commit(self, requests: Sequence[Request]) -> None:
        self._prepare_letters(requests)
        try:
            self._tables.database.run_raw("publishing to", lambda connection: self._publish(connection, requests))
        except _RowsLostError:
            self._signal_lost(requests)
        except _RevokedError:
            if not self._signal_lost(requests):
                raise self._fenced() from None
        except psycopg.Error as error:
            if may_be_misfit(error) and self._signal_lost(requests):
                return
            if is_rows_fault(error):
                refusal = self._refusal(requests, error)
                for request in requests:
                    request.signal_failed_with_known_reason(refusal)
            else:
                raise translated(
                    self._tables.database, f"publishing to {self._table}", error, self._context.step_id
                ) from error
        else:
            self._count()

    def find_lost(self, requests: Sequence[Request]) -> None:
        def find(connection: PostgresConnection) -> Mapping[int, str]:
            row = self._row(connection, requests)
            # Another driver may have published them meanwhile, and cleared staging.
            return {} if row.holds(self._context.epoch) else self._find_lost(connection, requests)

        _signal(requests, self._tables.run("looking into staging of", find))

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        row = self._tables.run(
            "looking at the ledger of", lambda connection: self._row(connection, requests, lock=True)
        )
        return not row.holds(self._context.epoch)

    def revoke(self, requests: Sequence[Request]) -> None:
        self._tables.run("revoking rows of", lambda connection: self._revoke(connection, requests))
        reached("postgres: revoked")

    def _signal_lost(self, requests: Sequence[Request]) -> bool:
        """Find what is lost of an epoch that is being published: the rest of it, then, is lost as well.

        Under the ledger's lock, so that a driver that wakes up late does not publish rows that this one takes for lost.

        Returns:
            Whether something is lost, or all is published.
        """

        def find(connection: PostgresConnection) -> Mapping[int, str] | None:
            row = self._row(connection, requests, lock=True)
            if self._is_published(row, requests):
                return None
            lost = self._find_lost(connection, requests)
            if lost:
                self._ledger.revoke(connection, row, self._context.generation)
                self._staging.forget(connection, _stages(requests))
            return lost

        lost = self._tables.run("looking into staging of", find)
        if lost is None:
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

        def missing(connection: PostgresConnection) -> Sequence[sql.Composed]:
            self._row(connection, requests)
            letters.check(connection, self._table)
            return letters.missing_ddl(connection)

        if not self._tables.run("looking for the dead letters of", missing):
            return
        if self._options.create_staging == "never":
            raise TargetError(
                f"a table for dead letters is missing: {letters.table} or what waits for it",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why="create_staging is 'never'",
                do="have a DBA run what PostgresSink.ddl() prints",
            )
        self._tables.make(Wanted((self._options.metadata_schema, letters.table.name), letters.missing_ddl))

    def _publish(self, connection: PostgresConnection, requests: Sequence[Request]) -> None:
        context = self._context
        self._tries += 1
        row = self._row(connection, requests, lock=True)
        if self._is_published(row, requests):
            return
        if row.revoked >= context.generation:
            raise _RevokedError
        reached("postgres: publishing")
        self._make_way(connection, row)
        self._moved = self._move(connection, requests)
        self._ledger.published(connection, row, context, self._moved.changed)
        self._staging.forget(connection, _stages(requests))
        for request in requests:
            request.signal_committed()

    def _make_way(self, connection: PostgresConnection, row: LedgerRow) -> None:
        """Delete what the table holds, where the first epoch is to do so."""
        if row.epoch is None and self._options.on_existing == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(self._table.identifier()))

    def _move(self, connection: PostgresConnection, requests: Sequence[Request]) -> _Moved:
        move = self._moving(requests)
        staged = {request.committable.stage: request.committable.letters for request in requests}
        if self._letters is None:
            self._check_no_letters(sum(staged.values()))
            moved = move.whole(connection)
            self._check_all_there(connection, move, moved)
            return _Moved(moved)
        waiting = sum(staged.values())
        self._letters.check_bound(connection, staged, epoch=self._context.epoch, step=self._context.step_id)
        if waiting and self._letters.publish(connection, list(staged)) != waiting:
            raise _RowsLostError
        changed: int | None = None
        try:
            with connection.transaction():
                # A constraint that waits for COMMIT could not be told from others there.
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                changed = move.whole(connection)
        except psycopg.Error as error:
            # Where no row of the epoch can be taken as it was staged, none is a dead letter.
            if not is_rows_fault(error) or (may_be_misfit(error) and self._find_lost(connection, requests)):
                raise
        if changed is None:  # not within the handler, whose error would stand in every traceback, with the row
            return self._move_sorting(connection, move, self._letters, waiting)
        self._check_all_there(connection, move, changed)
        return _Moved(changed)

    def _move_sorting(
        self, connection: PostgresConnection, move: Move, letters: DeadLetterTable, already: int
    ) -> _Moved:
        """Move what the table takes, and write what it refuses as dead letters."""
        self._check_all_there(connection, move, None)
        sorting = move.sorting(connection)
        for refusal in sorting.run():
            if already + len(sorting.refused) > letters.most:
                name = move.name(connection, list(sorting.refused)[-1])
                log = row_log(connection, self._options)
                raise too_many(letters.most, name, refusal, log, step=self._context.step_id, epoch=self._context.epoch)
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

    def _check_all_there(self, connection: PostgresConnection, move: Move, changed: int | None) -> None:
        # Appends tell by themselves that no row was lost, unless the table's triggers or rules leave rows out.
        told = self._options.write_mode == "append" and changed == sum(move.expected.values())
        if not told and self._staging.counts(connection, move.expected) != move.expected:
            raise _RowsLostError

    def _refusal(self, requests: Sequence[Request], error: psycopg.Error) -> OutfallError:
        name, refusal = self._named(requests) or ("rows of this epoch", RowRefusal.of(error))
        return CommitRefusedError(
            f"{self._table} refuses {name}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=refusal.told(RowLog(self._options.log_rows)),
            do="correct the row at its source or change the table, and start the query again, or set dead_letter_table;"
            " nothing of the epoch is in the table",
        )

    def _named(self, requests: Sequence[Request]) -> tuple[str, RowRefusal] | None:
        """Find a row that is refused, by moving the rows once more without committing; nothing when none is now."""
        move = self._moving(requests)
        try:
            with self._tables.database.connection() as connection, connection.transaction(force_rollback=True):
                self._tables.database.limit(connection)
                self._make_way(connection, self._row(connection, requests))
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
        return Move(self._options, self._table, self._staging.table, attempts_of(requests))

    def _revoke(self, connection: PostgresConnection, requests: Sequence[Request]) -> None:
        context = self._context
        row = self._row(connection, requests, lock=True)
        if row.holds(context.epoch):
            raise LostCommittableError(
                f"epoch {context.epoch} is in {self._table} already and cannot be revoked",
                step=context.step_id,
                epoch=context.epoch,
                do="start the query again: the ledger settles it",
            )
        self._ledger.revoke(connection, row, context.generation)
        self._staging.forget(connection, _stages(requests))

    def _find_lost(self, connection: PostgresConnection, requests: Sequence[Request]) -> Mapping[int, str]:
        return self._staging.find_lost(connection, attempts_of(requests), self._letters)

    def _fenced(self) -> FencedError:
        context = self._context
        return FencedError(
            f"the ledger of {self._table} takes no more rows of generation {context.generation}",
            step=context.step_id,
            epoch=context.epoch,
            why="a newer driver found some of them lost, and writes the epoch anew",
            do="nothing, if the newer one is meant to run",
        )


class _RowsLostError(Exception):
    """Fewer rows are in staging than were recorded: the transaction must not commit."""


class _RevokedError(Exception):
    """The generation may publish no more: some of what it wrote was found to be lost."""


def attempts_of(requests: Sequence[Request]) -> list[StagedRows]:
    """Return the attempts that are to be committed."""
    return [request.committable for request in requests]


def _signal(requests: Sequence[Request], lost: Mapping[int, str]) -> None:
    for request in requests:
        if request.committable.stage in lost:
            request.signal_lost(lost[request.committable.stage])


def _stages(requests: Sequence[Request]) -> list[int]:
    return [request.committable.stage for request in requests]


class Move:
    """Moves the rows of attempts from staging into the table. Every call runs in the caller's transaction.

    Args:
        options: how rows are written.
        table: the target.
        staging: where the rows are.
        attempts: whose rows; at least one.
    """

    def __init__(
        self, options: PostgresOptions, table: TableName, staging: TableName, attempts: Sequence[StagedRows]
    ) -> None:
        self.expected = {staged.stage: staged.rows for staged in attempts}
        # On Spark those of one DataFrame; elsewhere those that any attempt has.
        self._columns = tuple(dict.fromkeys(name for staged in attempts for name in staged.columns))
        self._options = options
        self._table = table
        self._staging = staging

    def whole(self, connection: PostgresConnection) -> int:
        """Move all rows by one statement and return how many rows of the table that changed."""
        if not self._columns:
            return 0
        return _execute(connection, self._statements("all"), {"stages": list(self.expected)})

    def sorting(self, connection: PostgresConnection) -> SortingMove:
        """Begin to move the rows that the table takes."""
        # A savepoint gives up the locks that were taken in it.
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(self._staging.identifier()))
        # Constraints that wait for COMMIT would fail all rows there, and name none.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        stages = list(self.expected)
        found = places(self._options, connection, self._staging, stages)
        return SortingMove(connection, found, self._statements(found.rows), self._statements(found.one), stages)

    def row_text(self, place: str) -> sql.Composed:
        """Return a query for the JSON text of one staged row, as the server writes it."""
        shown: list[sql.Composable] = [sql.Identifier(name) for name in self._columns]
        if self._options.delete_marker:
            shown.append(
                sql.SQL("{} AS {}").format(sql.Identifier(MARKER), sql.Identifier(self._options.delete_marker))
            )
        return sql.SQL("SELECT to_json(shown)::text FROM (SELECT {} FROM {} WHERE ctid = {}::tid) AS shown").format(
            sql.SQL(", ").join(shown), self._staging.identifier(), sql.Literal(place)
        )

    def name(self, connection: PostgresConnection, place: str) -> str:
        """Name a staged row as `log_rows` permits."""
        found = connection.execute(self.row_text(place)).fetchone()
        return row_log(connection, self._options).name("a row", found[0] if found else "")

    def _statements(self, rows: Rows) -> list[sql.Composed]:
        return statements(self._options, self._table, self._staging, self._columns, rows)


class SortingMove:
    """Moves rows by halves, each in a savepoint, so that those which are refused are found and the others are moved.

    Of rows with one key an upsert takes the last; when that is refused, the one before it.

    Args:
        connection: in a transaction, which holds staging.
        places: where the rows are that are moved at first.
        moving: the statements for some of them.
        moving_one: the statements for any one.
        stages: the attempts' numbers.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        places: Places,
        moving: Sequence[sql.Composed],
        moving_one: Sequence[sql.Composed],
        stages: Sequence[int],
    ) -> None:
        self.changed = 0
        """How many rows of the table the moves have changed."""
        self.refused: dict[str, RowRefusal] = {}
        """The rows that are not moved, by their address."""
        self._connection = connection
        self._places = places
        self._moving = moving
        self._moving_one = moving_one
        self._stages = list(stages)

    def first(self) -> tuple[str, RowRefusal] | None:
        """Move rows until one is refused, and return it with its address."""
        found = next(isolate(0, self._places.count, self._attempt), None)
        return None if found is None else (self._places.place(found[0]), found[1])

    def run(self) -> Iterator[RowRefusal]:
        """Move all rows that are taken. Yields each refusal as it is found; `refused` has those that stay."""
        for position, refusal in isolate(0, self._places.count, self._attempt):
            self.refused[self._places.place(position)] = refusal
            yield refusal
        for place in list(self.refused):
            yield from self._fall_back(place)
        self._try_again()

    def _fall_back(self, place: str) -> Iterator[RowRefusal]:
        """Take the row that a refused one had replaced."""
        while (found := self._places.replaced(place)) is not None:
            refusal = self._attempt_one(found)
            if refusal is None:
                return
            self.refused[found] = refusal
            yield refusal
            place = found

    def _try_again(self) -> None:
        """Rows that refer to others of the epoch are taken once these are there."""
        progress = True
        while progress:
            progress = False
            for place, refusal in list(self.refused.items()):
                if may_go_later(refusal.code) and self._attempt_one(place) is None:
                    del self.refused[place]
                    progress = True

    def _attempt(self, low: int, high: int) -> RowRefusal | None:
        return self._move(self._moving, self._places.between(low, high))

    def _attempt_one(self, place: str) -> RowRefusal | None:
        return self._move(self._moving_one, {"place": place})

    def _move(self, moving: Sequence[sql.Composed], given: Mapping[str, Any]) -> RowRefusal | None:
        try:
            with self._connection.transaction():
                changed = _execute(self._connection, moving, {"stages": self._stages, **given})
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return RowRefusal.of(error)
        self.changed += changed
        return None


def _execute(connection: PostgresConnection, moving: Sequence[sql.Composed], given: Mapping[str, Any]) -> int:
    """Run statements one after the other, and return how many rows the last of them has changed."""
    return [connection.execute(each, given).rowcount for each in moving][-1]
