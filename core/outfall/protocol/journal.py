"""What a step's log says, read to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from outfall.capabilities import BufferedRows
from outfall.contexts import is_peak
from outfall.errors import RecordError
from outfall.protocol.clock import Clock, utc_time
from outfall.protocol.states import ROWS_HELD, total_held
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
"""Entries that are read at first; more only when the last completed epoch is not among them."""


@dataclass(frozen=True)
class JournalView:
    """The log as one driver has read it."""

    last: int = 0
    """Number of the newest entry; 0 for an empty log."""
    begin: Begin | None = None
    """The newest BEGIN: who the step belongs to."""
    generation: int = 0
    """Number of the newest BEGIN."""
    unfinished: Prepared | None = None
    """Recorded and not completed."""
    committing: bool = False
    """Whether committables of `unfinished` may be published."""
    committed: frozenset[str] = frozenset()
    """The children whose committables of `unfinished` are published."""
    prepared: int = 0
    """Number of the PREPARED that holds the current states."""
    kept_from: int = 0
    """Number of the BEGIN before it; nothing from here on may be cleaned up."""
    completed: int | None = None
    """The last completed epoch."""
    open_epoch: int | None = None
    """The epoch that a BEGIN or ABANDONED names and nothing has recorded yet."""
    states: dict[str, StoredValue] = field(default_factory=dict)
    """The state of each part after the last recorded epoch."""
    writer_states: list[StoredValue] = field(default_factory=list)
    query_id: str | None = None
    drains: int = 0
    """How many drains are completed: an epoch's number is the batch id and this."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of each BEGIN since the last completed epoch's, and of that one."""
    completed_generation: int = 0
    """The generation that wrote the last completed epoch."""
    completed_time: datetime | None = None
    """When it was completed, by the clock of the driver that did."""
    published: Mapping[str, int] = field(default_factory=dict)
    """The newest epoch published to each target: see `Completed.published`."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """What was counted since the first epoch: see `Completed.totals`."""
    moved_to: str | None = None
    """Where the step goes on instead of here."""
    before: JournalView | None = field(default=None, repr=False)
    """The view that holds again if `unfinished` is abandoned."""

    @property
    def incarnation(self) -> str | None:
        """The step's incarnation, `None` before its first BEGIN."""
        return None if self.begin is None else self.begin.incarnation

    @property
    def token(self) -> str:
        """The token of the newest BEGIN; empty before the first."""
        return "" if self.begin is None else self.begin.nonce

    @property
    def begun_since(self) -> bool:
        """Whether there was a BEGIN after that of the last completed epoch."""
        return self.generation > self.completed_generation

    @property
    def lost(self) -> dict[int, str]:
        """Generation → token of each BEGIN that the newest one replaced before its epoch was completed."""
        older = range(self.completed_generation + 1, self.generation)
        return {number: token for number, token in self.begun.items() if number in older}

    @property
    def drain_unfinished(self) -> bool:
        """Whether what is recorded and not completed is a drain."""
        return self.unfinished is not None and self.begin is not None and self.begin.drain

    @property
    def held(self) -> BufferedRows:
        """The rows that the states hold back."""
        return total_held([*self.states.values(), *self.writer_states])

    def totals_with(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the totals with what one more epoch counted; peaks and what is held back have no sum."""
        more = {name: amount for name, amount in counts.items() if name != ROWS_HELD and not is_peak(name)}
        return dict(Counter(self.totals) + Counter(more))

    def after(self, number: int, entry: Entry) -> JournalView:
        """Return the view after one more entry.

        Raises:
            RecordError: an entry before it is missing, or it is of another incarnation.
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
                return replace(self, committed=self.committed | {entry.child})
            case Completed():
                return self._completed(entry)
            case Abandoned():
                return replace(self.before or self, open_epoch=entry.epoch, before=None)
            case Skipped():
                return replace(self, totals=self.totals_with(entry.counts))
            case Repaired():
                return self
            case Moved():
                return replace(self, moved_to=entry.to)

    def _recorded(self, number: int, entry: Prepared) -> JournalView:
        return replace(
            self,
            unfinished=entry,
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
            drains=entry.drains + entry.drain,
            begun={number: token for number, token in self.begun.items() if number >= entry.generation},
            published=entry.published,
            totals=entry.totals,
        )

    def _begun(self, number: int, entry: Begin) -> JournalView:
        return replace(
            self,
            begin=entry,
            generation=number,
            begun={**self.begun, number: entry.nonce},
            unfinished=None,
            open_epoch=entry.epoch,
            states={**self.states, **entry.bases},
            writer_states=self.writer_states or list(entry.writer_states),
            query_id=entry.query_id or self.query_id,
            drains=entry.drains,
        )


class Journal:
    """Reads and extends one step's log. Remembers where it stands, since every append must follow what was read."""

    def __init__(self, log: RecoveryLog, step_id: str, clock: Clock) -> None:
        """Stand before the first entry of `log`."""
        self._clock = clock
        self._log = log
        self._step_id = step_id
        self.view = JournalView()
        self.unclear = False
        """Whether an append has failed in a way that leaves open whether its entry is there."""
        self._known: dict[int, tuple[bytes, Entry]] = {}

    @property
    def log(self) -> RecoveryLog:
        """The log itself."""
        return self._log

    @property
    def entries(self) -> list[Entry]:
        """What was read last and appended since, oldest first: all from the last completed epoch's BEGIN on."""
        return [self._known[number][1] for number in sorted(self._known)]

    def read(self) -> JournalView:
        """Read to the end, and stand there.

        Raises:
            RecordError: an entry that counts is damaged, foreign or of a newer format.
        """
        self.view = self._tail_view(TAIL) or self._tail_view(None) or JournalView()
        return self.view

    def read_all(self) -> list[Entry]:
        """Read to the end, and stand there; return all entries that are kept, as they were at that one moment.

        Raises:
            RecordError: one of them is damaged, foreign or of a newer format.
        """
        entries = self._decoded(self._log.read())
        self.view = self._view_of(entries, whole=True) or JournalView()
        return [entry for _, entry in entries]

    def append(self, entry: Entry) -> int:
        """Add an entry after the last one read, stamped with the time.

        Raises:
            EntryExistsError: somebody else went on from here. See `RecoveryLog.append`.
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
        """Drop what no longer counts: all but the last epoch's entries and the counts of the last hundred epochs.

        Only what this driver has read or written is looked at, which is the epoch before with all its entries at least.
        Older ones carry counts, since earlier clean-ups left nothing else; what an omitted clean-up left among them
        goes when it is older than a hundred epochs.
        """
        spent = {
            number
            for number, (_, entry) in self._known.items()
            if number < self.view.kept_from and not isinstance(entry, Completed | Skipped)
        }
        numbers = [number for number in self._log.numbers() if number not in spent]
        tail = [number for number in numbers if number >= self.view.kept_from]
        counts = [number for number in numbers if number < self.view.kept_from][-KEPT_EPOCHS:]
        # Large committables of an epoch that is not completed are of this generation or a newer one.
        states = {s.blob.name for s in (*self.view.states.values(), *self.view.writer_states) if s.blob}
        self._log.clean_up(keep=[*counts, *tail], states=states, generation=self.view.generation)

    def _decoded(self, found: Sequence[LogEntry]) -> list[tuple[int, Entry]]:
        """Decode entries; those that were seen before need it no more, as entries do not change."""
        known, self._known = self._known, {}
        for raw in found:
            before = known.get(raw.number)
            same = before is not None and before[0] == raw.data
            self._known[raw.number] = before if before and same else (raw.data, decode_entry(raw, self._step_id))
        return [(raw.number, self._known[raw.number][1]) for raw in found]

    def _tail_view(self, size: int | None) -> JournalView | None:
        raw = self._log.read(last=size)
        return self._view_of(self._decoded(raw), whole=size is None or len(raw) < size)

    def _view_of(self, entries: Sequence[tuple[int, Entry]], whole: bool) -> JournalView | None:
        """The view from the newest entries; `None` when the last completed epoch is not whole among them."""
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
    """Whether this is the first BEGIN of a driver that slept until a clean-up had freed its number.

    It began when the log was empty, so it has an incarnation of its own. It counts for nothing and is removed again.
    """
    return number == 1 < start


def _check_incarnation(number: int, entry: Entry, expected: str) -> None:
    if entry.incarnation != expected:
        raise RecordError(
            f"recovery entry {number} is of incarnation {entry.incarnation}, others are of {expected}",
            step=entry.step,
            why="two recovery directories were mixed",
            do="restore the recovery data from one copy",
        )


def _missing(number: int, step_id: str) -> RecordError:
    return RecordError(
        f"recovery entry {number} is missing",
        step=step_id,
        why="entries were lost, as in an incomplete copy",
        do="restore the recovery data from a complete copy",
    )
