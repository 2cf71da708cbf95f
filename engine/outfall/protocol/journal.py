"""The meaning of a step's log, read to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from outfall.capabilities import BufferedRows
from outfall.contexts import is_peak
from outfall.counters import WIDEST_ROW
from outfall.errors import RecordError
from outfall.protocol.clock import Clock, utc_time
from outfall.protocol.states import ROWS_BUFFERED, total_buffered
from outfall.recovery.entries import (
    Abandoned,
    Begin,
    Committed,
    Committing,
    Completed,
    Entry,
    Moved,
    Prepared,
    Repaired,
    Skipped,
    StoredValue,
    decode_entry,
    encode_entry,
)
from outfall.recovery.history import KEPT_EPOCHS
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryLog

TAIL = 12
"""Number of entries of the first read. Without the last completed epoch among them, all are read."""


KnownEntries = Mapping[int, tuple[bytes, Entry]]
"""Entries by number: their bytes in the log, and decoded."""


@dataclass(frozen=True)
class JournalView:
    """The log as read by one driver."""

    last: int = 0
    """The number of the newest entry; 0 for an empty log."""
    begin: Begin | None = None
    """The newest BEGIN: the owner of the step."""
    generation: int = 0
    """The number of the newest BEGIN."""
    recorded_begin: Begin | None = None
    """The BEGIN of the last recorded epoch."""
    unfinished: Prepared | None = None
    """The epoch that is recorded but not completed."""
    committing: bool = False
    """Whether committables of `unfinished` may be published."""
    committed: frozenset[str] = frozenset()
    """The children whose committables of `unfinished` are published."""
    prepared: int = 0
    """The number of the PREPARED with the current states."""
    kept_from: int = 0
    """The number of the BEGIN before it. Entries from there on must not be cleaned up."""
    completed: int | None = None
    """The last completed epoch."""
    open_epoch: int | None = None
    """The epoch of a BEGIN or ABANDONED that is not recorded yet."""
    opened_at: datetime | None = None
    """The time of the first BEGIN of the newest epoch; `None` once it is completed or skipped."""
    states: dict[str, StoredValue] = field(default_factory=dict)
    """The state of each part after the last recorded epoch."""
    writer_states: list[StoredValue] = field(default_factory=list)
    query_id: str | None = None
    drains: int = 0
    """The number of completed drains: an epoch's number is the batch id plus this number."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of the last completed epoch's BEGIN and of each BEGIN since."""
    completed_generation: int = 0
    """The generation that wrote the last completed epoch."""
    completed_time: datetime | None = None
    """The time of its completion, by the clock of that driver."""
    published: Mapping[str, int] = field(default_factory=dict)
    """The newest epoch published to each target: see `Completed.published`."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """The sums of counts since the first epoch: see `Completed.totals`."""
    widest_row: int = 0
    """The bytes per row in the widest batch of the last epochs: see `outfall.counters.WIDEST_ROW`."""
    row_columns: str = ""
    """The digest of the columns of those rows: see `Begin.columns`."""
    moved_to: str | None = None
    """The location where the step continues."""
    before: JournalView | None = field(default=None, repr=False)
    """The view that is valid again if `unfinished` is abandoned."""

    @property
    def incarnation(self) -> str | None:
        """The step's incarnation, `None` before its first BEGIN."""
        return None if self.begin is None else self.begin.incarnation

    @property
    def token(self) -> str:
        """The token of the newest BEGIN; empty before the first."""
        return "" if self.begin is None else self.begin.token

    @property
    def begun_since(self) -> bool:
        """Whether a BEGIN follows that of the last completed epoch."""
        return self.generation > self.completed_generation

    @property
    def lost(self) -> dict[int, str]:
        """Generation → token of each BEGIN that was replaced by the newest one before its epoch was completed."""
        older = range(self.completed_generation + 1, self.generation)
        return {number: token for number, token in self.begun.items() if number in older}

    @property
    def drain_unfinished(self) -> bool:
        """Whether the epoch that is recorded but not completed is a drain."""
        return self.unfinished is not None and self.begin is not None and self.begin.drain

    @property
    def buffered(self) -> BufferedRows:
        """The buffered rows in the states."""
        return total_buffered([*self.states.values(), *self.writer_states])

    def totals_with(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the totals plus the counts of one more epoch. Peaks and buffered rows have no sum."""
        more = {name: amount for name, amount in counts.items() if name != ROWS_BUFFERED and not is_peak(name)}
        return dict(Counter(self.totals) + Counter(more))

    def after(self, number: int, entry: Entry) -> JournalView:
        """Return the view after one more entry.

        Raises `RecordError` if an earlier entry is missing, or the entry is of another incarnation.
        """
        if self.last and number != self.last + 1:
            raise _missing(number - 1, entry.step)
        if self.incarnation is not None:
            _check_incarnation(number, entry, self.incarnation)
        return replace(self._applied(number, entry), last=number)

    def _applied(self, number: int, entry: Entry) -> JournalView:
        match entry:
            case Begin():
                return self._begun(number, entry)
            case Prepared():
                return self._recorded(number, entry)
            case Committing():
                return replace(self, committing=True)
            case Committed():
                return replace(self, committed=self.committed | {entry.child, *entry.others})
            case Completed():
                return self._completed(entry)
            case Abandoned():
                return replace(self.before or self, open_epoch=entry.epoch, before=None)
            case Skipped():
                return replace(self, opened_at=None, totals=self.totals_with(entry.counts))
            case Repaired():
                return self
            case Moved():
                return replace(self, moved_to=entry.to)

    def _recorded(self, number: int, entry: Prepared) -> JournalView:
        return replace(
            self,
            unfinished=entry,
            recorded_begin=self.begin,
            committing=False,
            committed=frozenset(),
            prepared=number,
            kept_from=entry.generation,
            open_epoch=None,
            states=dict(entry.states),
            writer_states=list(entry.writer_states),
            query_id=entry.query_id or self.query_id,
            before=self,
        )

    def _completed(self, entry: Completed) -> JournalView:
        return replace(
            self,
            unfinished=None,
            committing=False,
            committed=frozenset(),
            before=None,
            completed=entry.epoch,
            completed_generation=entry.generation,
            completed_time=entry.time,
            open_epoch=None,
            opened_at=None,
            drains=entry.drains + entry.drain,
            begun={number: token for number, token in self.begun.items() if number >= entry.generation},
            published=entry.published,
            totals=entry.totals,
            widest_row=entry.counts.get(WIDEST_ROW, 0),
            row_columns="" if self.begin is None else self.begin.columns,
        )

    def _begun(self, number: int, entry: Begin) -> JournalView:
        again = self.begin is not None and self.begin.epoch == entry.epoch
        return replace(
            self,
            opened_at=self.opened_at if again and self.opened_at else entry.time,
            begin=entry,
            generation=number,
            begun={**self.begun, number: entry.token},
            unfinished=None,
            open_epoch=entry.epoch,
            states={**self.states, **entry.bases},
            writer_states=self.writer_states or list(entry.writer_states),
            query_id=entry.query_id or self.query_id,
            drains=entry.drains,
        )


class Journal:
    """Reads and extends one step's log. Keeps its position, because every append must follow the last read entry."""

    def __init__(self, log: RecoveryLog, step_id: str, clock: Clock, known: KnownEntries | None = None) -> None:
        """Start before the first entry of `log`.

        `known` are the entries that this process has read or appended in earlier epochs, from the property `known`.
        """
        self._clock = clock
        self._log = log
        self._step_id = step_id
        self.view = JournalView()
        self.unclear = False
        """Whether an append has failed without evidence whether its entry exists."""
        self._known = dict(known or {})

    @property
    def log(self) -> RecoveryLog:
        """The log."""
        return self._log

    @property
    def known(self) -> KnownEntries:
        """The entries last read and appended since, for the journal of the next epoch, which reads only newer ones."""
        return self._known

    @property
    def entries(self) -> list[Entry]:
        """The entries last read and appended since, oldest first, from the last completed epoch's BEGIN on."""
        return [self._known[number][1] for number in sorted(self._known)]

    def read(self) -> JournalView:
        """Read the log to its end.

        Raises `RecordError` if a relevant entry is damaged, of another step, or of a newer format.
        """
        self.view = self._tail_view(TAIL) or self._tail_view(None) or JournalView()
        return self.view

    def read_all(self) -> list[Entry]:
        """Read the log to its end, and return all of its entries from one consistent read.

        Raises `RecordError` if an entry is damaged, of another step, or of a newer format.
        """
        entries = self._decoded(self._log.read())
        self.view = self._view_of(entries, whole=True) or JournalView()
        return [entry for _, entry in entries]

    def append(self, entry: Entry) -> int:
        """Append an entry after the last one read, with the current time.

        Raises `EntryExistsError` if another driver has appended an entry. See `RecoveryLog.append`.
        """
        entry = entry.model_copy(update={"time": utc_time(self._clock)})
        data = encode_entry(entry)
        self.unclear = True
        try:
            number = self._log.append(data, after=self.view.last)
        except EntryExistsError:
            self.unclear = False
            raise
        self.unclear = False
        self._known[number] = data, entry
        self.view = self.view.after(number, entry)
        return number

    def clean_up(self) -> None:
        """Remove all entries except those of the last epoch and the counts of the last hundred epochs.

        Examines only entries that this driver has read or written, which include all entries of the epoch before.
        Older entries contain counts, because earlier clean-ups left nothing else. Entries that an omitted clean-up left
        among them are removed when they are older than a hundred epochs.
        """
        spent = {
            number
            for number, (_, entry) in self._known.items()
            if number < self.view.kept_from and not isinstance(entry, Completed | Skipped)
        }
        numbers = [number for number in self._log.listed() if number not in spent]
        tail = [number for number in numbers if number >= self.view.kept_from]
        counts = [number for number in numbers if number < self.view.kept_from][-KEPT_EPOCHS:]
        # Large committables of an epoch that is not completed have this generation or a newer one.
        states = {s.blob.name for s in (*self.view.states.values(), *self.view.writer_states) if s.blob}
        self._log.clean_up(keep=[*counts, *tail], states=states, generation=self.view.generation)

    def _decoded(self, found: Sequence[LogEntry]) -> list[tuple[int, Entry]]:
        """Decode entries. Entries never change, so known ones are not decoded again."""
        known, self._known = self._known, {}
        for raw in found:
            before = known.get(raw.number)
            same = before is not None and before[0] == raw.data
            self._known[raw.number] = before if before and same else (raw.data, decode_entry(raw, self._step_id))
        return [(raw.number, self._known[raw.number][1]) for raw in found]

    def _tail_view(self, size: int | None) -> JournalView | None:
        raw = self._log.read(last=size, known={number: data for number, (data, _) in self._known.items()})
        return self._view_of(self._decoded(raw), whole=size is None or len(raw) < size)

    def _view_of(self, entries: Sequence[tuple[int, Entry]], whole: bool) -> JournalView | None:
        """Return the view of the newest entries, or `None` if they do not contain all of the last completed epoch."""
        completed = [entry for _, entry in entries if isinstance(entry, Completed)]
        start = completed[-1].generation if completed else 0
        if not whole and (not completed or entries[0][0] > start):
            return None
        if entries and (start or 1) not in {number for number, _ in entries}:
            raise _missing(start or 1, self._step_id)
        view = JournalView()
        for number, entry in entries:
            if not _is_stray(number, start):
                _check_incarnation(number, entry, entries[-1][1].incarnation)
            if number >= start:
                view = view.after(number, entry)
        return view


def _is_stray(number: int, start: int) -> bool:
    """Return whether this is the first BEGIN of a driver that was suspended until a clean-up had freed its number.

    It began with an empty log and therefore has its own incarnation. It is ignored, and removed by the next clean-up.
    """
    return number == 1 < start


def _check_incarnation(number: int, entry: Entry, expected: str) -> None:
    if entry.incarnation != expected:
        raise RecordError(
            f"recovery entry {number} is of incarnation {entry.incarnation}, others are of {expected}",
            step=entry.step,
            why="two recovery directories were mixed",
            do="restore the recovery data from a single copy",
        )


def _missing(number: int, step_id: str) -> RecordError:
    return RecordError(
        f"recovery entry {number} is missing",
        step=step_id,
        why="entries were lost, for example in an incomplete copy",
        do="restore the recovery data from a complete copy",
    )
