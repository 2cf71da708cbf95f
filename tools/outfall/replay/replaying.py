"""Letters are chosen, recorded and written, epoch by epoch.

```
choose   an epoch of the step `replay-letters`: its state has the ids of the letters, and their rows
write    an epoch of the step `replay`: these rows into the sink
```

A choice is made once the one before it is written. Whoever comes after a crash finds a choice, and writes it first:
the same rows under the same number, which the sink's own protocol has once. Of two that run at once one is fenced,
wherever both are.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import SupportsPreWriteTopology, SupportsTarget
from outfall.capability_checks import check_sink, is_fixed, routing_key_of, supports
from outfall.errors import (
    CapabilityError,
    ConfigurationError,
    EpochAbandonedError,
    FencedError,
    RecordError,
    UnexpectedEpochError,
)
from outfall.protocol.clock import SystemClock
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.draining import REWRITES
from outfall.protocol.journal import Journal, JournalView
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.protocol.states import load_states
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery.log import RecoveryConfig
from outfall.replay.letters import FoundLetter
from outfall.replay.record import Choice, RecordSink, ReplayRecord, letters_step, read_record, record_in
from outfall.replay.rows import RowMaker
from outfall.trace_points import reached

_log = logging.getLogger(__name__)

LETTERS_PER_EPOCH = 20_000
"""Whose rows are in memory at a time."""

_NAMED = 100
"""Letters that are left, and named."""


@dataclass
class ReplayResult:
    """What a replay has done."""

    found: int = 0
    """Letters that are meant."""
    before: int = 0
    """Those of them that were replayed before."""
    replayed: int = 0
    """Letters whose rows were handed to the sink and published, those that it refused again among them."""
    epochs: list[int] = field(default_factory=list)
    refused: int = 0
    """Letters that the sink refused again, and kept as dead letters."""
    left: int = 0
    """Letters that cannot be turned back into rows."""
    reasons: list[tuple[str, str]] = field(default_factory=list)
    """Of the first of these: the place, and why."""

    def leave(self, place: str, why: str) -> None:
        """Note a letter that stays where it is."""
        self.left += 1
        if len(self.reasons) < _NAMED:
            self.reasons.append((place, why))


class LetterReplay:
    """Replays letters into one sink. Used by one thread; two processes may do it at once.

    Args:
        sink: where the rows go.
        recovery: where the logs of both steps are.
        step_id: the step that writes.
        rows: makes rows of letters.
        key: for a sink with parts: the column that says which part a row belongs to.
        commit: how committing is tried.
        most: how many letters go into one epoch.

    Raises:
        CapabilityError: the sink cannot be written without Spark.
        ConfigurationError: it has parts, and there is no key.
    """

    def __init__(
        self,
        sink: Any,
        recovery: RecoveryConfig,
        step_id: str,
        rows: RowMaker,
        *,
        key: str | None = None,
        commit: CommitPolicy | None = None,
        most: int = LETTERS_PER_EPOCH,
    ) -> None:
        check_sink(sink)
        if supports(sink, SupportsPreWriteTopology):
            raise CapabilityError(
                f"a {type(sink).__name__} with these options changes the DataFrame before it is written",
                why="a replay runs without Spark",
                do="replay into the sink with other options",
            )
        self._key = key or routing_key_of(sink)
        if is_fixed(sink) and self._key is None and len(sink.list_parts()) > 1:
            raise ConfigurationError(
                "the sink has parts, and rows are routed to them by a key", do="name its column with --key"
            )
        self._sink = sink
        self._recovery = recovery
        self._step_id = step_id
        self._rows = rows
        self._most = most
        self._options = EpochOptions(
            commit=commit or CommitPolicy(),
            end_of_input=True,
            worker_count=1,
            key=self._key if is_fixed(sink) else None,
        )

    def run(self, letters: Iterable[FoundLetter]) -> ReplayResult:
        """Replay the letters that were not replayed before.

        What the sink refuses again, and keeps in the place that is read, waits for the next run.

        Raises:
            OutfallError: what was chosen is written by the next run, the others are chosen by it.
        """
        result = ReplayResult()
        record = read_record(self._recovery, self._step_id)
        started = datetime.now(UTC)
        self._write(record, result)
        # Of this run, all of whose tasks go by this clock. What is found is read before more is written.
        letters = (each for each in letters if each.letter.step != self._step_id or each.letter.time < started)
        with closing(_Spool()) as spool:
            for row, entry in self._new(letters, record, result):
                spool.add(row, entry)
            reached("replay: letters read")
            for columns in spool.columns():
                self._replay(spool.entries(columns), result)
        if result.epochs:
            self._forget_rows()
        return result

    def preview(self, letters: Iterable[FoundLetter]) -> ReplayResult:
        """Return what `run` would find. Writes nothing."""
        result = ReplayResult()
        record = read_record(self._recovery, self._step_id)
        for _ in self._new(letters, record, result):
            pass
        return result

    def _new(
        self, letters: Iterable[FoundLetter], record: ReplayRecord, result: ReplayResult
    ) -> Iterator[tuple[dict[str, Any], _Entry]]:
        """Yield the rows of letters that are not in the record."""
        seen: Counter[bytes] = Counter()
        for found in letters:
            result.found += 1
            name = found.id
            seen[name] += 1
            if seen[name] <= record.ids[name]:
                result.before += 1
                continue
            try:
                row = self._rows.row(found.letter.row)
                if is_fixed(self._sink) and self._key is not None and row.get(self._key) is None:
                    raise ValueError(f"its key {self._key!r} is missing or NULL")
            except ValueError as error:
                result.leave(found.place, str(error))
            else:
                yield row, _Entry(name, seen[name], found.letter.row)

    def _replay(self, entries: Iterator[_Entry], result: ReplayResult) -> None:
        """Choose and write letters whose rows have the same columns."""
        waiting: list[_Entry] = []
        while True:
            waiting += islice(entries, self._most - len(waiting))
            if not waiting:
                return
            waiting = self._choose(waiting, result)

    def _choose(self, waiting: list[_Entry], result: ReplayResult) -> list[_Entry]:
        """Choose letters and write them; return those that are still to be chosen."""
        rows = self._rows.batch([self._rows.row(entry.text) for entry in waiting])
        if supports(self._sink, SupportsTarget):
            # Before they are chosen: afterwards they go into this sink and no other.
            self._sink.check_schema(rows.schema)
        with closing(self._choosing()) as coordinator:
            ticket = self._begun(coordinator, self._next_epoch())
            record = self._recorded(ticket.states)
            # Skipped where a choice was recorded that nobody had finished.
            if ticket.skips(ticket.epoch or 0) or self._is_unwritten(record):
                pending = record
            else:
                fresh = [i for i, entry in enumerate(waiting) if entry.occurrence > record.ids[entry.id]]
                result.before += len(waiting) - len(fresh)
                choice = Choice([waiting[i].id for i in fresh], rows.take(pa.array(fresh, pa.int64())))
                coordinator.finish(ticket, [self._keep(coordinator.sink, ticket, choice if fresh else None)])
                reached("replay: letters chosen")
                pending, waiting = record.with_choice(choice if fresh else None), []
        self._write(pending, result)
        return waiting

    def _forget_rows(self) -> None:
        """Keep the ids alone: the rows are in the sink."""
        with closing(self._choosing()) as coordinator:
            ticket = self._begun(coordinator, self._next_epoch())
            if not (ticket.skips(ticket.epoch or 0) or self._is_unwritten(self._recorded(ticket.states))):
                coordinator.finish(ticket, [self._keep(coordinator.sink, ticket, None)])

    def _choosing(self) -> EpochCoordinator:
        return EpochCoordinator(RecordSink(self._step_id), letters_step(self._step_id), self._recovery)

    def _next_epoch(self) -> int:
        view = self._view(letters_step(self._step_id))
        if view.unfinished is not None:
            return view.unfinished.epoch
        return 0 if view.completed is None else view.completed + 1

    def _begun(self, coordinator: EpochCoordinator, epoch: int) -> Ticket:
        try:
            return coordinator.begin(epoch)
        except UnexpectedEpochError as error:
            raise FencedError(
                "another replay of this step has gone on",
                step=self._step_id,
                why=error.what,
                do="wait for it, or run the command again",
            ) from error

    def _view(self, step_id: str) -> JournalView:
        with closing(self._recovery.open(step_id)) as log:
            return Journal(log, step_id, SystemClock()).read()

    def _recorded(self, states: Any) -> ReplayRecord:
        with closing(self._recovery.open(letters_step(self._step_id))) as log:
            return record_in(load_states(RecordSink(self._step_id), states, log))

    def _keep(self, sink: RecordSink, ticket: Ticket, choice: Choice | None) -> TaskResponse:
        identity = TaskIdentity(ticket.epoch or 0, worker_index=0, attempt=0)
        return EpochTask(sink, ticket, identity).run([(sink.list_parts()[0], [choice])])

    def _is_unwritten(self, record: ReplayRecord) -> bool:
        """Whether the last choice is not written.

        Raises:
            RecordError: the two logs are not of one copy.
        """
        view = self._view(self._step_id)
        done = -1 if view.completed is None else view.completed - view.drains
        if done == record.batch - 1 and record.rows is not None:
            return True
        if done != record.batch:
            raise RecordError(
                f"letters were chosen up to batch {record.batch}, and batch {done} is the last that was written",
                step=self._step_id,
                why=f"the log of this step and that of {letters_step(self._step_id)} are not of one copy",
                do="restore both from one copy, and with outfall copy move both",
            )
        return False

    def _write(self, record: ReplayRecord, result: ReplayResult) -> None:
        """Write the last choice, unless it is written."""
        rows = record.rows
        # Without a choice the logs are compared all the same.
        if not self._is_unwritten(record) or rows is None:
            return
        if supports(self._sink, SupportsTarget):
            self._sink.check_schema(rows.schema)
        written = self._tried_anew(record.batch, rows)
        result.epochs.append(written.epoch)
        result.replayed += rows.num_rows
        result.refused += written.counts.get("dead_letters", 0)
        reached("replay: letters written")

    def _tried_anew(self, batch: int, rows: pa.RecordBatch) -> EpochResult:
        for _ in range(REWRITES):
            try:
                return self._run_epoch(batch, rows)
            except EpochAbandonedError as error:
                _log.warning("%s Writing the letters anew.", error)
        return self._run_epoch(batch, rows)

    def _run_epoch(self, batch: int, rows: pa.RecordBatch) -> EpochResult:
        with closing(EpochCoordinator(self._sink, self._step_id, self._recovery, options=self._options)) as coordinator:
            ticket = self._begun(coordinator, batch)
            identity = TaskIdentity(batch, worker_index=0, attempt=0)
            response = EpochTask(self._sink, ticket, identity).run(self._routed(rows))
            return coordinator.finish(ticket, [response])

    def _routed(self, rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if not is_fixed(self._sink):
            yield None, rows
            return
        names = self._sink.list_parts()
        if self._key is None:
            yield names[0], rows
            return
        keys = pc.cast(rows.column(self._key), pa.string()).to_pylist()
        parts = pa.array([self._sink.part_fn(key) % len(names) for key in keys], pa.int64())
        for part in pc.unique(parts).to_pylist():
            yield names[part], rows.filter(pc.equal(parts, part))


@dataclass(frozen=True)
class _Entry:
    """A letter that is to be chosen."""

    id: bytes
    occurrence: int
    """Which of the letters with this id it is, from 1."""
    text: str


class _Spool:
    """Letters in files of this process, by the columns of their rows: an epoch's rows have the same ones."""

    _SCHEMA = pa.schema([("id", pa.binary()), ("occurrence", pa.int64()), ("text", pa.large_string())])
    _BATCH = 1000

    def __init__(self) -> None:
        self._files: dict[tuple[str, ...], Any] = {}
        self._writers: dict[tuple[str, ...], Any] = {}
        self._pending: dict[tuple[str, ...], list[_Entry]] = {}

    def add(self, row: dict[str, Any], entry: _Entry) -> None:
        """Add a letter."""
        columns = tuple(sorted(row))
        pending = self._pending.setdefault(columns, [])
        pending.append(entry)
        if len(pending) == self._BATCH:
            self._flush(columns)

    def columns(self) -> list[tuple[str, ...]]:
        """Return which columns rows have."""
        return list(self._pending)

    def entries(self, columns: tuple[str, ...]) -> Iterator[_Entry]:
        """Yield the letters whose rows have these columns, in the order in which they came."""
        if columns in self._files:
            self._writers.pop(columns).close()
            self._files[columns].seek(0)
            for batch in pa.ipc.open_stream(self._files[columns]):
                for values in batch.to_pylist():
                    yield _Entry(**values)
        yield from self._pending[columns]

    def close(self) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.close()

    def _flush(self, columns: tuple[str, ...]) -> None:
        if columns not in self._files:
            file = self._files[columns] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
            self._writers[columns] = pa.ipc.new_stream(file, self._SCHEMA)
        pending = self._pending[columns]
        values = {name: [getattr(entry, name) for entry in pending] for name in self._SCHEMA.names}
        self._writers[columns].write_batch(pa.RecordBatch.from_pydict(values, self._SCHEMA))
        self._pending[columns] = []
