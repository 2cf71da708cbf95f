"""Selects, records and writes dead letters, epoch by epoch.

```
select   an epoch of the step `replay-letters`; its state has the ids of the dead letters and their rows
write    an epoch of the step `replay`; writes these rows into the sink
```

A selection starts after the previous one is written. After a crash, the next run finds the recorded selection and
writes it first: the same rows under the same number, which the sink's protocol applies exactly once. If two runs
overlap, one is fenced at any point.
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
from outfall.capability_checks import check_sink, resolve
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
from outfall.protocol.row_identity import check_row_identity
from outfall.protocol.states import load_states
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery.log import RecoveryConfig
from outfall.replay.dead_letters import FoundDeadLetter
from outfall.replay.record import Choice, RecordSink, ReplayRecord, dead_letters_step, read_record, record_in
from outfall.replay.rows import RowMaker
from outfall.trace_points import reached

_log = logging.getLogger(__name__)

LETTERS_PER_EPOCH = 20_000
"""Dead letters per epoch; their rows are in memory at the same time."""

_NAMED = 100
"""Maximum number of skipped dead letters with a reason."""
_ANOTHER_STEP = "for the rows of new dead letters only, replay with another --step and with --since"
_KEEP_NEWER = (
    "replay with the options under which the sink compares rows with newer ones (docs/dead-letters.md lists them); or"
    " pass --replace-newer, if nothing newer was written for the keys of these rows"
)


@dataclass
class ReplayResult:
    """The result of a replay."""

    found: int = 0
    """Dead letters that match the filters."""
    before: int = 0
    """Dead letters replayed by earlier runs."""
    replayed: int = 0
    """Dead letters whose rows were written, including rows that the sink rejected again."""
    epochs: list[int] = field(default_factory=list)
    refused: int = 0
    """Rows that the sink rejected again and wrote as dead letters."""
    left: int = 0
    """Dead letters that cannot be converted to rows."""
    reasons: list[tuple[str, str]] = field(default_factory=list)
    """Location and reason of the first of these."""

    def leave(self, place: str, why: str) -> None:
        """Count a skipped dead letter."""
        self.left += 1
        if len(self.reasons) < _NAMED:
            self.reasons.append((place, why))


class DeadLetterReplay:
    """Replays dead letters into one sink. Not thread-safe; concurrent processes fence each other.

    `recovery` is the location of the logs of both steps, and `step_id` is the writing one. `rows` converts dead letters
    to rows. An epoch has at most `most` dead letters. `replace_newer` permits a sink whose rows may replace newer ones.
    Raises `CapabilityError` if the sink requires Spark, and `ConfigurationError` if `replace_newer` is needed, or if
    the sink has parts, and `key`, its routing column, is missing.
    """

    def __init__(
        self,
        sink: Any,
        recovery: RecoveryConfig,
        step_id: str,
        rows: RowMaker,
        *,
        key: str | None = None,
        replace_newer: bool = False,
        commit: CommitPolicy | None = None,
        most: int = LETTERS_PER_EPOCH,
    ) -> None:
        resolved = check_sink(sink)
        if SupportsPreWriteTopology in resolved.capabilities:
            raise CapabilityError(
                f"a {resolved.name} with these options changes the DataFrame before it is written",
                why="a replay runs without Spark",
                do="use the sink with other options",
            )
        if resolved.may_replace_newer_rows() and not replace_newer:
            raise ConfigurationError(
                f"rows of a {resolved.name} with these options may replace or delete newer ones",
                why="a replayed row was rejected earlier, and the sink does not compare it with all that was written"
                " since",
                do=_KEEP_NEWER,
            )
        self._key = key or resolved.routing_key()
        if resolved.fixed and self._key is None and len(sink.list_parts()) > 1:
            raise ConfigurationError(
                "the sink has parts, and the routing column is missing", do="give the column with --key"
            )
        self._sink = sink
        self._resolved = resolved
        self._recovery = recovery
        self._step_id = step_id
        self._rows = rows
        self._most = most
        self._options = EpochOptions(
            commit=commit or CommitPolicy(),
            end_of_input=True,
            worker_count=1,
            key=self._key if resolved.fixed else None,
        )

    def run(self, dead_letters: Iterable[FoundDeadLetter]) -> ReplayResult:
        """Replay all dead letters that were not replayed before.

        New dead letters of this run are left for the next run. After an `OutfallError`, the next run first writes the
        recorded selection, then selects the rest.
        """
        result = ReplayResult()
        record = read_record(self._recovery, self._step_id)
        started = datetime.now(UTC)
        self._write(record, result)
        # Excludes dead letters of this run: its tasks use the same clock, and all input is read before the first write.
        dead_letters = (
            each for each in dead_letters if each.dead_letter.step != self._step_id or each.dead_letter.time < started
        )
        with closing(_Spool()) as spool:
            for row, entry in self._new(dead_letters, record, result):
                spool.add(row, entry)
            reached("replay: letters read")
            for columns in spool.columns():
                self._replay(spool.entries(columns), result)
        if result.epochs:
            self._forget_rows()
        return result

    def preview(self, dead_letters: Iterable[FoundDeadLetter]) -> ReplayResult:
        """Return the counts that `run` would return. Writes nothing."""
        result = ReplayResult()
        record = read_record(self._recovery, self._step_id)
        for _ in self._new(dead_letters, record, result):
            pass
        return result

    def _new(
        self, dead_letters: Iterable[FoundDeadLetter], record: ReplayRecord, result: ReplayResult
    ) -> Iterator[tuple[dict[str, Any], _Entry]]:
        """Yield the rows of dead letters that are not in the record."""
        seen: Counter[bytes] = Counter()
        for found in dead_letters:
            result.found += 1
            name = found.id
            seen[name] += 1
            if seen[name] <= record.ids[name]:
                result.before += 1
                continue
            try:
                row = self._rows.row(found.dead_letter.row)
                if self._resolved.fixed and self._key is not None and row.get(self._key) is None:
                    raise ValueError(f"the key {self._key!r} is missing or NULL")
            except ValueError as error:
                result.leave(found.place, str(error))
            else:
                yield row, _Entry(name, seen[name], found.dead_letter.row)

    def _replay(self, entries: Iterator[_Entry], result: ReplayResult) -> None:
        """Select and write dead letters whose rows have the same columns."""
        waiting: list[_Entry] = []
        while True:
            waiting += islice(entries, self._most - len(waiting))
            if not waiting:
                return
            waiting = self._choose(waiting, result)

    def _choose(self, waiting: list[_Entry], result: ReplayResult) -> list[_Entry]:
        """Select dead letters and write them; return those that are not yet selected."""
        rows = self._rows.batch([self._rows.row(entry.text) for entry in waiting])
        if SupportsTarget in self._resolved.capabilities:
            # Checked before the selection, which binds the rows to this sink.
            self._sink.check_schema(rows.schema)
        check_row_identity(self._step_id, self._resolved, self._view(self._step_id), otherwise=_ANOTHER_STEP)
        with closing(self._choosing()) as coordinator:
            ticket = self._begun(coordinator, self._next_epoch())
            record = self._recorded(ticket.states)
            # The epoch is skipped if an unfinished selection was recorded.
            if ticket.skips(ticket.epoch or 0) or self._is_unwritten(record):
                pending = record
            else:
                fresh = [i for i, entry in enumerate(waiting) if entry.occurrence > record.ids[entry.id]]
                result.before += len(waiting) - len(fresh)
                choice = Choice([waiting[i].id for i in fresh], rows.take(pa.array(fresh, pa.int64())))
                coordinator.finish(ticket, [self._keep(coordinator.resolved.sink, ticket, choice if fresh else None)])
                reached("replay: letters chosen")
                pending, waiting = record.with_choice(choice if fresh else None), []
        self._write(pending, result)
        return waiting

    def _forget_rows(self) -> None:
        """Keep only the ids, because the rows are in the sink."""
        with closing(self._choosing()) as coordinator:
            ticket = self._begun(coordinator, self._next_epoch())
            if not (ticket.skips(ticket.epoch or 0) or self._is_unwritten(self._recorded(ticket.states))):
                coordinator.finish(ticket, [self._keep(coordinator.resolved.sink, ticket, None)])

    def _choosing(self) -> EpochCoordinator:
        return EpochCoordinator(RecordSink(self._step_id), dead_letters_step(self._step_id), self._recovery)

    def _next_epoch(self) -> int:
        view = self._view(dead_letters_step(self._step_id))
        if view.unfinished is not None:
            return view.unfinished.epoch
        return 0 if view.completed is None else view.completed + 1

    def _begun(self, coordinator: EpochCoordinator, epoch: int) -> Ticket:
        try:
            return coordinator.begin(epoch)
        except UnexpectedEpochError as error:
            raise FencedError(
                "another replay of this step is running or has run",
                step=self._step_id,
                why=error.what,
                do="wait for the other replay, or run the command again",
            ) from error

    def _view(self, step_id: str) -> JournalView:
        with closing(self._recovery.open(step_id)) as log:
            return Journal(log, step_id, SystemClock()).read()

    def _recorded(self, states: Any) -> ReplayRecord:
        with closing(self._recovery.open(dead_letters_step(self._step_id))) as log:
            return record_in(load_states(resolve(RecordSink(self._step_id)), states, log))

    def _keep(self, sink: RecordSink, ticket: Ticket, choice: Choice | None) -> TaskResponse:
        identity = TaskIdentity(ticket.epoch or 0, worker_index=0, attempt=0)
        return EpochTask(sink, ticket, identity).run([(sink.list_parts()[0], [choice])])

    def _is_unwritten(self, record: ReplayRecord) -> bool:
        """Whether the last selection is not yet written. Raises `RecordError` if the logs are not of the same copy."""
        view = self._view(self._step_id)
        done = -1 if view.completed is None else view.completed - view.drains
        if done == record.batch - 1 and record.rows is not None:
            return True
        if done != record.batch:
            raise RecordError(
                f"the last selection is batch {record.batch}, but the last written batch is {done}",
                step=self._step_id,
                why=f"the logs of this step and of {dead_letters_step(self._step_id)} do not belong to the same copy",
                do="restore both logs from the same copy; with outfall copy, move both",
            )
        return False

    def _write(self, record: ReplayRecord, result: ReplayResult) -> None:
        """Write the last selection, unless it is already written."""
        rows = record.rows
        # The logs are compared even without a selection.
        if not self._is_unwritten(record) or rows is None:
            return
        if SupportsTarget in self._resolved.capabilities:
            self._sink.check_schema(rows.schema)
        # From the log: if another run recorded the epoch, this one only finishes it, and its result has no counts.
        before = self._rejected()
        result.epochs.append(self._run_with_rewrites(record.batch, rows).epoch)
        result.replayed += rows.num_rows
        result.refused += self._rejected() - before
        reached("replay: letters written")

    def _rejected(self) -> int:
        return self._view(self._step_id).totals.get("dead_letters", 0)

    def _run_with_rewrites(self, batch: int, rows: pa.RecordBatch) -> EpochResult:
        for _ in range(REWRITES):
            try:
                return self._run_epoch(batch, rows)
            except EpochAbandonedError as error:
                _log.warning("%s Writing the dead letters again.", error)
        return self._run_epoch(batch, rows)

    def _run_epoch(self, batch: int, rows: pa.RecordBatch) -> EpochResult:
        with closing(EpochCoordinator(self._sink, self._step_id, self._recovery, options=self._options)) as coordinator:
            ticket = self._begun(coordinator, batch)
            identity = TaskIdentity(batch, worker_index=0, attempt=0)
            response = EpochTask(self._sink, ticket, identity).run(self._routed(rows))
            return coordinator.finish(ticket, [response])

    def _routed(self, rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if not self._resolved.fixed:
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
    """A dead letter that is not yet selected."""

    id: bytes
    occurrence: int
    """Number among dead letters with the same id, from 1."""
    text: str


class _Spool:
    """Dead letters in temporary files, grouped by columns, because the rows of an epoch have the same columns."""

    _SCHEMA = pa.schema([("id", pa.binary()), ("occurrence", pa.int64()), ("text", pa.large_string())])
    _BATCH = 1000

    def __init__(self) -> None:
        self._files: dict[tuple[str, ...], Any] = {}
        self._writers: dict[tuple[str, ...], Any] = {}
        self._pending: dict[tuple[str, ...], list[_Entry]] = {}

    def add(self, row: dict[str, Any], entry: _Entry) -> None:
        """Add a dead letter."""
        columns = tuple(sorted(row))
        pending = self._pending.setdefault(columns, [])
        pending.append(entry)
        if len(pending) == self._BATCH:
            self._flush(columns)

    def columns(self) -> list[tuple[str, ...]]:
        """Return the groups of columns."""
        return list(self._pending)

    def entries(self, columns: tuple[str, ...]) -> Iterator[_Entry]:
        """Yield the dead letters with these columns, in input order."""
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
