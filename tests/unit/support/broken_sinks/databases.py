"""Faults of sinks that stage rows in a database, and whose driver moves them into its table."""

from __future__ import annotations

import copy
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    DeclaresGuarantee,
    Guarantee,
    SupportsCommitter,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    WriterInitContext,
)
from outfall.serde import JsonSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import SinkHarness
from tests.unit.support.broken_sinks.filed import Renaming
from tests.unit.support.broken_sinks.registry import found_by

SYNCHRONOUS = "FULL"
"""Whether a commit waits for the disk: a test without losses of power may replace it."""


def connection_to(path: Path) -> sqlite3.Connection:
    """Connect to a database whose lock nobody waits for."""
    connection = sqlite3.connect(path, timeout=0.05, isolation_level="IMMEDIATE")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    return connection


def connected(path: Path) -> closing[sqlite3.Connection]:
    """Connect, and close the connection at the end of a block."""
    return closing(connection_to(path))


class Staging(StatelessSinkPartition[Any]):
    """Replaces what is staged under its name, in one transaction."""

    def __init__(self, path: Path, name: str, work: str) -> None:
        self.path, self.name, self.work = path, name, work
        self.rows: list[str] = []

    def write_batch(self, values: list[Any]) -> None:
        self.rows.extend(json.dumps(value) for value in values)

    def prepare_commit(self) -> Sequence[list[str]]:
        with connected(self.path) as db, db:
            self.stage(db)
        return [[self.name, self.work]] if self.rows else []

    def stage(self, db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM staged WHERE name = ?", [self.name])
        db.executemany("INSERT INTO staged (name, row) VALUES (?, ?)", [(self.name, row) for row in self.rows])


class Mover(Committer[list[str]]):
    """Moves what is staged, in one transaction with the ledger of the work done."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def commit(self, requests: Sequence[CommitRequest[list[str]]]) -> None:
        with connected(self.path) as db, db:
            self.move_all(db, requests)

    def move_all(self, db: sqlite3.Connection, requests: Sequence[CommitRequest[list[str]]]) -> None:
        for request in requests:
            name, work = request.committable
            if not db.execute("INSERT OR IGNORE INTO ledger VALUES (?)", [work]).rowcount:
                request.signal_already_committed()
            elif not self.move(db, name):
                raise LookupError(f"rows of {name} are gone")

    def move(self, db: sqlite3.Connection, name: str) -> int:
        moved = db.execute("INSERT INTO rows SELECT row FROM staged WHERE name = ?", [name]).rowcount
        db.execute("DELETE FROM staged WHERE name = ?", [name])
        return moved


class DatabaseSink(DynamicSink[Any], SupportsCommitter[list[str]], SupportsWriterContext, DeclaresGuarantee):
    """Stages by attempt."""

    partition: type[Staging] = Staging
    committer: type[Mover] = Mover

    def __init__(self, path: Path) -> None:
        self.path = path
        self._context: WriterInitContext | None = None

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound._context = context
        return bound

    def name(self, context: WriterInitContext) -> str:
        return f"{context.incarnation}-g{context.generation}-e{context.epoch}-a{context.attempt}"

    def work(self, context: WriterInitContext) -> str:
        return f"{context.incarnation}-e{context.epoch}-w{context.worker_index}"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        assert self._context is not None
        return self.partition(self.path, self.name(self._context), self.work(self._context))

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return self.committer(self.path)

    def committable_serializer(self) -> JsonSerializer:
        return JsonSerializer()

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE


class Database(SinkHarness):
    """Does what it claims."""

    not_claimed = Renaming.not_claimed
    sink: type[DatabaseSink] = DatabaseSink

    def new_target(self, directory: Path) -> Path:
        with connected(directory / "rows.db") as db, db:
            db.execute("CREATE TABLE rows (row TEXT)")
            db.execute("CREATE TABLE staged (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, row TEXT)")
            db.execute("CREATE TABLE ledger (work TEXT PRIMARY KEY)")
        return directory

    def make_sink(self, target: Path) -> DatabaseSink:
        return self.sink(target / "rows.db")

    def read(self, target: Path) -> Iterable[Any]:
        with connected(target / "rows.db") as db:
            return [json.loads(row) for (row,) in db.execute("SELECT row FROM rows")]

    def lose(self, target: Path, committable: list[str]) -> None:
        with connected(target / "rows.db") as db, db:
            db.execute("DELETE FROM staged WHERE name = ?", [committable[0]])


class CarelessMover(Mover):
    """Takes any number of rows for those that were staged."""

    def move_all(self, db: sqlite3.Connection, requests: Sequence[CommitRequest[list[str]]]) -> None:
        for request in requests:
            name, work = request.committable
            if not db.execute("INSERT OR IGNORE INTO ledger VALUES (?)", [work]).rowcount:
                request.signal_already_committed()
            else:
                self.move(db, name)


class CarelessSink(DatabaseSink):
    committer = CarelessMover


@found_by("lost_before_committing", "data of one of its committables was lost")
class CommitsWithoutStagedRows(Database):
    sink = CarelessSink


class Transaction:
    """A transaction that nobody but its end closes, as of many libraries."""

    def __init__(self, path: Path) -> None:
        self._db = connection_to(path)

    def __enter__(self) -> sqlite3.Connection:
        return self._db

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._db.commit()
        self._db.close()


class TransactingStaging(Staging):
    def prepare_commit(self) -> Sequence[list[str]]:
        with Transaction(self.path) as db:
            self.stage(db)
        return [[self.name, self.work]] if self.rows else []


class TransactingSink(DatabaseSink):
    partition = TransactingStaging


class InTransactions(Database):
    """Does what it claims, too."""

    sink = TransactingSink


class ByWorkerSink(DatabaseSink):
    """Names what it stages by the worker alone."""

    def name(self, context: WriterInitContext) -> str:
        return f"{context.incarnation}-w{context.worker_index}"


@found_by("stalled_attempt", "of the next attempt", thorough=True)
@found_by("zombie_of_an_older_generation", "are missing.*of a newer driver")
class StagesByTheWorkerAlone(Database):
    sink = ByWorkerSink


class WithoutAttemptSink(DatabaseSink):
    """Names what it stages by all but the attempt and its driver."""

    def name(self, context: WriterInitContext) -> str:
        return self.work(context)


@found_by("zombie_of_an_older_generation", "are missing.*of a newer driver")
class StagesWithoutTheAttempt(Database):
    sink = WithoutAttemptSink


class LastBatchStaging(Staging):
    def write_batch(self, values: list[Any]) -> None:
        self.rows = [json.dumps(value) for value in values]


class LastBatchSink(DatabaseSink):
    partition = LastBatchStaging


@found_by("one_epoch", "are missing")
class KeepsTheLastBatch(Database):
    sink = LastBatchSink


class HashingMover(Mover):
    """Takes what it has moved before for the same row."""

    def move(self, db: sqlite3.Connection, name: str) -> int:
        rows = [row for (row,) in db.execute("SELECT row FROM staged WHERE name = ?", [name])]
        for row in rows:
            if db.execute(
                "INSERT OR IGNORE INTO ledger VALUES (?)", [hashlib.sha256(row.encode()).hexdigest()]
            ).rowcount:
                db.execute("INSERT INTO rows VALUES (?)", [row])
        return len(rows)


class HashingSink(DatabaseSink):
    committer = HashingMover


@found_by("equal_rows", "of its 5 rows 3 are missing")
class TellsRowsApartByContent(Database):
    sink = HashingSink


class RangeStaging(Staging):
    """Takes all that has been staged since it was opened for its own."""

    def __init__(self, path: Path, name: str, work: str) -> None:
        super().__init__(path, name, work)
        self.first = self._last()

    def write_batch(self, values: list[Any]) -> None:
        with connected(self.path) as db, db:
            db.executemany("INSERT INTO staged (row) VALUES (?)", [(json.dumps(value),) for value in values])

    def prepare_commit(self) -> Sequence[list[str]]:
        last = self._last()
        return [[f"{self.first} {last}", self.work]] if last > self.first else []

    def _last(self) -> int:
        with connected(self.path) as db:
            return int(db.execute("SELECT coalesce(max(id), 0) FROM staged").fetchone()[0])


class RangeMover(Mover):
    def move(self, db: sqlite3.Connection, name: str) -> int:
        return db.execute("INSERT INTO rows SELECT row FROM staged WHERE id > ? AND id <= ?", name.split()).rowcount


class RangeSink(DatabaseSink):
    partition = RangeStaging
    committer = RangeMover


@found_by("concurrent_tasks", "are duplicated")
class TakesWhatOthersStage(Database):
    sink = RangeSink


class ChunkStaging(Staging):
    """Writes chunks of a hundred rows, and forgets what is beyond the last."""

    def __init__(self, path: Path, name: str, work: str) -> None:
        super().__init__(path, name, work)
        self.chunk: list[str] = []

    def write_batch(self, values: list[Any]) -> None:
        self.chunk.extend(json.dumps(value) for value in values)
        if len(self.chunk) >= 100:
            self.rows.extend(self.chunk[:100])
            self.chunk = []

    def prepare_commit(self) -> Sequence[list[str]]:
        self.rows.extend(self.chunk)
        return super().prepare_commit()


class ChunkSink(DatabaseSink):
    partition = ChunkStaging


@found_by("many_rows_tasks_and_epochs", "epoch 0 is completed, and of its 2500 rows")
class ForgetsTheEndOfAChunk(Database):
    sink = ChunkSink


class TenMover(Mover):
    """Moves as many as a request of its client takes."""

    def commit(self, requests: Sequence[CommitRequest[list[str]]]) -> None:
        super().commit(list(requests)[:10])


class TenSink(DatabaseSink):
    committer = TenMover


@found_by("many_rows_tasks_and_epochs", "epoch 1 is completed, and of its 24 rows 4 are missing")
class MovesTenAtMost(Database):
    sink = TenSink


class TextMover(Mover):
    """Skips epochs up to the newest of the worker, which it compares as text."""

    def commit(self, requests: Sequence[CommitRequest[list[str]]]) -> None:
        with connected(self.path) as db, db:
            db.execute("BEGIN IMMEDIATE")
            for request in requests:
                name, work = request.committable
                worker, epoch = work.split("/")
                newest = "SELECT max(work) FROM ledger WHERE work LIKE ?"
                if (db.execute(newest, [f"{worker}/%"]).fetchone()[0] or "") >= f"{worker}/{epoch}":
                    request.signal_already_committed()
                    continue
                db.execute("INSERT INTO ledger VALUES (?)", [work])
                if not self.move(db, name):
                    raise LookupError(f"rows of {name} are gone")


class TextSink(DatabaseSink):
    committer = TextMover

    def work(self, context: WriterInitContext) -> str:
        return f"{context.incarnation}-w{context.worker_index}/{context.epoch}"


@found_by("many_rows_tasks_and_epochs", "epoch 10 is completed, and of its 6 rows 6 are missing")
class ComparesEpochsAsText(Database):
    sink = TextSink


class CheckingMover(Mover):
    """Looks into the ledger first, and moves rows in the next transaction."""

    def commit(self, requests: Sequence[CommitRequest[list[str]]]) -> None:
        for request in requests:
            name, work = request.committable
            with connected(self.path) as db, db:
                known = db.execute("SELECT 1 FROM ledger WHERE work = ?", [work]).fetchone()
                rows = db.execute("SELECT row FROM staged WHERE name = ?", [name]).fetchall()
            if known:
                request.signal_already_committed()
                continue
            if not rows:
                raise LookupError(f"rows of {name} are gone")
            with connected(self.path) as db, db:
                db.executemany("INSERT INTO rows VALUES (?)", rows)
                db.execute("INSERT OR IGNORE INTO ledger VALUES (?)", [work])
                db.execute("DELETE FROM staged WHERE name = ?", [name])


class CheckingSink(DatabaseSink):
    committer = CheckingMover


@found_by("old_driver_wakes", "suspended at 'line databases.py", thorough=True)
class ChecksInAnotherTransaction(Database):
    sink = CheckingSink


class OpeningSink(DatabaseSink, SupportsTarget[Any]):
    """Removes at open what other drivers staged, whichever is newer."""

    def target(self) -> str:
        return f"database {self.path}"

    def open_target(self, context: TargetContext[Any]) -> None:
        mine, ours = f"{context.incarnation}-g{context.generation}-%", f"{context.incarnation}-%"
        with connected(self.path) as db, db:
            db.execute("DELETE FROM staged WHERE name LIKE ? AND name NOT LIKE ?", [ours, mine])


@found_by("old_driver_wakes", "suspended at 'sink: before open_target#1'", thorough=True)
class RemovesNewerRowsAtOpen(Database):
    sink = OpeningSink
    not_claimed = Renaming.not_claimed | dict.fromkeys(
        ["second_query", "lost_log", "failed_job"], "any query may write"
    )
