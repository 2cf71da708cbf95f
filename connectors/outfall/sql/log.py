"""A recovery log in two tables of a database: the part that all databases share.

```
<prefix>_entries   log, number, server, writer, pieces, data   primary key (log, number)
<prefix>_blobs     log, name, piece, generation, data          primary key (log, name, piece)
```
`log` is the step, or `<name>/<step>`. An entry has its first piece in its row, and the others in `_blobs`, as large
states and heartbeats have theirs. `LogDatabase` is the port of a database.

An entry is created by a plain INSERT, and the primary key makes it exclusive. Two checks in the same transaction, at
READ COMMITTED, make it follow the newest one. The first reads the newest entry. The second repeats this after the
INSERT, because a clean-up may have freed the number meanwhile: then a newer entry is visible, and the INSERT is rolled
back. As long as the INSERT is not committed, no other writer gets past its number.

`writer` is a random name of one append. If the reply to a COMMIT is lost, the append is repeated, and first looks for
an entry of its own. Before that entry, or any other that was read, is relied upon, its row is locked in a transaction
of its own: the server acknowledges this only after the standbys for which it waits have all that precedes.

`server` is the server that wrote the entry. A failover to a lagging replica, and a restored copy, lose entries together
with rows, so that log and target agree and nothing else shows the loss. Entries of another server are therefore refused
until a user accepts the server (`outfall accept`).
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from outfall.errors import RecordError
from outfall.recovery.log import (
    EntryExistsError,
    LogEntry,
    RecoveryLog,
    ServerChange,
    check_state_name,
    check_step_id,
    heartbeat_generation,
    is_step_id,
    missing_state,
    require_newest,
    state_generation,
    state_name,
)
from outfall.sql.log_database import LogDatabase, LogSession, OvertakenError, TakenError
from outfall.trace_points import reached

T = TypeVar("T")

CHUNK = 256 * 1024
"""Bytes per value. Drivers that write values into the statement need up to twice as much, and MySQL limits it."""

_MOST = 500
"""Names in one statement."""


class SqlLog(RecoveryLog):
    """The log of one step. Connects with the first call."""

    def __init__(self, database: LogDatabase, log: str, step_id: str, *, read_only: bool = False) -> None:
        """Set the database and the value of the column `log`."""
        self._database = database
        self._log = log
        self._step_id = step_id
        self._read_only = read_only
        self._newest_durable = 0
        """The newest entry that is known to be durable on every standby that the server waits for."""

    def read(self, *, last: int | None = None, known: Mapping[int, bytes] | None = None) -> list[LogEntry]:
        if last is not None and last < 0:
            raise ValueError(f"last must not be negative, not {last}")

        def work(session: LogSession) -> list[LogEntry]:
            numbers = self._numbers(session)
            if numbers and not self._read_only:
                self._check_newest(session, numbers[-1])
            return self._loaded(
                session, numbers if last is None else numbers[max(0, len(numbers) - last) :], known or {}
            )

        return self._reading("reading the recovery log", work, [])

    def numbers(self) -> list[int]:
        return self._reading("listing the recovery log", self._numbers, [])

    def append(self, data: bytes, *, after: int) -> int:
        number, writer, attempts = after + 1, uuid.uuid4().hex, itertools.count()

        def work(session: LogSession) -> None:
            if next(attempts) and self._has_own(session, number, writer):
                return
            server = self._database.server(session)
            newest, recorded = self._newest(session)
            if newest:
                self._require_same(newest, recorded, server)
            self._require_newest(newest, after)
            reached("log: newest checked")
            self._insert(session, LogEntry(number, data), server, writer)
            reached("log: entry inserted")
            self._require_newest(self._newest(session, but=number)[0], after)

        doing = f"appending recovery entry {number}"
        try:
            self._writing(doing, work)
        except TakenError:
            # By another writer, or by an attempt of this append whose reply was lost.
            try:
                self._writing(doing, work)
            except TakenError:
                raise EntryExistsError(number) from None
        self._newest_durable = number
        return number

    def clean_up(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        def work(session: LogSession) -> None:
            numbers = self._numbers(session)
            below = min(max(keep, default=0), max(numbers, default=0))
            spent = [number for number in numbers if number < below and number not in keep]
            self._remove_entries(session, spent)
            query = "SELECT DISTINCT name FROM {blobs} WHERE log = %s AND generation < %s"
            old = [name for (name,) in session.run(query, self._log, generation)]
            self._remove_blobs(session, [name for name in old if name not in states])
            reached("log: entry cleaned up")

        self._reading("cleaning up the recovery log", work, None)

    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        stored = state_name(name, generation)
        self._write_blob(f"writing the state {name!r}", stored, data, generation)
        reached("log: state durable")
        return stored

    def read_state(self, name: str) -> bytes:
        check_state_name(name)

        def work(session: LogSession) -> list[bytes]:
            return self._pieces(session, name)

        nothing: list[bytes] = []
        pieces = self._reading(f"reading the state {name!r}", work, nothing)
        if not pieces:
            raise missing_state(name, where=self._database.name(), step_id=self._step_id)
        return b"".join(pieces)

    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        def work(session: LogSession) -> None:
            server = self._database.server(session)
            self._remove_entries(session, [entry.number for entry in entries])
            self._remove_blobs(session, list(states))
            for name, data in states.items():
                self._insert_blob(session, name, data, state_generation(name))
            for entry in entries:
                self._insert(session, entry, server, uuid.uuid4().hex)
                reached("log: entry restored")

        self._writing("copying a recovery log", work)

    def erase(self) -> None:
        def work(session: LogSession) -> None:
            for table in ("{entries}", "{blobs}"):
                session.run(f"DELETE FROM {table} WHERE log = %s", self._log)  # noqa: S608

        self._reading("erasing the recovery log", work, None)
        self._newest_durable = 0

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        def work(session: LogSession) -> None:
            self._remove_blobs(session, [name])
            if data is not None:
                self._insert_blob(session, name, data, heartbeat_generation(name))

        self._writing("writing a heartbeat", work)

    def heartbeats(self) -> list[bytes]:
        query = "SELECT data FROM {blobs} WHERE log = %s AND piece = 0 AND name LIKE %s"

        def work(session: LogSession) -> list[bytes]:
            return [bytes(data) for (data,) in session.run(query, self._log, "%.heartbeat")]

        return self._reading("reading heartbeats", work, [])

    def server_change(self) -> ServerChange | None:
        def work(session: LogSession) -> ServerChange | None:
            newest, recorded = self._newest(session)
            server = self._database.server(session)
            return ServerChange(newest, recorded, server) if newest and recorded != server else None

        return self._reading("reading the recovery log", work, None)

    def accept_server(self, change: ServerChange) -> None:
        def work(session: LogSession) -> None:
            if self._database.server(session) != change.now or self._newest(session) != (change.entry, change.recorded):
                raise RecordError(
                    f"the recovery log in {self._database.name()}, or its server, has changed since the check",
                    step=self._step_id,
                    do="stop every query of this step, and repeat the command",
                )
            query = "UPDATE {entries} SET server = %s WHERE log = %s AND number = %s"
            session.run(query, change.now, self._log, change.entry)
            reached("log: server accepted")

        self._writing("accepting the server of the recovery log", work)

    def _reading(self, doing: str, work: Callable[[LogSession], T], empty: T) -> T:
        return self._database.reading(doing, work, empty, self._step_id)

    def _writing(self, doing: str, work: Callable[[LogSession], T]) -> T:
        return self._database.writing(doing, work, self._step_id)

    # --- entries

    def _numbers(self, session: LogSession) -> list[int]:
        rows = session.run("SELECT number FROM {entries} WHERE log = %s ORDER BY number", self._log)
        return [number for (number,) in rows]

    def _newest(self, session: LogSession, but: int = 0) -> tuple[int, str]:
        """Return number and server of the newest entry, other than `but`; 0 for an empty log."""
        query = "SELECT number, server FROM {entries} WHERE log = %s AND number <> %s ORDER BY number DESC LIMIT 1"
        for number, server in session.run(query, self._log, but):
            return number, server
        return 0, ""

    def _require_newest(self, newest: int, after: int) -> None:
        require_newest(newest, after, where=self._database.name(), step_id=self._step_id)

    def _check_newest(self, session: LogSession, newest: int) -> None:
        """Check the server of the newest entry, and lock its row, so that this transaction is acknowledged after it."""
        lock = "" if newest == self._newest_durable else " FOR UPDATE"
        query = "SELECT server FROM {entries} WHERE log = %s AND number = %s"
        rows = session.run(query + lock, self._log, newest)
        if not rows:
            raise OvertakenError
        self._require_same(newest, rows[0][0], self._database.server(session))
        self._newest_durable = newest

    def _require_same(self, newest: int, recorded: str, server: str) -> None:
        if recorded != server:
            raise RecordError(
                f"the recovery log in {self._database.name()} is on another server than before",
                step=self._step_id,
                why=f"entry {newest}, the newest one, was written on {recorded}, and this is {server}: a standby that"
                " was promoted, or a copy, may lack the newest entries together with the newest rows",
                do="connect to the server that wrote the entry; or, if it is lost or was replaced, run outfall accept,"
                " which shows what to check and what to write again",
            )

    def _has_own(self, session: LogSession, number: int, writer: str) -> bool:
        query = "SELECT writer, server FROM {entries} WHERE log = %s AND number = %s FOR UPDATE"
        rows = session.run(query, self._log, number)
        if not rows or rows[0][0] != writer:
            return False
        self._require_same(number, rows[0][1], self._database.server(session))
        return True

    def _insert(self, session: LogSession, entry: LogEntry, server: str, writer: str) -> None:
        first, *others = split(entry.data)
        statement = "INSERT INTO {entries} (log, number, server, writer, pieces, data) VALUES (%s, %s, %s, %s, %s, %s)"
        session.run(statement, self._log, entry.number, server, writer, 1 + len(others), first)
        self._insert_pieces(session, entry_blob(entry.number), others, None)

    def _loaded(self, session: LogSession, numbers: Sequence[int], known: Mapping[int, bytes]) -> list[LogEntry]:
        """Return entries, without loading those that are known, if the newest of these has not changed."""
        if not numbers:
            return []
        mark = max((number for number in numbers if number in known), default=numbers[0])
        found = self._load(session, mark, numbers[-1])
        if found[mark] == known.get(mark):
            found |= {number: known[number] for number in numbers if number in known}
        older = [number for number in numbers if number not in found]
        if older:
            found = self._load(session, older[0], older[-1]) | found
        return [LogEntry(number, found[number]) for number in numbers]

    def _load(self, session: LogSession, first: int, last: int) -> dict[int, bytes]:
        query = "SELECT number, pieces, data FROM {entries} WHERE log = %s AND number BETWEEN %s AND %s"
        found = {}
        for number, pieces, data in session.run(query, self._log, first, last):
            whole = [bytes(data), *(self._pieces(session, entry_blob(number)) if pieces > 1 else [])]
            if len(whole) != pieces:
                raise RecordError(
                    f"recovery entry {number} in {self._database.name()} has {len(whole)} of its {pieces} pieces",
                    step=self._step_id,
                    why="they are written and removed in one transaction, so another program has removed them",
                    do="restore the recovery data from a copy",
                )
            found[number] = b"".join(whole)
        return found

    def _remove_entries(self, session: LogSession, numbers: Sequence[int]) -> None:
        self._remove(session, "DELETE FROM {entries} WHERE log = %s AND number IN ", numbers)
        self._remove_blobs(session, [entry_blob(number) for number in numbers])

    # --- blobs

    def _write_blob(self, doing: str, name: str, data: bytes, generation: int) -> None:
        try:
            self._writing(doing, lambda session: self._insert_blob(session, name, data, generation))
        except TakenError:
            # The name is random, so this is an attempt of this call whose reply was lost.
            lock = "SELECT piece FROM {blobs} WHERE log = %s AND name = %s FOR UPDATE"
            self._writing(doing, lambda session: session.run(lock, self._log, name))

    def _insert_blob(self, session: LogSession, name: str, data: bytes, generation: int | None) -> None:
        self._insert_pieces(session, name, split(data), generation)

    def _insert_pieces(self, session: LogSession, name: str, pieces: Iterable[bytes], generation: int | None) -> None:
        statement = "INSERT INTO {blobs} (log, name, piece, generation, data) VALUES (%s, %s, %s, %s, %s)"
        for piece, data in enumerate(pieces):
            session.run(statement, self._log, name, piece, generation, data)

    def _pieces(self, session: LogSession, name: str) -> list[bytes]:
        query = "SELECT data FROM {blobs} WHERE log = %s AND name = %s ORDER BY piece"
        return [bytes(data) for (data,) in session.run(query, self._log, name)]

    def _remove_blobs(self, session: LogSession, names: Sequence[str]) -> None:
        self._remove(session, "DELETE FROM {blobs} WHERE log = %s AND name IN ", names)

    def _remove(self, session: LogSession, statement: str, keys: Sequence[object]) -> None:
        for start in range(0, len(keys), _MOST):
            some = keys[start : start + _MOST]
            session.run(f"{statement}({', '.join(['%s'] * len(some))})", self._log, *some)


def split(data: bytes) -> list[bytes]:
    """Return the pieces of a value: at least one."""
    return [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)] or [b""]


def entry_blob(number: int) -> str:
    """Return the name of the pieces of an entry. No state and no heartbeat has it."""
    return f"entry/{number:020d}"


def steps_in(database: LogDatabase, name: str) -> list[str]:
    """Return the sorted ids of the steps that have a log of this name."""
    query = "SELECT DISTINCT log FROM {entries} UNION SELECT DISTINCT log FROM {blobs}"

    def work(session: LogSession) -> list[str]:
        return [str(log) for (log,) in session.run(query)]

    nothing: list[str] = []
    found = database.reading("listing the steps", work, nothing, None)
    logs = [log.rpartition("/") for log in found]
    return sorted(step for prefix, _, step in logs if prefix == name and is_step_id(step))


def log_of(name: str, step_id: str) -> str:
    """Return the value of the column `log` for a step. Raises `ConfigurationError` if the step id is not valid."""
    step = check_step_id(step_id)
    return f"{name}/{step}" if name else step
